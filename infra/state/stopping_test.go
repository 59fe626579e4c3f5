package state_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"reveille/infra/state"
)

// A request between an accepted sleep and the machine's end finds no host: the dying runner does not register, and the
// power lease stays with its holder until the machine is off or another boot registers.
func TestDyingRunnerDoesNotRegister(t *testing.T) {
	ctx := context.Background()
	for name, end := range map[string]func(*bench, *state.Store, string) (boot string){
		"the machine was off and boots": func(_ *bench, s *state.Store, _ string) string { return "b2" },
		"the machine was off and resumes": func(b *bench, s *state.Store, token string) string {
			must(b.t, s.EndStop(ctx, "h", "sweep", token, ""))
			return "b1"
		},
		"the driver then refused": func(b *bench, s *state.Store, token string) string {
			must(b.t, s.EndStop(ctx, "h", "sweep", token, "not permitted"))
			return "b1"
		},
		"the machine never went off": func(b *bench, s *state.Store, _ string) string {
			b.after(121 * time.Second)
			return "b1"
		},
	} {
		t.Run(name, func(t *testing.T) {
			onBoth(t, func(b *bench) {
				s := b.store()
				info := state.HostInfo{Name: "h", Boot: "b1", Devices: "cpu"}
				g, _, err := s.Register(ctx, info)
				must(b.t, err)
				info.Generation, info.Owned = g, g
				token := commitSleep(b, s)
				must(b.t, s.ConfirmSleep(ctx, "h", g, token, false))
				must(b.t, s.BeginStop(ctx, "h", "sweep", token))
				refused := func(when string) {
					b.t.Helper()
					if _, _, err := s.Register(ctx, info); !errors.Is(err, state.ErrStopping) {
						b.t.Fatalf("registration %s: %v, want ErrStopping", when, err)
					}
					_, _, err := s.Beat(ctx, "h", g, false, nil)
					must(b.t, err)
				}
				refused("while the driver works")
				must(b.t, s.ReleaseStop(ctx, "h", "sweep", token))
				equal(b.t, "token of the sleep", b.field("host:h", "sleep_token"), token)
				asleep := name == "the machine was off and resumes" || name == "the driver then refused"
				if asleep {
					info.Boot = end(b, s, token)
				}
				a := acquire(b.t, s, want(b.t, s, "gw", "m", "h"))
				if a.WakeToken == "" {
					b.t.Fatal("nobody wakes the host")
				}
				if !asleep {
					refused("of a host that is to be woken")
					must(b.t, s.RenewWake(ctx, "h", a.WakeToken))
					info.Boot = end(b, s, token)
				}
				if info.Boot != "b1" {
					info.Owned = 0
				}
				_, _, err = s.Register(ctx, info)
				must(b.t, err)
				equal(b.t, "state", b.field("host:h", "state"), "ready")
			})
		})
	}
}

// commitSleep begins a sleep of the host h by a sweep.
func commitSleep(b *bench, s *state.Store) (token string) {
	b.t.Helper()
	ctx := context.Background()
	snap, err := s.Snapshot(ctx)
	must(b.t, err)
	token, err = s.CommitSleep(ctx, "h", "sweep", snap.RevisionOf("h", ""), snap.Hosts["h"].Fields["active_ms"])
	must(b.t, err)
	return token
}

// A runner that could not turn its machine off has its host ready again at once, also if the host is wanted meanwhile.
func TestFailSleep(t *testing.T) {
	ctx := context.Background()
	onBoth(t, func(b *bench) {
		s := b.store()
		info := state.HostInfo{Name: "h", Boot: "b1", Devices: "cpu"}
		g, _, err := s.Register(ctx, info)
		must(b.t, err)
		info.Generation, info.Owned = g, g
		sleep := func(generation uint64) (token string) {
			b.t.Helper()
			token = commitSleep(b, s)
			if err := s.FailSleep(ctx, "h", generation, token); !errors.Is(err, state.ErrGone) {
				b.t.Fatal("a sleep that is not confirmed:", err)
			}
			must(b.t, s.ConfirmSleep(ctx, "h", generation, token, false))
			must(b.t, s.BeginStop(ctx, "h", "sweep", token))
			return token
		}
		token := sleep(g)
		a := acquire(b.t, s, want(b.t, s, "gw", "m", "h"))
		equal(b.t, "wake while the sweep holds the stop", a.WakeToken, "")
		if err := s.FailSleep(ctx, "h", g+1, token); !errors.Is(err, state.ErrFenced) {
			b.t.Fatal("another runner:", err)
		}
		must(b.t, s.FailSleep(ctx, "h", g, token))
		equal(b.t, "state", b.field("host:h", "state"), "ready")
		equal(b.t, "sleep", b.field("host:h", "sleep_token")+b.field("host:h", "stop_ms")+b.field("wake:h", "token"), "")
		for what, err := range map[string]error{
			"hold": s.HoldStop(ctx, "h", "sweep", token), "end": s.EndStop(ctx, "h", "sweep", token, ""), "again": s.FailSleep(ctx, "h", g, token),
		} {
			if !errors.Is(err, state.ErrGone) {
				b.t.Errorf("%s: %v", what, err)
			}
		}
		must(b.t, s.Begin(ctx, "h", g, a.Ticket, state.NPUSeat{})) // the load that waited
		_, err = s.Finish(ctx, "h", g, a.Ticket, state.Outcome{Failed: true})
		must(b.t, err)

		token = sleep(g) // whose sweep leaves it
		must(b.t, s.ReleaseStop(ctx, "h", "sweep", token))
		if a := acquire(b.t, s, want(b.t, s, "gw", "m", "h")); a.WakeToken == "" {
			b.t.Fatal("nobody wakes the host")
		}
		if _, _, err := s.Register(ctx, info); !errors.Is(err, state.ErrStopping) {
			b.t.Fatal("registration while the machine may be going off:", err)
		}
		must(b.t, s.FailSleep(ctx, "h", g, token))
		_, _, err = s.Register(ctx, info)
		must(b.t, err)
		equal(b.t, "state", b.field("host:h", "state"), "ready")
	})
}
