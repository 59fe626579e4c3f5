package state_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"reveille/infra/state"
)

// Responses are for their tenant alone, for a time, and unreadable in Redis; what somebody else wrote there counts as
// none.
func TestResponses(t *testing.T) {
	onBoth(t, func(b *bench) {
		t, s := b.t, b.store()
		said := strings.Repeat(`{"said":"a secret"}`, 1000)
		must(t, s.PutResponse(ctx, "ann", "r1", []byte(said), time.Hour))
		read := func(tenant, id string) string {
			t.Helper()
			got, err := s.Response(ctx, tenant, id)
			must(t, err)
			return string(got)
		}
		equal(t, "the tenant's", read("ann", "r1"), said)
		equal(t, "another one's", read("bob", "r1"), "")
		equal(t, "another id", read("ann", "r2"), "")

		key := prefix + "response:ann:r1"
		raw, err := b.rdb.Get(ctx, key).Bytes()
		must(t, err)
		if bytes.Contains(raw, []byte("secret")) || len(raw) > len(said)/10 {
			t.Errorf("%d bytes in Redis, of %d", len(raw), len(said))
		}
		if left, err := b.rdb.PTTL(ctx, key).Result(); err != nil || left <= 0 || left > time.Hour {
			t.Error("it stays", left, err)
		}
		must(t, b.rdb.Set(ctx, prefix+"response:bob:r1", raw, 0).Err())
		must(t, b.rdb.Set(ctx, prefix+"response:ann:r2", raw, 0).Err())
		equal(t, "copied to another tenant", read("bob", "r1"), "")
		equal(t, "copied to another id", read("ann", "r2"), "")
		raw[len(raw)-1] ^= 1
		must(t, b.rdb.Set(ctx, key, raw, 0).Err())
		equal(t, "changed", read("ann", "r1"), "")

		must(t, s.PutResponse(ctx, "ann", "r3", []byte("x"), time.Hour))
		must(t, s.DropResponse(ctx, "ann", "r3"))
		equal(t, "removed", read("ann", "r3"), "")
		if err := s.PutResponse(ctx, "ann", "r4", make([]byte, state.MaxResponse+1), time.Hour); !errors.Is(err, state.ErrTooLarge) {
			t.Error("one that is too large:", err)
		}
	})
}

// The oldest responses of a tenant make room for new ones, by number and by bytes; others' stay.
func TestResponsesMakeRoom(t *testing.T) {
	onBoth(t, func(b *bench) {
		t, s := b.t, b.store()
		must(t, s.PutResponse(ctx, "bob", "r0", []byte("bob's"), time.Hour))
		for i := range 1001 {
			must(t, s.PutResponse(ctx, "ann", fmt.Sprintf("r%04d", i), []byte("x"), time.Hour+time.Duration(i)*time.Millisecond))
		}
		there := func(tenant, id string) bool {
			t.Helper()
			got, err := s.Response(ctx, tenant, id)
			must(t, err)
			return got != nil
		}
		equal(t, "the first of 1001", there("ann", "r0000"), false)
		equal(t, "the second", there("ann", "r0001"), true)
		large := make([]byte, state.MaxResponse)
		_, _ = rand.Read(large)
		for i := range 8 {
			must(t, s.PutResponse(ctx, "ann", fmt.Sprintf("large%d", i), large, 2*time.Hour+time.Duration(i)*time.Minute))
		}
		equal(t, "a small one", there("ann", "r1000"), false)
		equal(t, "the oldest large one", there("ann", "large0"), false)
		equal(t, "the next", there("ann", "large1"), true)
		equal(t, "the newest", there("ann", "large7"), true)
		equal(t, "another tenant's", there("bob", "r0"), true)
	})
}
