package mmcache

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"reveille/infra/mmstats"
	"reveille/testenv"
	"reveille/testenv/kit"
)

func TestAttachedEngineUsesItsSocket(t *testing.T) {
	m, e := modelOf("m.gguf+p.gguf"), fakeEncoder(t, "weights")
	if _, err := newServer(t, nil).Attach(m, e); !errors.Is(err, ErrNoInterposer) {
		t.Error(err)
	}
	if _, err := newServer(t, func(c *Config) { c.Library = "/a b/" + LibraryName }).Attach(m, e); !errors.Is(err, ErrNoInterposer) {
		t.Error(err)
	}
	s := newServer(t, func(c *Config) { c.Library = "/lib/" + LibraryName })
	a, err := s.Attach(m, e)
	if err != nil {
		t.Fatal(err)
	}
	env := a.Env()
	if env[EnvPreload] != "/lib/"+LibraryName || env[EnvLookupMS] != "5000" || env[EnvEncodeMS] != "60000" {
		t.Error(env)
	}
	if info, err := os.Stat(env[EnvSocket]); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
	a.Started()
	sp, ok := a.awaitNamespace(t.Context())
	if want := (Namespace{"main", "", "m.gguf+p.gguf", sp.Encoder, Sig(m.Signature())}); !ok || sp != want || sp.Encoder == (Digest{}) {
		t.Errorf("%+v %v", sp, ok)
	}
	open := a.dial(t)
	a.Detach()
	a.Detach()
	if _, err := os.Stat(env[EnvSocket]); err == nil {
		t.Error("the socket is still there")
	}
	if _, err := open.c.Read(make([]byte, 1)); err == nil {
		t.Error("the connection is still open")
	}
	s.Close()
	if _, err := s.Attach(m, e); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

// TestOneSessionEncodesAndOthersWait checks who may encode, wait and store.
func TestOneSessionEncodesAndOthersWait(t *testing.T) {
	s := newServer(t, nil)
	a := testAttachment(t, s)
	m, raw, v := Media{Image, 1, 1}, []byte{9, 9, 9}, numbered(1)
	store := func(e *engineEnd, id Ident) {
		e.send(t, opStore, item{media: m, layout: v.Layout, ident: id, bytes: uint64(len(v.Floats))}, 0, v.Floats)
	}
	leader, other := a.dial(t), a.dial(t)
	id := leader.lookup(t, m, raw, v.Layout).ident
	if got := leader.acquire(t, m, id, v.Layout, 0); got.status != statusMiss {
		t.Fatal(got.status)
	}
	if got := other.acquire(t, m, id, v.Layout, 30); got.status != statusBusy {
		t.Fatal("a wait did not end", got.status)
	}
	store(other, id) // has no lead: refused
	if got := other.lookup(t, m, raw, v.Layout); got.status != statusMiss {
		t.Fatal("an entry was accepted from a session without the lead")
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if got := other.acquire(t, m, id, v.Layout, 60_000); got.status != statusHit || !bytes.Equal(got.entry.Floats, v.Floats) {
			t.Errorf("the waiter got %d", got.status)
		}
	})
	time.Sleep(20 * time.Millisecond)
	store(leader, id)
	wg.Wait()

	// A leader that gives up, and one that dies, pass on the lead.
	for i, end := range []func(*engineEnd, Ident){
		func(e *engineEnd, id Ident) {
			e.send(t, opAbandon, item{media: m, layout: v.Layout, ident: id}, 0, nil)
		},
		func(e *engineEnd, _ Ident) { _ = e.c.Close() },
	} {
		leader, other := a.dial(t), a.dial(t)
		id := leader.lookup(t, m, []byte{1, 2, byte(i)}, v.Layout).ident
		leader.acquire(t, m, id, v.Layout, 0)
		wg.Go(func() {
			if got := other.acquire(t, m, id, v.Layout, 60_000); got.status != statusMiss {
				t.Errorf("case %d: the waiter got %d", i, got.status)
			}
		})
		time.Sleep(20 * time.Millisecond)
		end(leader, id)
		wg.Wait()
	}

	// What no look-up named is neither led nor stored, and counted; nor is another layout, of as many floats, of what
	// one named.
	id = leader.lookup(t, m, []byte{4}, v.Layout).ident
	forged, slices := id, Layout{v.Width, []uint32{1, 2}}
	forged[0]++
	refused := s.m.refused[reasonProtocol].Get()
	if got := leader.acquire(t, m, forged, v.Layout, 0); got.status != statusBusy {
		t.Errorf("an identity that an engine made up: %d", got.status)
	}
	if got := leader.acquire(t, m, id, slices, 0); got.status != statusBusy {
		t.Errorf("another layout: %d", got.status)
	}
	if got := leader.acquire(t, m, id, v.Layout, 0); got.status != statusMiss {
		t.Fatal(got.status)
	}
	store(leader, forged)
	leader.send(t, opStore, item{media: m, layout: slices, ident: id, bytes: uint64(len(v.Floats))}, 0, v.Floats)
	if got := leader.lookup(t, m, []byte{4}, v.Layout); got.status != statusMiss {
		t.Errorf("another layout was stored: %d", got.status)
	}
	if n := s.m.refused[reasonProtocol].Get() - refused; n != 4 {
		t.Errorf("%d refusals were counted, want 4", n)
	}

	// Nobody waits for a partial encode.
	id = leader.lookup(t, m, []byte{5}, v.Layout).ident
	leader.send(t, opAcquire, item{media: m, layout: v.Layout, ident: id, partial: true}, 0, nil)
	if got := leader.receive(t, v.Layout); got.status != statusMiss {
		t.Fatal(got.status)
	}
	if got := other.acquire(t, m, id, v.Layout, 60_000); got.status != statusBusy {
		t.Error("waited for a partial encode")
	}
}

