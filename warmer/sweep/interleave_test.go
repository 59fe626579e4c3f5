package sweep_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"reveille/infra/catalog"
	"reveille/infra/power"
	"reveille/infra/state"
	"reveille/testenv"
	"reveille/warmer/sweep"
)

// errKilled ends a sweep as a kill does: all its later calls fail.
var errKilled = errors.New("killed")

// stepped is a store that lets other processes act between any two calls of a sweep, and kills the sweep at one of
// them.
type stepped struct {
	*state.Store
	mu      sync.Mutex // wakes run concurrently with the sweep
	between func()
	killAt  int // number of the call that fails; 0 for none
	calls   int

	// The stop in progress, whose lease lives by the pool's clock. power.WithLease, which lives by the process', does
	// not see that clock.
	clock   func() int64
	away    bool // Redis does not respond to renewals
	renew   func() error
	renewed int64 // on clock, when the lease was last taken or renewed
	lost    bool
	cancel  context.CancelFunc
}

// keepLease does in one second of the pool's clock what power.WithLease does: a living sweep renews its lease, and
// cancels its driver's call when it cannot. A process that stands still for longer than its lease could do neither; no
// test can ask of it what no code can.
func (s *stepped) keepLease() {
	if s.renew == nil || s.lost || s.killAt > 0 && s.calls >= s.killAt {
		return
	}
	held := time.Duration(s.clock()-s.renewed) * time.Millisecond
	if held >= state.WakeLease/3 && !s.away {
		switch err := s.renew(); {
		case err == nil:
			s.renewed = s.clock()
		case errors.Is(err, state.ErrNotOwner), errors.Is(err, state.ErrGone):
			s.lost = true
		}
	}
	s.lost = s.lost || held >= state.WakeLease-power.LeaseMargin
	if s.lost && s.cancel != nil {
		s.cancel()
	}
}

func (s *stepped) step() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	if s.killAt > 0 && s.calls >= s.killAt {
		return errKilled
	}
	if s.between != nil {
		s.between()
	}
	return nil
}

func (s *stepped) Snapshot(ctx context.Context) (*state.Snapshot, error) {
	if err := s.step(); err != nil {
		return nil, err
	}
	return s.Store.Snapshot(ctx)
}

func (s *stepped) Acquire(ctx context.Context, w state.Want) (state.Acquired, error) {
	if err := s.step(); err != nil {
		return state.Acquired{}, err
	}
	return s.Store.Acquire(ctx, w)
}

func (s *stepped) ClaimWake(ctx context.Context, gateway, host string) (string, error) {
	if err := s.step(); err != nil {
		return "", err
	}
	return s.Store.ClaimWake(ctx, gateway, host)
}

func (s *stepped) CommitSleep(ctx context.Context, host, who string, revision uint64, active string) (string, error) {
	if err := s.step(); err != nil {
		return "", err
	}
	return s.Store.CommitSleep(ctx, host, who, revision, active)
}

func (s *stepped) CancelSleep(ctx context.Context, host, who, token string) error {
	if err := s.step(); err != nil {
		return err
	}
	return s.Store.CancelSleep(ctx, host, who, token)
}

func (s *stepped) BeginStop(ctx context.Context, host, who, token string) error {
	if err := s.step(); err != nil {
		return err
	}
	err := s.Store.BeginStop(ctx, host, who, token)
	if err == nil && s.clock != nil {
		s.renewed, s.lost = s.clock(), false
		s.renew = func() error { return s.HoldStop(ctx, host, who, token) }
	}
	return err
}

func (s *stepped) EndStop(ctx context.Context, host, who, token, failure string) error {
	if err := s.step(); err != nil {
		return err
	}
	return s.Store.EndStop(ctx, host, who, token, failure)
}

func (s *stepped) FailWake(ctx context.Context, host, token, code, message string) error {
	if err := s.step(); err != nil {
		return err
	}
	return s.Store.FailWake(ctx, host, token, code, message)
}

