package host_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/recipe"
	"reveille/infra/state"
	"reveille/runner/host"
	"reveille/testenv"
	"reveille/testenv/kit"
)

// Redis is emptied in the middle of a load: engines stay, the load ends, and everything is registered again.
func TestHostRegistersAgainAfterRedisIsEmptied(t *testing.T) {
	onBoth(t, func(t *testing.T, addr string) {
		b := startOn(t, addr)
		b.ready(b.load("a"))
		pid := b.engines.of("a").pid
		gate := make(chan struct{})
		b.engines.gates["e"] = gate
		b.load("e")
		b.until("e loads", func() bool { return b.engines.starts("e") == 1 }) // its load has started in Redis
		before := b.host.View().Generation
		b.must(b.rdb.FlushAll(t.Context()).Err())
		b.until("registered with what it holds", func() bool {
			r := b.record("a")
			return r != nil && r.State == "loaded" && r.PID == pid && b.record("e") != nil
		})
		close(gate)
		b.until("e is loaded", func() bool { r := b.record("e"); return r != nil && r.State == "loaded" })
		b.publish(models)
		b.ready(b.load("e"))
		b.ready(b.load("i"))
		if g := b.host.View().Generation; g <= before || b.engines.starts("a") != 1 || b.engines.starts("e") != 1 {
			t.Errorf("generation %d after %d, %d and %d starts", g, before, b.engines.starts("a"), b.engines.starts("e"))
		}
	})
}

// Redis is unavailable while a load ends: the outcome is reported once it is back, and the model is reserved until
// then.
func TestOutcomeIsReportedWhenRedisIsBack(t *testing.T) {
	redis := testenv.Redis(t)
	flaky := testenv.NewFlaky(t, redis)
	b := startOn(t, redis, func(c *host.Config) {
		s, err := state.Open(state.Options{URL: "redis://" + flaky.Addr})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		c.Store, c.Reserve = s, time.Minute
	})
	gate := make(chan struct{})
	b.engines.gates["a"] = gate
	ticket := b.load("a")
	b.until("a loads", func() bool { return b.record("a") != nil })
	flaky.Refuse(true)
	flaky.Cut()
	close(gate)
	b.until("a is loaded", func() bool { return b.engines.of("a") != nil })
	time.Sleep(300 * time.Millisecond)
	other := b.load("b")
	flaky.Refuse(false)
	if r := b.outcome(ticket); r.State != "ready" {
		t.Fatalf("%+v", r)
	}
	time.Sleep(200 * time.Millisecond)
	if st := b.peek(other).Record.State; st != "queued" || b.engines.of("a") == nil {
		t.Fatalf("b is %s although a is reserved", st)
	}
	b.ready(ticket)
	b.ready(other)
}

func TestReplacedHostStops(t *testing.T) {
	b := start(t)
	b.ready(b.load("a"))
	b.busy("a") // will be cut
	other := b.open(2 * time.Second)
	_, _, err := other.Register(t.Context(), state.HostInfo{Name: "h", Boot: "boot-2", Addr: "127.0.0.1:2", Devices: "cpu", Limits: "1"})
	b.must(err)
	select {
	case err = <-b.ended:
		close(b.ended)
	case <-time.After(20 * time.Second):
		t.Fatal("the host goes on")
	}
	if !errors.Is(err, host.ErrReplaced) {
		t.Errorf("ended with %v", err)
	}
	s, err := b.store.Snapshot(t.Context())
	b.must(err)
	if h := s.Hosts["h"]; h.Fields["boot"] != "boot-2" || h.State != "ready" || b.engines.of("a") != nil {
		t.Errorf("%+v", h)
	}
}

// A failover that lost the registration looks like a fence at first, but is not. An unload that it brings back was of
// an earlier copy.
func TestRestoredOlderStateDoesNotReplaceTheHost(t *testing.T) {
	b := start(t)
	b.ready(b.load("a"))
	b.busy("a") // would be cut
	pid := b.engines.of("a").pid
	for id, kind := range map[string]string{"4": "load", "5": "unload"} {
		b.must(b.rdb.HSet(t.Context(), "rv:{main}:ticket:"+id, "host", "h", "model", "a", "kind", kind, "force", "1", "state", "queued").Err())
		b.must(b.rdb.RPush(t.Context(), "rv:{main}:queue:h", id).Err())
	}
	b.must(b.rdb.HSet(t.Context(), "rv:{main}:host:h", "generation", "7", "boot", "an older life").Err())
	b.must(b.rdb.Del(t.Context(), "rv:{main}:model:h:a", "rv:{main}:models:h").Err())
	b.until("registered again", func() bool { r := b.record("a"); return r != nil && r.PID == pid })
	b.failed("5", "model_not_loaded")
	b.busy("a")()
}