// TestLargeMediaDoNotBlockTheRunner checks that an engine cannot have the runner read without end: not by the size that
// it names, and not beyond the time that it waits or stays.
func TestLargeMediaDoNotBlockTheRunner(t *testing.T) {
	s := newServer(t, nil)
	e := dialEngine(t, s, Namespace{})
	fd, err := unix.MemfdCreate("sparse", 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "sparse")
	defer f.Close()
	if err := f.Truncate(1 << 40); err != nil {
		t.Fatal(err)
	}
	for _, size := range []uint64{1 << 40, maxRaw + 1} {
		m := rawRequest(opLookup, item{media: Media{Image, 1, 1}, layout: numbered(1).Layout, bytes: size}, 1)
		if _, _, err := e.c.WriteMsgUnix(m, syscall.UnixRights(int(f.Fd())), nil); err != nil {
			t.Fatal(err)
		}
		if a := e.receive(t, Layout{}); a.status != statusMiss || a.ident != (Ident{}) {
			t.Errorf("%d bytes: %+v", size, a)
		}
	}
	if n := s.m.refused[reasonSize].Get(); n != 2 {
		t.Errorf("%d refusals were counted, want 2", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	raw := contextReader{ctx, io.NewSectionReader(f, 0, 1<<40)}
	if _, err := io.CopyN(io.Discard, raw, 1<<40); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestScopesShareNoEntries checks that models, pools and encoders share no entries.
func TestScopesShareNoEntries(t *testing.T) {
	s := newServer(t, nil)
	m, raw, v := Media{Image, 1, 1}, []byte{1, 2, 3}, numbered(1)
	base := Namespace{Pool: "p", Model: "m", Sig: 1}
	dialEngine(t, s, base).insert(t, m, raw, v)
	recordHit := dialEngine(t, s, base)
	kit.Eventually(t, "a hit in the same space", func() bool { return recordHit.lookup(t, m, raw, v.Layout).status == statusHit })
	for name, sp := range map[string]Namespace{
		"pool": {"q", "", "m", Digest{}, 1}, "model": {"p", "", "n", Digest{}, 2},
		"signature alike": {"p", "", "n", Digest{}, 1}, "encoder": {"p", "", "m", Digest{1}, 1},
	} {
		if got := dialEngine(t, s, sp).lookup(t, m, raw, v.Layout); got.status != statusMiss {
			t.Error(name)
		}
	}
	wide := Layout{v.Width * 2, v.Tokens}
	if got := recordHit.lookup(t, m, raw, wide); got.status != statusMiss {
		t.Error("another width")
	}
}

// TestCountsFollowHitsAndMisses checks the pool's statistics for a model's media.
func TestCountsFollowHitsAndMisses(t *testing.T) {
	rdb := redisClient(t, testenv.Redis(t))
	var mu sync.Mutex
	counters := map[string]float64{}
	host := func(bytes int64) *Server {
		return newServer(t, func(c *Config) {
			c.Redis, c.Bytes = rdb, bytes
			c.Count = func(name string, n float64) {
				mu.Lock()
				defer mu.Unlock()
				counters[name] += n
			}
		})
	}
	m, raw, v := Media{Image, 1, 1}, []byte{1, 2, 3}, numbered(1)
	here := dialEngine(t, host(1<<20), Namespace{Pool: "main", Model: "file"})
	here.insert(t, m, raw, v)
	there := dialEngine(t, host(-1), Namespace{Pool: "main", Model: "file"})
	kit.Eventually(t, "the write behind", func() bool { return len(rdb.Keys(t.Context(), "mm:main:0*").Val()) == 1 })
	for _, e := range []*engineEnd{here, here, there} {
		if got := e.lookup(t, m, raw, v.Layout); got.status != statusHit {
			t.Fatal(got.status)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	want := map[string]mmstats.Stats{"m": {HitsL1: 2, HitsL2: 1, Misses: 1, SavedSeconds: 3 * 0.001}}
	if got := mmstats.ReadStats(counters); !reflect.DeepEqual(got, want) || len(counters) != 4 {
		t.Errorf("%+v of %v, want %+v", got, counters, want)
	}
}

// FuzzSession sends arbitrary bytes to a server.
func FuzzSession(f *testing.F) {
	v := numbered(1)
	for o := opLookup; o <= opAbandon; o++ {
		f.Add(rawRequest(o, item{media: Media{Image, 1, 1}, layout: v.Layout, bytes: 3}, 1), true)
	}
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"), false)
	f.Fuzz(func(t *testing.T, data []byte, file bool) {
		s := newServer(t, func(c *Config) { c.MaxEntry = 1 << 20 })
		e := dialEngine(t, s, Namespace{})
		if len(data) >= replyHeaderLen { // waits are not under test
			binary.LittleEndian.PutUint32(data[8:], 1)
		}
		var floats []byte
		if file {
			floats = v.Floats
		}
		e.raw(t, data, floats)
		_ = e.c.CloseWrite()
		_ = e.c.SetReadDeadline(time.Now().Add(20 * time.Second))
		for b := make([]byte, 1<<16); ; {
			if _, err := e.c.Read(b); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatal("the server hangs")
			} else if err != nil {
				break
			}
		}
	})
}

// TestProtocolErrorsCloseTheConnection checks that a malformed message ends the conversation and is counted.
func TestProtocolErrorsCloseTheConnection(t *testing.T) {
	v := numbered(1)
	good := rawRequest(opLookup, item{media: Media{Image, 1, 1}, layout: v.Layout, bytes: 3}, 1)
	change := func(at int, b byte) []byte {
		c := bytes.Clone(good)
		c[at] = b
		return c
	}
	for name, data := range map[string][]byte{
		"magic": change(0, 0), "op": change(4, 9), "no media": change(5, 0), "many media": change(5, 200), "chunks": change(6, 0),
		"width": change(14, 9), "kind": change(messageHeaderLen, 7), "chunks of a medium": change(messageHeaderLen+2, 3), "fewer chunks": change(messageHeaderLen+2, 1),
		"more bytes than there are": change(messageHeaderLen+24, 200), "offset": change(messageHeaderLen+22, 1), "cut": good[:40], "text": []byte(strings.Repeat("x", 200)),
	} {
		s := newServer(t, nil)
		e := dialEngine(t, s, Namespace{})
		e.raw(t, data, []byte{1, 2, 3})
		_ = e.c.CloseWrite()
		_ = e.c.SetReadDeadline(time.Now().Add(20 * time.Second))
		if n, err := e.c.Read(make([]byte, 1)); n != 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: answered %d bytes, %v", name, n, err)
		}
		kit.Eventually(t, name+" is counted", func() bool { return s.m.refused[reasonProtocol].Get() == 1 })
	}
}

// TestConnectionsAreLimited checks that an engine cannot open more connections than its share.
func TestConnectionsAreLimited(t *testing.T) {
	a := testAttachment(t, newServer(t, nil))
	var last *engineEnd
	for range maxSessions + 1 {
		last = a.dial(t)
	}
	_ = last.c.SetReadDeadline(time.Now().Add(20 * time.Second))
	var timeout net.Error
	if _, err := last.c.Read(make([]byte, 1)); err == nil || (errors.As(err, &timeout) && timeout.Timeout()) {
		t.Error("one too many was let in:", err)
	}
}
