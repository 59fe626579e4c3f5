package mmcache

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"pgregory.net/rapid"

	"reveille/testenv"
	"reveille/testenv/kit"
)

// numbered returns a small entry that differs by v.
func numbered(v float32) *Entry {
	e := &Entry{Layout: Layout{Width: 16, Tokens: []uint32{2, 1}}, EncodeTime: time.Second}
	for range e.Bytes() / 4 {
		e.Floats = binary.LittleEndian.AppendUint32(e.Floats, math.Float32bits(v))
	}
	return e
}

func TestCodecRoundTrip(t *testing.T) {
	c := newCodec("main", []byte("secret"))
	rapid.Check(t, func(r *rapid.T) {
		e := &Entry{Layout: Layout{rapid.Uint32Range(1, 9).Draw(r, "width"), rapid.SliceOfN(rapid.Uint32Range(1, 9), 1, 5).Draw(r, "tokens")}}
		e.Floats = rapid.SliceOfN(rapid.Byte(), int(e.Bytes()), int(e.Bytes())).Draw(r, "floats")
		e.EncodeTime = time.Duration(rapid.Uint32().Draw(r, "us")) * time.Microsecond
		id := Ident{rapid.Byte().Draw(r, "id")}
		v := c.Encode(7, id, e)
		got, err := c.Decode(7, id, e.Layout, v)
		if err != nil || !bytes.Equal(got.Floats, e.Floats) || got.EncodeTime != e.EncodeTime {
			t.Fatalf("%v", err)
		}
		// A changed byte, another length or another place is refused.
		bad := bytes.Clone(v)
		bad[rapid.IntRange(0, len(v)-1).Draw(r, "at")] ^= byte(rapid.IntRange(1, 255).Draw(r, "flip"))
		if _, err := c.Decode(7, id, e.Layout, bad); err == nil {
			t.Fatal("a changed value was accepted")
		}
		if _, err := c.Decode(7, id, e.Layout, v[:rapid.IntRange(0, len(v)-1).Draw(r, "cut")]); err == nil {
			t.Fatal("a cut value was accepted")
		}
		if _, err := c.Decode(8, id, e.Layout, v); !errors.Is(err, errInvalid) {
			t.Fatalf("another model's value: %v", err)
		}
		other := id
		other[3] = 1
		if _, err := c.Decode(7, other, e.Layout, v); !errors.Is(err, errInvalid) {
			t.Fatalf("another medium's value: %v", err)
		}
		for _, l := range []Layout{{e.Width + 1, e.Tokens}, {e.Width, append([]uint32{1}, e.Tokens...)}} {
			if _, err := c.Decode(7, id, l, v); !errors.Is(err, errInvalid) {
				t.Fatalf("another shape: %v", err)
			}
		}
	})
}

// FuzzDecode signs every input, to reach the code after the MAC check.
func FuzzDecode(f *testing.F) {
	c := newCodec("main", []byte("secret"))
	e := numbered(1)
	v := c.Encode(1, Ident{}, e)
	f.Add(v[:len(v)-macSize])
	f.Fuzz(func(t *testing.T, body []byte) {
		_, _ = c.Decode(1, Ident{}, e.Layout, body)
		signed := append(bytes.Clone(body), c.mac(1, Ident{}, body)...)
		if got, err := c.Decode(1, Ident{}, e.Layout, signed); err == nil && int64(len(got.Floats)) != e.Layout.Bytes() {
			t.Fatal("wrong size")
		}
	})
}

func TestLRUKeepsTheMostRecentlyUsed(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		l := newLRU(10 * (entryOverhead + 100))
		var order []byte // most recently used last
		for range rapid.IntRange(1, 60).Draw(r, "steps") {
			k := rapid.ByteRange(0, 20).Draw(r, "key")
			if rapid.Bool().Draw(r, "put") {
				l.put(Ident{k}, &Entry{Floats: make([]byte, 100)})
			} else if l.get(Ident{k}) == nil {
				if bytes.IndexByte(order, k) >= 0 {
					t.Fatal("evicted a recently used entry")
				}
				continue
			}
			if i := bytes.IndexByte(order, k); i >= 0 {
				order = append(order[:i], order[i+1:]...)
			}
			if order = append(order, k); len(order) > 10 {
				order = order[1:]
			}
			if n, b := l.size(); n != len(order) || b > l.limit {
				t.Fatalf("%d entries of %d bytes, want %d", n, b, len(order))
			}
		}
	})
	l := newLRU(1000)
	l.put(Ident{1}, &Entry{Floats: make([]byte, 100)})
	l.put(Ident{2}, &Entry{Floats: make([]byte, 2000)})
	if l.get(Ident{1}) == nil || l.get(Ident{2}) != nil {
		t.Error("an entry above the limit evicted others")
	}
}