// A machine of a group restarts its runner after a failover that lost its claim of the slot. The slot's machine is an
// earlier one: the runner ends, so that it claims a slot again.
func TestRestartAfterTheClaimWasLost(t *testing.T) {
	b := start(t, func(c *host.Config) { c.Machine = "i-b" })
	b.cfg.Boot, b.cfg.Generation = "boot-2", b.host.View().Generation
	b.must(b.end())
	b.must(b.rdb.HSet(t.Context(), "rv:{main}:host:h", "generation", "7", "boot", "an older life", "machine", "i-a").Err())
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := host.New(b.cfg).Run(ctx); !errors.Is(err, host.ErrReplaced) {
		t.Errorf("ended with %v", err)
	}
}

// A failover lost the end of a ticket: the host reports it again, so the ticket does not stay in progress for ever.
func TestLostOutcomeIsReportedAgain(t *testing.T) {
	b := start(t)
	ticket := b.load("a")
	b.ready(ticket)
	time.Sleep(2500 * time.Millisecond) // until a snapshot is newer than the outcome
	ctx := t.Context()
	b.must(b.rdb.HSet(ctx, "rv:{main}:ticket:"+ticket, "state", "loading").Err())
	b.must(b.rdb.Persist(ctx, "rv:{main}:ticket:"+ticket).Err())
	b.must(b.rdb.SAdd(ctx, "rv:{main}:begun:h", ticket).Err())
	b.must(b.rdb.HSet(ctx, "rv:{main}:host:h", "loading", ticket).Err())
	b.ready(b.load("e")) // Redis considers the host busy until it registers
	if r := b.outcome(ticket); r.State != "ready" {
		t.Errorf("%+v", r)
	}
	if n := b.engines.starts("a"); n != 1 {
		t.Errorf("a was started %d times", n)
	}
}

func TestShutdownDrains(t *testing.T) {
	b := start(t, func(c *host.Config) { c.DrainTimeout = time.Minute })
	b.ready(b.load("a"))
	b.ready(b.load("e"))
	leave := b.busy("a")
	queued := b.load("b")
	unload := b.unload("a")
	b.stop()
	b.until("draining", func() bool {
		s, err := b.store.Snapshot(t.Context())
		return err == nil && s.Hosts["h"].State == "draining"
	})
	if _, refused := b.enter("e", ""); refused != "draining" {
		t.Errorf("refused: %q", refused)
	}
	seen := func() int64 {
		s, err := b.store.Snapshot(t.Context())
		b.must(err)
		return s.Hosts["h"].SeenMS
	}
	was := seen()
	b.until("beats go on", func() bool { return seen() > was })
	leave()
	b.must(b.end())
	s, err := b.store.Snapshot(t.Context())
	b.must(err)
	if h := s.Hosts["h"]; h.State != "asleep" || len(h.Models) != 0 {
		t.Errorf("%+v", h)
	}
	if r := b.outcome(unload); r.State != "ready" {
		t.Errorf("unload: %+v", r)
	}
	b.cfg.Boot = "boot-2"
	b.run()
	b.ready(queued) // its successor carries out what was queued
}

func TestShutdownEndsALoad(t *testing.T) {
	b := start(t)
	b.engines.gates["a"] = make(chan struct{})
	ticket := b.load("a")
	b.until("a loads", func() bool { return b.record("a") != nil })
	b.must(b.end())
	if st := b.peek(ticket).Record.State; st != "queued" {
		t.Errorf("the ticket is %s, want it back in the queue", st)
	}
	b.engines.mu.Lock()
	clear(b.engines.gates)
	b.engines.mu.Unlock()
	b.run()
	b.ready(ticket)
}

// waitingCheck checks models for as long as it may, as one does whose weights are pulled again.
type waitingCheck struct {
	host.Engines
	started chan struct{}
}

