package app

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"reveille/infra/policy"
	"reveille/infra/state"
	"reveille/testenv"
	"reveille/testenv/kit"
)

// machine is a host whose runner writes a line to a file instead of turning its machine off. The test is the sweep.
type machine struct {
	t     *testing.T
	store *state.Store
	off   string // the file
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	off := filepath.Join(t.TempDir(), "went off")
	return startMachine(t, off, `sh -c 'echo "$REVEILLE_HOST" >> "$0"' "`+off+`"`)
}

func startMachine(t *testing.T, off, command string) *machine {
	t.Helper()
	m := &machine{t: t, off: off}
	s := settings(t, testenv.Redis(t))
	s.SleepCommand = command
	store, err := state.Open(state.Options{URL: s.RedisURL, Secret: []byte(s.RunnerSecret), Timeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	m.store = store
	_, end := running(t, s)
	t.Cleanup(func() {
		if err := end(); err != nil {
			t.Error(err)
		}
	})
	return m
}

func (m *machine) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

// host is the record of the host, an empty one while there is none.
func (m *machine) host() *state.HostRecord {
	m.t.Helper()
	s, err := m.store.Snapshot(m.t.Context())
	m.must(err)
	if h := s.Hosts["h"]; h != nil {
		return h
	}
	return &state.HostRecord{}
}

func (m *machine) is(want policy.HostState) func() bool {
	return func() bool { return m.host().State == want }
}

// offs is how often the machine went off.
func (m *machine) offs() int {
	text, _ := os.ReadFile(m.off)
	return strings.Count(string(text), "h\n")
}

// asleep puts the host to sleep and returns the token of the sleep; its machine is still on.
func (m *machine) asleep() string {
	m.t.Helper()
	kit.Eventually(m.t, "the host is up", m.is(policy.Ready))
	kit.Eventually(m.t, "the commit of a sleep", func() bool {
		s, err := m.store.Snapshot(m.t.Context())
		m.must(err)
		_, err = m.store.CommitSleep(m.t.Context(), "h", "sweep", s.RevisionOf("h", ""), s.Hosts["h"].Fields["active_ms"])
		if err != nil && !errors.Is(err, state.ErrStale) && !errors.Is(err, state.ErrWanted) { // a ticket is still to end
			m.t.Fatal(err)
		}
		return err == nil
	})
	kit.Eventually(m.t, "its confirmation", m.is(policy.Asleep))
	return m.host().Fields["sleep_token"]
}

// The command runs once for each stop, and never before one: a confirmed sleep may still be called off.
func TestSleepCommandRunsOncePerStop(t *testing.T) {
	m := newMachine(t)
	ctx := t.Context()
	wake := func(claim func(context.Context, string, string) (string, error)) {
		t.Helper()
		if token, err := claim(ctx, "g", "h"); err != nil || token == "" {
			t.Fatalf("the duty to wake: %q, %v", token, err)
		}
		kit.Eventually(t, "the host is up again", m.is(policy.Ready))
	}

	token := m.asleep()
	s, err := m.store.Snapshot(ctx)
	m.must(err)
	_, err = m.store.Acquire(ctx, state.Want{Gateway: "g", Model: "m", Host: "h", Revision: s.RevisionOf("h", "m"), Unattended: true})
	m.must(err)
	if err := m.store.BeginStop(ctx, "h", "sweep", token); !errors.Is(err, state.ErrWanted) {
		t.Error("a stop of a host that is wanted:", err)
	}
	wake(m.store.ClaimWake)
	if n := m.offs(); n != 0 {
		t.Errorf("the machine went off %d times although nobody stopped it", n)
	}

	token = m.asleep()
	for round := 1; round <= 2; round++ {
		m.must(m.store.BeginStop(ctx, "h", "sweep", token))
		kit.Eventually(t, "the machine is off", func() bool { return m.offs() >= round })
		m.must(m.store.HoldStop(ctx, "h", "sweep", token))
		m.must(m.store.EndStop(ctx, "h", "sweep", token, "it is still on"))
	}
	wake(m.store.ForceWake)
	if n := m.offs(); n != 2 {
		t.Errorf("the machine went off %d times, want 2", n)
	}
}

// A command that fails, takes too long, or leaves the machine on does not keep the host from serving: the sleep is over,
// and its lease is free.
func TestFailedSleepServesAgain(t *testing.T) {
	for name, command := range map[string][]string{"fails": {"false"}, "takes too long": {"sleep", "60"}, "does nothing": {"true"}} {
		t.Run(name, func(t *testing.T) {
			m := startMachine(t, "", "")
			token := m.asleep()
			mirror := state.NewMirror(m.store, nil)
			ctx, stop := context.WithCancel(t.Context())
			var work sync.WaitGroup
			defer work.Wait()
			defer stop()
			h := m.host()
			work.Go(func() { mirror.Run(ctx) })
			s := &sleeper{
				host: "h", boot: h.Fields["boot"], argv: command, mirror: mirror, patience: 100 * time.Millisecond, log: slog.New(slog.DiscardHandler),
				fail: func(ctx context.Context, token string) error {
					return m.store.FailSleep(ctx, "h", h.Generation, token)
				},
			}
			work.Go(func() { s.run(ctx) })
			m.must(m.store.BeginStop(ctx, "h", "sweep", token))
			kit.Eventually(t, "the host serves again", m.is(policy.Ready))
			if err := m.store.HoldStop(ctx, "h", "sweep", token); !errors.Is(err, state.ErrGone) {
				t.Error("the stop goes on:", err)
			}
			if again := m.asleep(); again == token {
				t.Error("no new sleep")
			}
		})
	}
}

// The runner reports a sleep that failed without any help.
func TestSleepCommandFails(t *testing.T) {
	m := startMachine(t, "", "false")
	m.must(m.store.BeginStop(t.Context(), "h", "sweep", m.asleep()))
	kit.Eventually(t, "the host serves again", m.is(policy.Ready))
}

// Only a stop of this very runner's host counts, while nobody wants it awake.
func TestSleeperFollowsOnlyItsOwnStops(t *testing.T) {
	s := &sleeper{host: "h", boot: "mine", log: slog.New(slog.DiscardHandler)}
	for name, tc := range map[string]struct {
		state      policy.HostState
		boot, stop string
		want       string
	}{
		"a stop":        {"asleep", "mine", "7", "7"},
		"no stop":       {"asleep", "mine", "", ""},
		"wanted again":  {"waking", "mine", "7", ""},
		"another's":     {"asleep", "other", "7", ""},
		"not confirmed": {"draining", "mine", "7", ""},
	} {
		t.Run(name, func(t *testing.T) {
			me := &state.HostRecord{State: tc.state, Fields: map[string]string{"boot": tc.boot, "stop_ms": tc.stop}}
			if got := s.pendingStop(&state.Snapshot{Hosts: map[string]*state.HostRecord{"h": me}}); got != tc.want {
				t.Errorf("due is %q, want %q", got, tc.want)
			}
		})
	}
	if got := s.pendingStop(&state.Snapshot{}); got != "" {
		t.Errorf("a pool without the host: %q", got)
	}
}

func TestInvalidSleepCommandIsRefused(t *testing.T) {
	s := settings(t, "127.0.0.1:1")
	s.SleepCommand = `sh -c "exit`
	if err := Run(t.Context(), s, slog.New(slog.DiscardHandler), nil); err == nil || !strings.Contains(err.Error(), "--sleep-command: a quote is not closed") {
		t.Error(err)
	}
}