func (s *stepped) EndOverdueWake(ctx context.Context, host, token, code, message string) error {
	if err := s.step(); err != nil {
		return err
	}
	return s.Store.EndOverdueWake(ctx, host, token, code, message)
}

func (s *stepped) ReleaseStop(ctx context.Context, host, who, token string) error {
	if err := s.step(); err != nil {
		return err
	}
	return s.Store.ReleaseStop(ctx, host, who, token)
}

func (s *stepped) DropUnwaited(ctx context.Context, who, ticket string) error {
	if err := s.step(); err != nil {
		return err
	}
	return s.Store.DropUnwaited(ctx, who, ticket)
}

func (s *stepped) MarkLost(ctx context.Context, host string) error {
	if err := s.step(); err != nil {
		return err
	}
	return s.Store.MarkLost(ctx, host)
}

// steppedPower lets other processes act, or kills the sweep, around the driver's calls.
type steppedPower struct {
	switches
	s *stepped
}

func (w steppedPower) Wake(ctx context.Context, host string) error {
	if err := w.s.step(); err != nil {
		return err
	}
	return w.switches.Wake(ctx, host)
}

func (w steppedPower) Sleep(ctx context.Context, host string) error {
	if err := w.s.step(); err != nil {
		return err
	}
	ctx, w.s.cancel = context.WithCancel(ctx)
	defer w.s.cancel()
	if w.s.lost {
		w.s.cancel()
	}
	err := w.switches.Sleep(ctx, host)
	w.s.renew = nil
	return err
}

func (p *pool) steppedDeps(s *stepped) sweep.Deps {
	return sweep.Deps{Store: s, Power: func(*catalog.Catalog) sweep.Power { return steppedPower{switches{p}, s} }}
}

// TestNextSweepContinuesAKilledOne kills a sweep before each of its calls. The next sweeps finish what it started.
func TestNextSweepContinuesAKilledOne(t *testing.T) {
	onBoth(t, func(t *testing.T, p *pool) {
		for kill := 1; ; kill++ {
			p.boot("box", "chat")
			s := &stepped{Store: p.store, between: p.work, killAt: kill}
			p.after(time.Hour)
			_, err := sweep.Run(ctx, p.steppedDeps(s), settings) // unloads
			if err == nil {
				p.after(time.Minute)
				_, err = sweep.Run(ctx, p.steppedDeps(s), settings) // sleeps
			}
			whole := s.calls < kill
			for round := 0; p.on("box"); round++ {
				if round > 6 {
					t.Fatalf("killed at call %d: the host never sleeps (%v)", kill, err)
				}
				p.after(16 * time.Second)
				p.sweep(settings)
				p.work() // what the sweep queued, if it ended before its runner looked
			}
			p.after(16 * time.Second)
			p.sweep(settings)
			equal(t, fmt.Sprintf("state, killed at call %d", kill), p.field("host:box", "state"), "asleep")
			equal(t, "token", p.field("host:box", "sleep_token"), "")
			equal(t, "lease", p.field("wake:box", "token"), "")
			if whole {
				return
			}
		}
	})
}

// world is the pool with clients, for random interleavings with sweeps.
type world struct {
	*pool
	waiting map[string]bool // tickets with a client
	served  int
}

// ask is a client's request for a cold model: it attaches to or creates a ticket, and takes a power lease.
func (w *world) ask() {
	s, err := w.store.Snapshot(ctx)
	w.must(err)
	a, err := w.store.Acquire(ctx, state.Want{Gateway: "gw", Model: "chat", Host: "box", Revision: s.RevisionOf("box", "chat")})
	w.must(err) // nothing runs concurrently, so the revision holds
	if a.Status == "loaded" {
		w.served++
		return
	}
	w.waiting[a.Ticket] = true
	w.duty(a.WakeToken)
}

func (w *world) duty(token string) {
	if token != "" {
		w.must(switches{w.pool}.Wake(ctx, "box"))
	}
}