func (w waitingCheck) Check(ctx context.Context, _ *catalog.Model, _ *recipe.Recipe, _ recipe.Options) error {
	close(w.started)
	<-ctx.Done()
	return ctx.Err()
}

func TestShutdownEndsACheck(t *testing.T) {
	started := make(chan struct{})
	b := start(t, func(c *host.Config) { c.Engines = waitingCheck{c.Engines, started} })
	ticket := b.load("a")
	<-started
	b.must(b.end())
	if st := b.peek(ticket).Record.State; st != "queued" {
		t.Errorf("the ticket is %s, want it back in the queue", st)
	}
}

func TestChangedCatalogRetiresModels(t *testing.T) {
	b := start(t)
	for _, m := range []string{"a", "e", "i"} {
		b.ready(b.load(m))
	}
	gate := make(chan struct{})
	b.engines.gates["o"] = gate
	loading := b.load("o")
	b.until("o loads", func() bool { return b.record("o") != nil })
	pid, leave := b.engines.of("e").pid, b.busy("a")
	text := strings.Replace(models, "a: {type: llm, recipe: standin, device: cpu,", "a: {type: llm, recipe: standin, device: cpu, options: {ctx_size: 5},", 1)
	text = strings.Replace(text, "e: {type: embedding,", "e: {type: embedding, pin: true, idle: 1m,", 1)
	text = strings.Replace(text, "o: {type: audio, recipe: standin, device: npu, memory: 10}", "", 1)
	text = strings.Replace(text, "i: {type: image, recipe: standin, device: cpu, memory: 10}", "", 1)
	b.publish(text)
	b.until("i is gone, e pinned", func() bool { r := b.record("e"); return b.engines.of("i") == nil && r != nil && r.Pinned })
	if b.engines.of("a") == nil || b.engines.of("e").pid != pid {
		t.Error("a goes when it is done, e stays as it is")
	}
	leave()
	b.until("a is gone", func() bool { return b.engines.of("a") == nil })
	close(gate)
	b.outcome(loading)
	b.until("o is gone when it was loaded", func() bool { return b.engines.of("o") == nil })
	b.ready(b.load("a"))
	if o := b.engines.of("a").options; o["ctx_size"] != int64(5) {
		t.Errorf("%v", o)
	}
	_, err := b.store.PutCatalog(t.Context(), "feedfeedfeedfeed", []byte(`{"version":"no"}`), nil)
	b.must(err)
	b.ready(b.load("b")) // a catalog that cannot be parsed changes nothing
}

// A gateway asks for new models of its models file a moment before it has published the file.
func TestTicketWaitsForItsCatalog(t *testing.T) {
	b := start(t)
	early := b.load("new")
	time.Sleep(100 * time.Millisecond) // the runner must have seen the ticket by then, or the test shows nothing
	b.publish(strings.Replace(models, "models:", "models:\n  new: {type: llm, recipe: standin, device: cpu}", 1))
	b.ready(early)
}

// TestForeignAddressIsCorrected: a host whose record is given another address, such as its own earlier one, registers
// again.
func TestForeignAddressIsCorrected(t *testing.T) {
	t.Parallel() // mostly waits for the next look at everything
	b := start(t)
	was := b.host.View().Generation
	b.must(b.rdb.HSet(t.Context(), "rv:{main}:host:h", "addr", "127.0.0.1:2").Err())
	b.until("registered again", func() bool { return b.host.View().Generation > was })
	addr, err := b.rdb.HGet(t.Context(), "rv:{main}:host:h", "addr").Result()
	if b.must(err); addr != "127.0.0.1:1" {
		t.Errorf("address %s", addr)
	}
}

// A failover lost a record written a moment before: the host does not wait for its next look at everything.
func TestLostRecordIsWrittenAgain(t *testing.T) {
	b := start(t)
	ctx := t.Context()
	before, err := b.rdb.HGetAll(ctx, "rv:{main}:host:h").Result()
	b.must(err)
	b.ready(b.load("a"))
	b.must(b.rdb.Del(ctx, "rv:{main}:model:h:a", "rv:{main}:models:h").Err())
	b.must(b.rdb.HSet(ctx, "rv:{main}:host:h", "rev", before["rev"]).Err())
	kit.Within(t, 20*time.Second, "the record is there again", func() bool { return b.record("a") != nil })
	if n := b.engines.starts("a"); n != 1 {
		t.Errorf("a was started %d times", n)
	}
}
