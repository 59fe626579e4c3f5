package sim

import (
	"context"
	"strconv"
	"sync"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/policy"
	"reveille/infra/state"
	"reveille/testenv/check"
	"reveille/warmer/sweep"
)

// warmer sweeps again and again, as a schedule does. Sweeps may overlap.
type warmer struct {
	w *world

	mu     sync.Mutex
	link   *link // nil before the first sweep, and after a kill
	store  *state.Store
	sweeps map[int]context.CancelFunc // in progress, by number
}

// run sweeps until the world ends.
func (m *warmer) run() {
	if m.w.scenario.Sweep == 0 {
		return
	}
	for n := 1; ; n++ {
		time.Sleep(m.w.scenario.Sweep)
		if m.w.isEnding() {
			return
		}
		ctx, store := m.begin(n)
		m.w.work.Go(func() {
			defer m.over(n)
			_, _ = sweep.Run(ctx, sweep.Deps{Store: sweepStore{store, m.w}, Power: func(*catalog.Catalog) sweep.Power { return m.w.power() }, Machines: m.w.billed}, sweep.Settings{
				SweepSettings: policy.SweepSettings{Idle: m.w.scenario.Idle, HostIdle: m.w.scenario.Idle}, Confirm: confirm, PowerCall: powerCall,
				WakeLimit: m.w.scenario.wakeLimit(), OrphanAfter: orphanAfter, ForgetAfter: forgetAfter, Location: time.UTC, ID: "sweep-" + strconv.Itoa(n),
			})
		})
	}
}

func (m *warmer) begin(n int) (context.Context, *state.Store) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.link == nil {
		var err error
		m.link = newLink(m.w.redis.Dial, true)
		if m.store, err = m.w.store(m.link); err != nil {
			panic(err) // the URL is a constant
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	m.sweeps[n] = cancel
	return ctx, m.store
}

func (m *warmer) over(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sweeps[n]()
	delete(m.sweeps, n)
}

// end ends the sweeps in progress. Unless told, they lose Redis as well.
func (m *warmer) end(told bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !told && m.link != nil {
		m.link.kill()
		_ = m.store.Close()
		m.link = nil
	}
	for _, cancel := range m.sweeps {
		cancel()
	}
}

// lose makes sweeps lose n replies of Redis after skip others.
func (m *warmer) lose(n, skip int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.link != nil {
		m.link.loseReplies(n, skip)
	}
}

// sweepStore tells the checker what a sweep is about to do.
type sweepStore struct {
	*state.Store
	w *world
}

// Acquire implements sweep.Store.
func (s sweepStore) Acquire(ctx context.Context, want state.Want) (state.Acquired, error) {
	if want.Unload { // For is 0 for a spare copy
		ms, _ := strconv.ParseInt(want.Fields["only_idle_ms"], 10, 64)
		s.w.record(check.Event{Kind: check.Unload, Host: want.Host, Model: want.Model, For: time.Duration(ms) * time.Millisecond})
	}
	return s.Store.Acquire(ctx, want)
}

// Forget implements sweep.Store.
func (s sweepStore) Forget(ctx context.Context, host string, limit time.Duration) error {
	err := s.Store.Forget(ctx, host, limit)
	if err == nil {
		s.w.record(check.Event{Kind: check.Forgotten, Host: host})
	}
	return err
}