// renew does what the gateway does every few seconds.
func (w *world) renew() {
	for id := range w.waiting {
		st, err := w.store.Renew(ctx, "gw", state.Renewal{Ticket: id})
		w.must(err)
		if !st[0].Found {
			w.t.Fatalf("ticket %s is lost", id)
		}
		switch st[0].Record.State {
		case "ready":
			delete(w.waiting, id)
			w.served++
		case "failed", "dropped":
			w.t.Fatalf("ticket %s ended as %s: %s", id, st[0].Record.State, st[0].Record.Message)
		}
		w.duty(st[0].WakeToken)
	}
}

// TestNoRequestIsLost lets sweeps, kills of sweeps, runners, clients and time take random turns: anything may happen
// between two steps of a sweep. Every request must be served in the end, and no machine can be turned off with a model
// on it.
func TestNoRequestIsLost(t *testing.T) {
	addr := testenv.Redis(t)
	short := settings
	short.Idle, short.HostIdle, short.HostMinUp = time.Second, time.Second, 0
	short.Confirm = 20 * time.Millisecond
	slept := 0
	rapid.Check(t, func(rt *rapid.T) {
		w := &world{pool: newPool(rt, addr, models), waiting: map[string]bool{}}
		defer w.close()
		w.must(w.rdb.FlushAll(ctx).Err())
		w.publish(strings.Replace(models, "defaults: {idle: 10m}", "", 1)) // so that the sweep's idle time counts
		asked := 1
		w.ask()
		var acts []int // drawn in advance for each sweep, because nothing may be drawn in a sweep's goroutines
		act := func() {
			if len(acts) == 0 {
				return
			}
			n := acts[0]
			acts = acts[1:]
			switch n % 20 {
			case 0:
				asked++
				w.ask()
			case 1, 2, 3, 4, 5, 6, 7, 8, 9, 10:
				w.work()
			case 11, 12:
				w.renew()
			case 13:
				w.after(time.Duration(1+n/20) * time.Second)
				w.renew() // a live gateway keeps its leases
			case 14: // a lease ends unless it is renewed, and the host is woken for a client
				w.after(state.WakeLease + time.Second)
				asked++
				w.ask()
				w.work()
			}
		}
		w.onOff = func(string) { act(); act(); act() }
		for range rapid.IntRange(1, 8).Draw(rt, "sweeps") {
			w.after(2 * time.Second)
			acts = rapid.SliceOfN(rapid.IntRange(0, 20*20-1), 0, 40).Draw(rt, "acts")
			s := &stepped{
				Store: w.store, between: act, clock: w.clock.Load, away: rapid.IntRange(0, 3).Draw(rt, "away") == 0,
				killAt: rapid.SampledFrom([]int{0, 0, 3, 6, 9, 10, 11, 12, 14}).Draw(rt, "kill at"),
			}
			w.second = s.keepLease
			if _, err := sweep.Run(ctx, w.steppedDeps(s), short); err != nil && !errors.Is(err, errKilled) {
				rt.Fatal("sweep: ", err)
			}
			act()
		}
		w.onOff, w.second = nil, nil
		// Until the leases of dead sweeps expire, and 2 min until the runner of a machine may register that a sweep
		// ordered off and left. Everything else needs only turns.
		for round := 0; round < 33 && (round < 12 || len(w.waiting) > 0); round++ {
			w.after(4 * time.Second)
			w.renew()
			w.work()
		}
		w.renew()
		if w.wrong != "" {
			rt.Fatal(w.wrong)
		}
		slept += w.sleeps
		if len(w.waiting) > 0 {
			rt.Fatalf("%d of %d requests are still waiting: host %v", len(w.waiting), asked, w.rdb.HGetAll(ctx, "rv:{main}:host:box").Val())
		}
	})
	if slept == 0 {
		t.Error("no machine was ever turned off: the test tries nothing")
	}
}
