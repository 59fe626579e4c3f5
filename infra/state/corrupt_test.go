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

// TestCorrupt checks that a key of another type, a reply that is too large, and invalid names are refused with a
// reason, and that the pool recovers once they are gone.
func TestCorrupt(t *testing.T) {
	var log bytes.Buffer
	s, err := state.Open(state.Options{URL: "redis://" + testenv.Redis(t), Timeout: 5 * time.Second, Log: slog.New(slog.NewTextHandler(&log, nil))})
	must(t, err)
	defer s.Close()
	register(t, s, "h", map[string]string{"m": "llm"})
	rdb := s.Client()
	const host, models, stats = "rv:{main}:host:h", "rv:{main}:models:h", "rv:{main}:stats"
	corrupt := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, state.ErrCorrupt) || !errors.Is(err, state.ErrUnavailable) {
			t.Errorf("%s: %v, want ErrCorrupt", what, err)
		}
	}
	snapshot := func() error { _, err := s.Snapshot(ctx); return err }

	must(t, rdb.HSet(ctx, host, "huge", strings.Repeat("x", 33<<20)).Err())
	corrupt("a field of 33 MiB", snapshot())
	must(t, rdb.HSet(ctx, host, "huge", strings.Repeat("x", 31<<20)).Err())
	must(t, snapshot())
	must(t, rdb.HDel(ctx, host, "huge").Err())
	must(t, rdb.Set(ctx, stats, "x", 0).Err())
	_, err = s.Stats(ctx)
	corrupt("counters that are a string", err)
	must(t, rdb.Rename(ctx, models, "kept").Err())
	must(t, rdb.Set(ctx, models, "x", 0).Err())
	corrupt("a set that is a string", snapshot())
	must(t, rdb.Rename(ctx, "kept", models).Err())
	if n := strings.Count(log.String(), "state store is corrupt"); n != 1 {
		t.Errorf("logged %d times:\n%s", n, log.String())
	}

	for _, name := range []string{strings.Repeat("n", 257), "a\nb", "a\xff", ""} {
		must(t, rdb.SAdd(ctx, "rv:{main}:hosts", name).Err())
		must(t, rdb.SAdd(ctx, models, name).Err())
		must(t, rdb.HSet(ctx, "rv:{main}:model:h:"+name, "state", "loaded").Err())
		snap, err := s.Snapshot(ctx)
		must(t, err)
		if len(snap.Hosts) != 1 || len(snap.Hosts["h"].Models) != 1 || snap.Hosts["h"].Models["m"] == nil {
			t.Errorf("%.20q: %+v", name, snap.Hosts)
		}
		if refused, _ := s.Refused(); strings.Join(refused, " ") != "names" {
			t.Errorf("%.20q: refused are %q", name, refused)
		}
		must(t, rdb.SRem(ctx, "rv:{main}:hosts", name).Err())
		must(t, rdb.SRem(ctx, models, name).Err())
	}
	must(t, snapshot())
	if refused, _ := s.Refused(); len(refused) > 0 {
		t.Errorf("refused are %q", refused)
	}
}

// TestForgedCounters checks that the pool does not adopt numbers far ahead of the clock, which no counter reaches.
func TestForgedCounters(t *testing.T) {
	s, err := state.Open(state.Options{URL: "redis://" + testenv.Redis(t), Timeout: 5 * time.Second})
	must(t, err)
	defer s.Close()
	const forged = "9223372036854775808" // 2^63, where Redis's scripts stop counting
	for _, key := range []string{"token", "rev"} {
		must(t, s.Client().Set(ctx, "rv:{main}:"+key, forged, 0).Err())
	}
	must(t, s.Client().HSet(ctx, "rv:{main}:host:h", "generation", forged).Err())
	soon := uint64(time.Now().Add(time.Hour).UnixMicro())
	first, _, err := s.Register(ctx, state.HostInfo{Name: "h", Boot: "b", Generation: 1 << 63})
	must(t, err)
	second, _, err := s.Register(ctx, state.HostInfo{Name: "h", Boot: "b", Generation: first})
	must(t, err)
	if first >= soon || second <= first {
		t.Errorf("generations %d and %d", first, second)
	}
	snap, err := s.Snapshot(ctx)
	must(t, err)
	if snap.Revision == 0 || snap.Revision >= soon {
		t.Errorf("revision %d", snap.Revision)
	}
}
