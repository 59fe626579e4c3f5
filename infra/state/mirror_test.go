package state_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"reveille/infra/state"
	"reveille/testenv"
	"reveille/testenv/kit"
)

// runMirror runs a mirror until the test ends.
func runMirror(t *testing.T, s *state.Store, onEvent func(state.Event)) *state.Mirror {
	t.Helper()
	m := state.NewMirror(s, onEvent)
	live, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { m.Run(live) })
	t.Cleanup(func() { stop(); wg.Wait() })
	return m
}

func (b *bench) patient() *state.Store {
	return b.open(state.Options{URL: b.url, Timeout: 2 * time.Second})
}

// TestMirrorFollowsEvents checks that a change shows up long before the periodic poll, and that a ticket's end
// carries its fields.
func TestMirrorFollowsEvents(t *testing.T) {
	onBoth(t, func(b *bench) {
		t, s := b.t, b.patient()
		var mu sync.Mutex
		kinds := map[string]int{}
		var last state.Event
		m := runMirror(t, s, func(e state.Event) {
			mu.Lock()
			defer mu.Unlock()
			kinds[e.Kind]++
			if e.State == "ready" && e.Kind == "ticket" {
				last = e
			}
		})
		kit.Eventually(t, "subscribed", func() bool { mu.Lock(); defer mu.Unlock(); return kinds["sync"] > 0 })
		changed := m.Changed()
		g := register(t, s, "h", nil)
		kit.Eventually(t, "host in the mirror", func() bool { return m.Snapshot().Hosts["h"] != nil })
		<-changed
		a := acquire(t, s, want(t, s, "gw", "m", "h"))
		_, err := s.Finish(ctx, "h", g, a.Ticket, state.Outcome{Fields: map[string]string{"load_ms": "7"}})
		must(t, err)
		must(t, s.Set(ctx, state.Pins, "m", "1"))
		kit.Eventually(t, "all kinds of event", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return kinds["host"] > 0 && kinds["ticket"] > 1 && kinds["settings"] > 0
		})
		mu.Lock()
		defer mu.Unlock()
		r := last.Record()
		equal(t, "record of the end", fmt.Sprint(r.ID, r.Model, r.Host, r.State, r.LoadMS), fmt.Sprint(a.Ticket, "m", "h", "ready", 7))
		if last.Rev == 0 {
			t.Error("event without its revision")
		}
	})
}

// TestMirrorRepairsWhatEventsMissed checks that the periodic read finds an unpublished change.
func TestMirrorRepairsWhatEventsMissed(t *testing.T) {
	t.Parallel() // mostly waits for the polling interval
	b := newBench(t, testenv.MiniRedis(t).Addr())
	m := runMirror(t, b.patient(), nil)
	kit.Eventually(t, "first snapshot", func() bool { return !m.Snapshot().Taken.IsZero() })
	must(t, b.rdb.SAdd(ctx, prefix+"hosts", "quiet").Err())
	kit.Eventually(t, "the quiet change", func() bool { return m.Snapshot().Hosts["quiet"] != nil })
	equal(t, "state of a host without a record", m.Snapshot().Hosts["quiet"].State, "asleep")
}

// TestLargeMirrorRepairsWhatEventsMissed checks the same for a pool whose hosts are not all read each time.
func TestLargeMirrorRepairsWhatEventsMissed(t *testing.T) {
	t.Parallel() // mostly waits for the polling interval
	b := newBench(t, testenv.MiniRedis(t).Addr())
	s := b.patient()
	for i := range 40 {
		register(t, s, fmt.Sprint("h", i), nil)
	}
	m := runMirror(t, s, nil)
	kit.Eventually(t, "first snapshot", func() bool { return m.Snapshot().Large() })
	must(t, b.rdb.HSet(ctx, prefix+"host:h7", "error", "changed", "rev", m.Snapshot().Revision+1).Err())
	kit.Eventually(t, "a change without an event", func() bool { return m.Snapshot().Hosts["h7"].Error == "changed" })
	must(t, b.rdb.SAdd(ctx, prefix+"hosts", "quiet").Err())
	must(t, b.rdb.SRem(ctx, prefix+"hosts", "h8").Err())
	kit.Eventually(t, "a host that came and one that went", func() bool {
		hosts := m.Snapshot().Hosts
		return hosts["quiet"] != nil && hosts["h8"] == nil
	})
}

