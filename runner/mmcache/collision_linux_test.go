package mmcache

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"testing"

	"reveille/testenv"
	"reveille/testenv/kit"
)

// secret is xxh3's default secret.
var secret = func() []byte {
	b, _ := hex.DecodeString("b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221" +
		"b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8" +
		"a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb" +
		"170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e")
	return b
}()

func le64(b []byte) uint64 { return binary.LittleEndian.Uint64(b) }

// zeroProduct returns two pictures of 5x2 pixels with the same key. Eight bytes of each equal the secret bytes that
// they are mixed with, so the next eight bytes are multiplied by zero.
func zeroProduct() (m Media, a, b []byte) {
	a = make([]byte, 30)
	copy(a[14:22], secret[16:24]) // byte 34 of the hashed input, 16 before its end
	b = bytes.Clone(a)
	copy(a[22:], "victim's")
	copy(b[22:], "attacker")
	return Media{Image, 5, 2}, a, b
}

// accumulate runs xxh3's loop for long inputs over whole stripes.
func accumulate(data []byte) [8]uint64 {
	acc := [8]uint64{3266489917, 11400714785074694791, 14029467366897019727, 1609587929392839161, 9650029242287828579, 2246822519, 2870177450012600261, 2654435761}
	for n := 0; n+64 <= len(data); n += 64 {
		stripe := n % 1024 / 64
		for i := range 8 {
			v := le64(data[n+8*i:])
			k := v ^ le64(secret[8*stripe+8*i:])
			acc[i^1] += v
			acc[i] += k & 0xffffffff * (k >> 32)
		}
		if stripe == 15 {
			for i := range acc {
				acc[i] = (acc[i] ^ acc[i]>>47 ^ le64(secret[128+8*i:])) * 2654435761
			}
		}
	}
	return acc
}

// second returns another picture with the victim's key. 128 chosen bytes bring the hash's state to the victim's, and
// the rest is the victim's. In the first 64 bytes the low halves cancel the secret, in the others the high halves:
// every product is zero, and the free halves can add up to any value.
func second(sig Sig, m Media, victim []byte) []byte {
	header := m.Header(sig)
	in := append(header[:], victim...)
	other := bytes.Clone(in)
	r := rand.New(rand.NewPCG(3, 4))
	at := (len(in)-2048)/1024*1024 + 512 // well before the last KiB, in the middle of a block
	for i := headerSize; i < at-128; i++ {
		other[i] = byte(r.Uint32())
	}
	want, have := accumulate(in[:at]), accumulate(other[:at-128])
	for i := range 8 {
		delta := want[i^1] - have[i^1] // lane i^1 takes the data of lane i
		k1, k2 := le64(secret[8*6+8*i:]), le64(secret[8*7+8*i:])
		low := uint64(uint32(delta) - uint32(k1))
		first := k1 & 0xffffffff
		// first + low carries at most one into the high half.
		high := uint64(uint32(delta>>32) - uint32((first+low)>>32) - uint32(k2>>32))
		binary.LittleEndian.PutUint64(other[at-128+8*i:], first|high<<32)
		binary.LittleEndian.PutUint64(other[at-64+8*i:], k2&^0xffffffff|low)
	}
	return other[headerSize:]
}

// TestCollisions checks that two pictures with one key get two entries, and that neither is served for the other.
func TestCollisions(t *testing.T) {
	const sig = Sig(0xfe68198d4121f969)
	long := bytes.Repeat([]byte("a picture of somebody else's cat "), 256*256*3/33+1)[:256*256*3]
	m2 := Media{Image, 256, 256}
	m1, a1, b1 := zeroProduct()
	for _, c := range []struct {
		name string
		m    Media
		a, b []byte
	}{{"zero product", m1, a1, b1}, {"second preimage", m2, long, second(sig, m2, long)}} {
		t.Run(c.name, func(t *testing.T) {
			if bytes.Equal(c.a, c.b) || keyOf(sig, c.m, c.a) != keyOf(sig, c.m, c.b) {
				t.Fatal("the recipe no longer makes a collision: the test proves nothing")
			}
			rdb := redisClient(t, testenv.Redis(t))
			space := Namespace{Pool: "main", Model: "m", Sig: sig}
			s := newServer(t, func(c *Config) { c.Redis = rdb })
			e := dialEngine(t, s, space)
			va, vb := numbered(1), numbered(2)
			ida, idb := e.insert(t, c.m, c.a, va), e.insert(t, c.m, c.b, vb)
			if ida.Key != idb.Key || ida.Field == idb.Field {
				t.Fatalf("%x %x", ida, idb)
			}
			kit.Eventually(t, "both entries in Redis", func() bool { return rdb.HLen(t.Context(), redisKey(sig, ida.Key)).Val() == 2 })
			far := dialEngine(t, newServer(t, func(c *Config) { c.Redis = rdb }), space)
			for who, end := range map[string]*engineEnd{"l1": e, "l2": far} {
				for range 2 {
					ga, gb := end.lookup(t, c.m, c.a, va.Layout), end.lookup(t, c.m, c.b, vb.Layout)
					if ga.result != resultHit || gb.result != resultHit || !bytes.Equal(ga.entry.Floats, va.Floats) || !bytes.Equal(gb.entry.Floats, vb.Floats) {
						t.Fatalf("%s: one was served for the other", who)
					}
				}
			}
		})
	}
}

// TestManyCollisions checks that a ninth picture under one key is not shared and displaces no other.
func TestManyCollisions(t *testing.T) {
	rdb := redisClient(t, testenv.Redis(t))
	s := newServer(t, func(c *Config) { c.Redis, c.Bytes = rdb, -1 })
	e := dialEngine(t, s, Namespace{Pool: "main", Model: "m", Sig: 5})
	var pictures [][]byte
	var key string
	for i := range 9 {
		m, a, _ := zeroProduct()
		copy(a[22:], fmt.Sprintf("number %d", i))
		pictures = append(pictures, a)
		key = redisKey(5, e.insert(t, m, a, numbered(float32(i))).Key)
		kit.Eventually(t, "the write or its refusal", func() bool {
			return rdb.HLen(t.Context(), key).Val() == int64(min(i+1, maxFields)) && (i < maxFields || s.m.refused[reasonFields].Get() == 1)
		})
	}
	for i, p := range pictures {
		got := e.lookup(t, Media{Image, 5, 2}, p, numbered(0).Layout)
		if (got.result == resultHit) != (i < maxFields) || (got.entry != nil && !bytes.Equal(got.entry.Floats, numbered(float32(i)).Floats)) {
			t.Errorf("picture %d: %d", i, got.result)
		}
	}
}
