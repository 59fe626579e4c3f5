package mmcache

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"testing"

	"reveille/testenv"
	"reveille/testenv/kit"
)

// secret is the part of xxh3's default secret with which byte 34 of a short input is mixed.
var secret, _ = hex.DecodeString("ded46de9839097db")

// zeroProduct returns two pictures of 5x2 pixels with the same key. Eight bytes of each equal the secret bytes that
// they are mixed with, so the next eight bytes are multiplied by zero.
func zeroProduct() (m Media, a, b []byte) {
	a = make([]byte, 30)
	copy(a[14:22], secret) // byte 34 of the hashed input, 16 before its end
	b = bytes.Clone(a)
	copy(a[22:], "victim's")
	copy(b[22:], "attacker")
	return Media{Image, 5, 2}, a, b
}

// TestCollisions checks that two pictures with one key get two entries, and that neither is served for the other.
func TestCollisions(t *testing.T) {
	const sig = Sig(0xfe68198d4121f969)
	m, a, b := zeroProduct()
	if bytes.Equal(a, b) || keyOf(sig, m, a) != keyOf(sig, m, b) {
		t.Fatal("the recipe no longer makes a collision: the test proves nothing")
	}
	rdb := redisClient(t, testenv.Redis(t))
	space := Namespace{Pool: "main", Model: "m", Sig: sig}
	s := newServer(t, func(c *Config) { c.Redis = rdb })
	e := dialEngine(t, s, space)
	va, vb := numbered(1), numbered(2)
	ida, idb := e.insert(t, m, a, va), e.insert(t, m, b, vb)
	if ida.Key != idb.Key || ida.Field == idb.Field {
		t.Fatalf("%x %x", ida, idb)
	}
	kit.Eventually(t, "both entries in Redis", func() bool { return rdb.HLen(t.Context(), redisKey("main", sig, ida.Key)).Val() == 2 })
	far := dialEngine(t, newServer(t, func(c *Config) { c.Redis = rdb }), space)
	for who, end := range map[string]*engineEnd{"l1": e, "l2": far} {
		for range 2 {
			ga, gb := end.lookup(t, m, a, va.Layout), end.lookup(t, m, b, vb.Layout)
			if ga.result != resultHit || gb.result != resultHit || !bytes.Equal(ga.entry.Floats, va.Floats) || !bytes.Equal(gb.entry.Floats, vb.Floats) {
				t.Fatalf("%s: one was served for the other", who)
			}
		}
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
		key = redisKey("main", 5, e.insert(t, m, a, numbered(float32(i))).Key)
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
