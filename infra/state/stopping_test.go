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
				snap, err := s.Snapshot(ctx)
				must(b.t, err)
				token, err := s.CommitSleep(ctx, "h", "sweep", snap.RevisionOf("h", ""), snap.Hosts["h"].Fields["active_ms"])
				must(b.t, err)
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
