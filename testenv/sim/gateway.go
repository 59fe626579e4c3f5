package sim

import (
	"context"
	"fmt"
	"sync"
	"time"

	"reveille/gateway/scheduling"
	"reveille/infra/state"
	"reveille/testenv/check"
)

// gateway is one gateway over all its lives.
type gateway struct {
	w *world
	n int

	mu    sync.Mutex
	life  *gateLife
	boots int
}

// gateLife is a gateway from start to end.
type gateLife struct {
	id     string
	n      int
	gate   *scheduling.Gate
	mirror *state.Mirror
	store  *state.Store
	link   *link
	cancel context.CancelFunc
	dead   chan struct{} // closed when it died
	drains chan struct{} // closed when it stops in order
}

func newGateway(w *world, n int) *gateway { return &gateway{w: w, n: n} }

func (g *gateway) current() *gateLife {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.life
}

func (g *gateway) start() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.life != nil || g.w.isEnding() {
		return
	}
	g.boots++
	l := &gateLife{id: fmt.Sprintf("g%d-%d", g.n, g.boots), n: g.n, link: newLink(g.w.redis.Dial, false), dead: make(chan struct{}), drains: make(chan struct{})}
	store, err := g.w.store(l.link)
	if err != nil {
		panic(err) // the URL is a constant
	}
	l.store = store
	l.mirror = state.NewMirror(store, func(e state.Event) { l.gate.OnEvent(e) })
	power := g.w.power()
	l.gate = scheduling.New(scheduling.Config{
		SendBack: func(_ context.Context, host *state.HostRecord, model string, n int) error {
			return g.w.sendBack(l, host, model, n)
		},
		Store: store, Mirror: l.mirror, Waker: power, Stopper: power, Catalog: g.w.models, Gateway: l.id, Hold: g.w.scenario.hold(), WakeLimit: g.w.scenario.wakeLimit(),
	})
	ctx, cancel := context.WithCancel(context.Background())
	l.cancel = cancel
	g.life = l
	g.w.work.Go(func() {
		var wg sync.WaitGroup
		wg.Go(func() { l.mirror.Run(ctx) })
		wg.Go(func() { l.gate.Run(ctx) })
		wg.Go(func() { l.publish(ctx, g.w) })
		wg.Wait()
		_ = store.Close()
	})
}

// sendBack has a host's runner send back requests that wait for their turn at an engine.
func (w *world) sendBack(l *gateLife, host *state.HostRecord, model string, n int) error {
	r := w.runner(host.Addr)
	if r == nil || w.parted(l.n, r.n) {
		return errReset
	}
	life, conn := r.connect()
	if life == nil {
		return errReset
	}
	defer life.disconnect(conn)
	if f, ok := life.host.EngineOf(model).(*fake); ok && f.turns != nil {
		f.turns.SendBack(n)
	}
	return nil
}

// publish keeps the catalog in Redis, as a gateway does: at its start, after an edit, and when the pool has none.
func (l *gateLife) publish(ctx context.Context, w *world) {
	tick := time.NewTicker(2 * time.Second)
	defer tick.Stop()
	for done := ""; ; {
		if c := w.models(); done != c.Version || l.mirror.Snapshot().Catalog == "" {
			data, err := c.Marshal()
			if err != nil {
				panic(err) // a parsed catalog marshals
			}
			hosts := map[string]string{}
			for _, h := range c.Hosts {
				hosts[h.Name] = string(h.Driver)
			}
			if _, err := l.store.PutCatalog(ctx, c.Version, data, hosts); err == nil {
				done = c.Version
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// crash ends a life without a word.
func (g *gateway) crash() {
	g.mu.Lock()
	l := g.life
	g.life = nil
	g.mu.Unlock()
	if l == nil {
		return
	}
	g.w.record(check.Event{Kind: check.GatewayEnd, Gateway: l.id})
	l.link.kill()
	close(l.dead)
	l.cancel()
}

// stop ends a life in order: waiters are told, streams go on to their end.
func (g *gateway) stop() {
	g.mu.Lock()
	l := g.life
	g.life = nil
	g.mu.Unlock()
	if l != nil {
		close(l.drains)
		l.cancel()
	}
}

func (g *gateway) startAfter(d time.Duration) {
	time.AfterFunc(d, g.start)
}