// TestHostMirror checks that a host's mirror knows only its host and receives no other host's events.
func TestHostMirror(t *testing.T) {
	onBoth(t, func(b *bench) {
		t, s := b.t, b.patient()
		register(t, s, "far", nil)
		g := register(t, s, "h", nil)
		var heard atomic.Int32
		m := state.NewHostMirror(s, "h", func(e state.Event) {
			if e.Host == "far" {
				t.Errorf("received an event of another host: %+v", e)
			}
			heard.Add(1)
		})
		live, stop := context.WithCancel(ctx)
		var wg sync.WaitGroup
		wg.Go(func() { m.Run(live) })
		t.Cleanup(func() { stop(); wg.Wait() })
		kit.Eventually(t, "first snapshot", func() bool { return heard.Load() > 0 && m.Snapshot().Hosts["h"] != nil })
		acquire(t, s, want(t, s, "gw", "m", "far"))
		acquire(t, s, want(t, s, "gw", "n", "h"))
		kit.Eventually(t, "a ticket in the mirror", func() bool { return len(m.Snapshot().Hosts["h"].Queue) == 1 })
		equal(t, "hosts", len(m.Snapshot().Hosts), 1)
		before := heard.Load()
		must(t, s.Set(ctx, state.Pins, "m", "1"))
		kit.Eventually(t, "a change of the settings", func() bool { return heard.Load() > before })

		must(t, b.rdb.HSet(ctx, prefix+"host:h", "error", "changed", "rev", m.Snapshot().Revision+1).Err()) // without an event
		revision, _, err := s.Beat(ctx, "h", g, false, nil)
		must(t, err)
		m.ExpectRevision(revision)
		kit.Eventually(t, "what the beat told of", func() bool { return m.Snapshot().Hosts["h"].Error == "changed" })
	})
}

// TestMirrorOutlivesRedis kills Redis, which returns empty at the same address.
func TestMirrorOutlivesRedis(t *testing.T) {
	server := testenv.StartRedis(t)
	b := newBench(t, server.Addr)
	s := b.patient()
	var syncs atomic.Int32
	m := runMirror(t, s, func(e state.Event) {
		if e.Kind == "sync" {
			syncs.Add(1)
		}
	})
	register(t, s, "before", nil)
	kit.Eventually(t, "host in the mirror", func() bool { return m.Snapshot().Hosts["before"] != nil })
	server.Kill()
	equal(t, "the mirror keeps its copy", m.Snapshot().Hosts["before"] != nil, true)
	server.Restart()
	kit.Eventually(t, "subscribed anew", func() bool { return syncs.Load() >= 2 })
	kit.Eventually(t, "the loss is seen", func() bool { return m.Snapshot().Epoch == "" && len(m.Snapshot().Hosts) == 0 })
	kit.Eventually(t, "calls go through", func() bool {
		_, _, err := s.Register(ctx, state.HostInfo{Name: "after"})
		return err == nil
	})
	kit.Eventually(t, "host in the mirror", func() bool { return m.Snapshot().Hosts["after"] != nil })
}

// TestMirrorReadsTogether: calls that come while Redis takes its time share one read, and each gets its host.
func TestMirrorReadsTogether(t *testing.T) {
	server := testenv.StartRedis(t)
	b := newBench(t, server.Addr)
	s := b.open(state.Options{URL: b.url})
	host := func(i int) string { return fmt.Sprint("h", i) }
	for i := range 40 {
		register(t, s, host(i), nil)
	}
	m := state.NewMirror(s, nil)
	_, err := m.Refresh(ctx)
	must(t, err)
	must(t, b.rdb.ConfigResetStat(ctx).Err())
	server.Freeze()
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			snap, err := m.RefreshHosts(ctx, []string{host(i)})
			if err != nil || snap.Hosts[host(i)] == nil {
				t.Errorf("%s: %v", host(i), err)
			}
		})
	}
	time.Sleep(200 * time.Millisecond) // most have asked
	server.Thaw()
	wg.Wait()
	stats := b.rdb.Info(ctx, "commandstats").Val()
	_, scripts, _ := strings.Cut(stats, "cmdstat_evalsha:calls=")
	scripts, _, _ = strings.Cut(scripts, ",")
	if n, err := strconv.Atoi(scripts); err != nil || n < 1 || n > 10 {
		t.Errorf("40 calls took %q scripts, %v", scripts, err)
	}
}

// TestMirrorNeverGoesBack checks that with concurrent refreshes the current snapshot is never older than one already
// returned.
func TestMirrorNeverGoesBack(t *testing.T) {
	b := newBench(t, testenv.Redis(t))
	s := b.patient()
	g := register(t, s, "h", nil)
	m := state.NewMirror(s, nil)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			var last uint64
			for i := range 50 {
				if err := s.PutModels(ctx, "h", g, []state.ModelPut{{ID: "m", Fields: map[string]string{"used_age_ms": "0", "type": "llm", "pid": fmt.Sprint(i)}}}); err != nil {
					t.Error(err)
				}
				refresh := m.Refresh
				if i%2 == 1 {
					refresh = func(ctx context.Context) (*state.Snapshot, error) { return m.RefreshHosts(ctx, []string{"h"}) }
				}
				snap, err := refresh(ctx)
				if err != nil {
					t.Error(err)
					return
				}
				now := snap.RevisionOf("h", "")
				if now <= last {
					t.Errorf("revision %d after %d and a write", now, last)
				}
				last = now
			}
		})
	}
	wg.Wait()
	snap, err := s.Snapshot(ctx)
	must(t, err)
	if _, err := m.Refresh(ctx); err != nil || m.Snapshot().Revision != snap.Revision {
		t.Fatalf("mirror at %d, Redis at %d, %v", m.Snapshot().Revision, snap.Revision, err)
	}
}
