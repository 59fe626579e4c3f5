package host_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"reveille/infra/state"
	"reveille/runner/host"
)

func (b *bench) state() string {
	s, err := b.store.Snapshot(context.Background())
	if err != nil || s.Hosts["h"] == nil {
		return ""
	}
	return string(s.Hosts["h"].State)
}

// A host whose machine is reclaimed drains and stays draining: open requests continue, and everything else is refused
// immediately.
func TestInterruptedHostDrains(t *testing.T) {
	onBoth(t, func(t *testing.T, addr string) {
		b := startOn(t, addr)
		b.ready(b.load("a"))
		b.ready(b.load("i"))
		leave := b.busy("a")
		b.engines.gates["e"] = make(chan struct{})
		underway := b.load("e")
		b.until("e loads", func() bool { return b.record("e") != nil })
		waits := b.load("b")
		b.host.Interrupt(time.Now().Add(time.Hour))
		b.host.Interrupt(time.Now()) // only the first call counts
		b.until("draining", func() bool { return b.state() == "draining" })
		b.failed(underway, "host_interrupted")
		b.failed(waits, "host_interrupted")
		b.failed(b.load("c"), "host_interrupted") // also a load that arrives later
		if _, refused := b.enter("i", ""); refused != "draining" {
			t.Errorf("refused: %q", refused)
		}
		b.until("what is idle is gone", func() bool { return b.engines.of("i") == nil })
		if b.engines.of("a") == nil {
			t.Error("a was stopped under a request")
		}
		leave()
		b.until("a is gone", func() bool { return b.record("a") == nil && b.engines.of("a") == nil })
		b.failed(b.load("a"), "host_interrupted")
		if s := b.state(); s != "draining" {
			t.Errorf("the host is %s with nothing open, want draining until its time", s)
		}
		b.must(b.end()) // the machine stops early
		if s := b.state(); s != "asleep" {
			t.Errorf("the host is %s in the end", s)
		}
		if n := b.host.Stats(); n.Clears != 0 {
			t.Errorf("%+v", n)
		}
	})
}

// cutting starts a request that reports why it was cut and then leaves.
func (b *bench) cutting(model string) <-chan error {
	b.Helper()
	why := make(chan error, 1)
	passes := make(chan *host.Ref, 1)
	p, refused := b.host.AcquireModel(model, "", "g", 0, func(cause error) {
		p := <-passes
		p.Engine.(*fake).mayCut.Store(true)
		p.Release()
		why <- cause
	})
	if refused != "" {
		b.Fatalf("%s: refused: %s", model, refused)
	}
	passes <- p
	return why
}

func (b *bench) cutWith(why <-chan error, want error) {
	b.Helper()
	select {
	case err := <-why:
		if !errors.Is(err, want) {
			b.Errorf("cut with %v, want %v", err, want)
		}
	case <-time.After(20 * time.Second):
		b.Error("not cut")
	}
}

// At the deadline, open requests are cut with the reason, and Run returns.
func TestInterruptedHostCutsRequestsAtItsDeadline(t *testing.T) {
	b := start(t, func(c *host.Config) { c.DrainTimeout = time.Hour })
	b.ready(b.load("a"))
	why := b.cutting("a")
	b.host.Interrupt(time.Now().Add(100 * time.Millisecond))
	b.cutWith(why, host.ErrInterrupted)
	select {
	case err := <-b.ended:
		close(b.ended)
		b.must(err)
	case <-time.After(20 * time.Second):
		t.Fatal("the host goes on")
	}
	if s := b.state(); s != "asleep" {
		t.Errorf("the host is %s in the end", s)
	}
}

// An interrupted runner that is stopped gets no more time than any other.
func TestStoppedInterruptedHostGetsNoExtraTime(t *testing.T) {
	b := start(t, func(c *host.Config) { c.DrainTimeout = 50 * time.Millisecond })
	b.ready(b.load("a"))
	why := b.cutting("a")
	b.host.Interrupt(time.Now().Add(time.Hour))
	b.until("draining", func() bool { return b.state() == "draining" })
	b.stop()
	b.cutWith(why, host.ErrCut)
	b.must(b.end())
}

// Operators' unloads succeed on such a host, and may still cut requests.
func TestInterruptedHostAcceptsUnloads(t *testing.T) {
	b := start(t)
	b.ready(b.load("a"))
	why := b.cutting("a")
	b.host.Interrupt(time.Now().Add(time.Hour))
	b.until("draining", func() bool { return b.state() == "draining" })
	unload := b.unload("a", "force", "1")
	b.cutWith(why, host.ErrCut)
	if r := b.outcome(unload); r.State != "ready" {
		t.Errorf("%+v", r)
	}
}

// An interruption may arrive before Redis is available.
func TestHostIsInterruptedBeforeRedisIsAvailable(t *testing.T) {
	b := start(t)
	b.must(b.end())
	b.cfg.Boot = "boot-2"
	b.host = host.New(b.cfg)
	b.host.Interrupt(time.Now().Add(time.Hour))
	ctx, stop := context.WithCancel(context.Background())
	b.stop, b.ended = stop, make(chan error, 1)
	go func() { b.ended <- b.host.Run(ctx) }()
	b.until("draining", func() bool { return b.state() == "draining" })
	b.failed(b.ask(state.Want{Model: "a"}), "host_interrupted")
}