// TestRedisFaultsAreMisses checks that every fault of an entry or of Redis is a miss and is counted.
func TestRedisFaultsAreMisses(t *testing.T) {
	srv := testenv.StartRedis(t)
	rdb := redisClient(t, srv.Addr)
	set := metrics.NewSet()
	s := newServer(t, func(c *Config) { c.Redis, c.Bytes, c.Metrics, c.LookupWait = rdb, -1, set, 500*time.Millisecond })
	e := dialEngine(t, s, Namespace{Pool: "main", Model: "m", Sig: 9})
	m, raw := Media{Image, 1, 1}, []byte{1, 2, 3}
	v := numbered(1)
	id := e.insert(t, m, raw, v)
	name := redisKey("main", 9, id)
	ctx := t.Context()
	kit.Eventually(t, "the write", func() bool { return rdb.Exists(ctx, name).Val() > 0 })
	good, err := rdb.Get(ctx, name).Bytes()
	if err != nil {
		t.Fatal(err)
	}
	if ttl := rdb.PTTL(ctx, name).Val(); ttl <= DefaultTTL-time.Hour || ttl > DefaultTTL {
		t.Errorf("time to live %v", ttl)
	}
	other := numbered(1)
	other.Tokens = []uint32{1, 2}
	flipped := bytes.Clone(good)
	flipped[len(flipped)/2] ^= 1
	stranger := newCodec("main", []byte("another secret"))
	for _, c := range []struct {
		name  string
		value []byte
		why   reason
	}{
		{"one bit", flipped, reasonInvalid},
		{"truncated", good[:20], reasonInvalid},
		{"cut", good[:len(good)-1], reasonInvalid},
		{"another secret", stranger.Encode(9, id, v), reasonInvalid},
		{"another key", s.l2.codec.Encode(9, Ident{1}, v), reasonInvalid},
		{"another shape", s.l2.codec.Encode(9, id, other), reasonInvalid},
		{"longer", append(bytes.Clone(good), 0), reasonSize},
	} {
		before := s.m.refused[c.why].Get()
		if err := rdb.Set(ctx, name, c.value, 0).Err(); err != nil {
			t.Fatal(err)
		}
		if got := e.lookup(t, m, raw, v.Layout); got.status != statusMiss {
			t.Errorf("%s: served", c.name)
		}
		if s.m.refused[c.why].Get() != before+1 {
			t.Errorf("%s: not counted as %v", c.name, c.why)
		}
	}

	// The next encode replaces a refused value.
	if got := e.acquire(t, m, id, v.Layout, 0); got.status != statusMiss {
		t.Fatal(got.status)
	}
	e.send(t, opStore, item{media: m, layout: v.Layout, ident: id, bytes: uint64(len(v.Floats))}, 0, v.Floats)
	kit.Eventually(t, "the repair", func() bool { return e.lookup(t, m, raw, v.Layout).status == statusHit })

	// A frozen, then a dead Redis: misses in bounded time, and hits again after it returns.
	srv.Freeze()
	start := time.Now()
	for range 8 {
		if got := e.lookup(t, m, raw, v.Layout); got.status != statusMiss {
			t.Error("frozen: hit")
		}
	}
	if d := time.Since(start); d > 10*time.Second {
		t.Errorf("frozen: %v", d)
	}
	srv.Thaw()
	srv.Kill()
	if got := e.lookup(t, m, raw, v.Layout); got.status != statusMiss {
		t.Error("dead: hit")
	}
	srv.Restart()
	kit.Eventually(t, "hits after a restart", func() bool {
		if e.acquire(t, m, id, v.Layout, 0).status == statusMiss {
			e.send(t, opStore, item{media: m, layout: v.Layout, ident: id, bytes: uint64(len(v.Floats))}, 0, v.Floats)
		}
		return e.lookup(t, m, raw, v.Layout).status == statusHit
	})
	if s.m.redisErrors.Get() == 0 {
		t.Error("no errors were counted")
	}
}

