package state_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"reveille/infra/state"
	"reveille/testenv"
)

// A key of another type is refused with a reason, and the pool recovers once it is gone.
func TestCorruptRecordsAreErrors(t *testing.T) {
	var log bytes.Buffer
	s, err := state.Open(state.Options{URL: "redis://" + testenv.Redis(t), Timeout: 5 * time.Second, Log: slog.New(slog.NewTextHandler(&log, nil))})
	must(t, err)
	defer s.Close()
	register(t, s, "h", map[string]string{"m": "llm"})
	rdb := s.Client()
	const models, stats = "rv:{main}:models:h", "rv:{main}:stats"
	corrupt := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, state.ErrCorrupt) || !errors.Is(err, state.ErrUnavailable) {
			t.Errorf("%s: %v, want ErrCorrupt", what, err)
		}
	}
	snapshot := func() error { _, err := s.Snapshot(ctx); return err }
	must(t, rdb.Set(ctx, stats, "x", 0).Err())
	_, err = s.Stats(ctx)
	corrupt("counters that are a string", err)
	must(t, rdb.Rename(ctx, models, "kept").Err())
	must(t, rdb.Set(ctx, models, "x", 0).Err())
	corrupt("a set that is a string", snapshot())
	must(t, rdb.Rename(ctx, "kept", models).Err())
	must(t, snapshot())
	if n := strings.Count(log.String(), "state in Redis is corrupt"); n != 1 {
		t.Errorf("logged %d times:\n%s", n, log.String())
	}
}

// The catalog has commands, so only one that this pool's programs have published is read.
func TestCatalogIsSigned(t *testing.T) {
	onBoth(t, func(b *bench) {
		t := b.t
		open := func(o state.Options) *state.Store {
			o.URL = b.url
			return b.open(o)
		}
		ours := open(state.Options{Secret: []byte("ours")})
		_, err := ours.PutCatalog(ctx, "v1", []byte("{}"), nil)
		must(t, err)
		version, text, err := open(state.Options{Secret: []byte("ours")}).Catalog(ctx)
		must(t, err)
		equal(t, "catalog", version+string(text), "v1{}")
		for name, s := range map[string]*state.Store{"another secret": open(state.Options{Secret: []byte("theirs")}), "none": open(state.Options{})} {
			if _, _, err := s.Catalog(ctx); !errors.Is(err, state.ErrUnsigned) {
				t.Errorf("%s: %v, want ErrUnsigned", name, err)
			}
		}
		must(t, b.rdb.HSet(ctx, prefix+"catalog", "json", `{"hosts":[]}`).Err())
		if _, _, err := ours.Catalog(ctx); !errors.Is(err, state.ErrUnsigned) {
			t.Errorf("changed: %v, want ErrUnsigned", err)
		}
		_, text, err = open(state.Options{Unverified: true}).Catalog(ctx)
		must(t, err)
		equal(t, "unverified", string(text), `{"hosts":[]}`)
		must(t, b.rdb.Del(ctx, prefix+"catalog").Err())
		version, _, err = ours.Catalog(ctx)
		must(t, err)
		equal(t, "none", version, "")
	})
}