func TestQuotaLimitsWrites(t *testing.T) {
	rdb := redisClient(t, testenv.Redis(t))
	size := int64(len(newCodec("main", []byte("secret")).Encode(3, Ident{}, numbered(0))))
	s := newServer(t, func(c *Config) { c.Redis, c.Quota = rdb, 3*size+size/2 })
	// Bytes written longer ago than the time to live no longer count.
	if err := rdb.HSet(t.Context(), quotaKey("main"), strconv.FormatInt(hour(time.Now().Add(-48*time.Hour)), 10), 1<<40).Err(); err != nil {
		t.Fatal(err)
	}
	e := dialEngine(t, s, Namespace{Pool: "main", Model: "m", Sig: 3})
	for i := range 5 {
		e.insert(t, Media{Image, 1, 1}, []byte{byte(i)}, numbered(0))
	}
	kit.Eventually(t, "refusals", func() bool { return s.m.refused[reasonQuota].Get() == 2 })
	kit.Eventually(t, "the ledger", func() bool {
		all := rdb.HGetAll(t.Context(), quotaKey("main")).Val()
		return len(all) == 1 && all[strconv.FormatInt(hour(time.Now()), 10)] == strconv.FormatInt(3*size, 10)
	})
	if n := len(rdb.Keys(t.Context(), "mm:main:0*").Val()); n != 3 {
		t.Errorf("%d keys", n)
	}
}

// TestEntriesUseAShareOfRedis checks that entries never fill a Redis that has a maxmemory, whatever the quota: state
// can be written.
func TestEntriesUseAShareOfRedis(t *testing.T) {
	const memory = 16 << 20
	rdb := redisClient(t, testenv.StartRedis(t, "--maxmemory", strconv.Itoa(memory)).Addr)
	s := newServer(t, func(c *Config) { c.Redis, c.Quota = rdb, -1 })
	e := dialEngine(t, s, Namespace{Pool: "main", Model: "m", Sig: 3})
	v := &Entry{Layout: Layout{Width: 1 << 12, Tokens: []uint32{64}}, EncodeTime: time.Second, Floats: make([]byte, 1<<20)}
	_, _ = rand.Read(v.Floats)
	for i := range 40 { // of 1 MiB
		e.insert(t, Media{Image, 1, 1}, []byte{byte(i)}, v)
	}
	kit.Eventually(t, "all are stored or refused", func() bool {
		return s.m.refused[reasonQuota].Get()+s.m.refused[reasonQueue].Get()+uint64(len(rdb.Keys(t.Context(), "mm:main:0*").Val())) == 40
	})
	if n := len(rdb.Keys(t.Context(), "mm:main:0*").Val()); n == 0 || n > memory/entriesDivisor>>20 {
		t.Errorf("%d entries of 1 MiB", n)
	}
	// Whoever fills it: no entries once half is used.
	for i := range memory >> 21 {
		if err := rdb.Set(t.Context(), fmt.Sprint("state", i), make([]byte, 1<<19), 0).Err(); err != nil {
			t.Fatal("state is refused: ", err)
		}
	}
	time.Sleep(quotaMaxAge)
	refusals := s.m.refused[reasonQuota].Get()
	before := len(rdb.Keys(t.Context(), "mm:main:0*").Val())
	e.insert(t, Media{Image, 1, 1}, []byte{200}, numbered(0))
	kit.Eventually(t, "a refusal", func() bool { return s.m.refused[reasonQuota].Get() > refusals })
	if n := len(rdb.Keys(t.Context(), "mm:main:0*").Val()); n != before {
		t.Errorf("%d entries, had %d", n, before)
	}
}

// TestEmbeddedRedisStoresEntries checks that the embedded Redis runs the same scripts.
func TestEmbeddedRedisStoresEntries(t *testing.T) {
	rdb := redisClient(t, testenv.MiniRedis(t).Addr())
	s := newServer(t, func(c *Config) { c.Redis, c.Bytes = rdb, -1 })
	e := dialEngine(t, s, Namespace{Pool: "main", Model: "m"})
	v := numbered(4)
	e.insert(t, Media{Audio, 16000, 1}, []byte{1, 2, 3, 4}, v)
	kit.Eventually(t, "a hit", func() bool {
		return e.lookup(t, Media{Audio, 16000, 1}, []byte{1, 2, 3, 4}, v.Layout).status == statusHit
	})
}
