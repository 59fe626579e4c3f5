package host_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"reveille/infra/catalog"
	"reveille/infra/policy"
	"reveille/infra/state"
	"reveille/runner/host"
	"reveille/testenv"
	"reveille/testenv/kit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const models = `
models:
  a: {type: llm, recipe: standin, device: cpu, memory: 10}
  b: {type: llm, recipe: standin, device: cpu, memory: 10}
  c: {type: llm, recipe: standin, device: cpu, memory: 10}
  e: {type: embedding, recipe: standin, device: cpu, memory: 10}
  f: {type: embedding, recipe: standin, device: cpu, memory: 10}
  i: {type: image, recipe: standin, device: cpu, memory: 10}
  n: {type: llm, recipe: standin, device: npu, memory: 10}
  o: {type: audio, recipe: standin, device: npu, memory: 10}
  p: {type: reranking, recipe: standin, device: cpu, pin: true, memory: 10}
  q: {type: reranking, recipe: standin, device: cpu, memory: 10}
  huge: {type: tts, recipe: standin, device: cpu, memory: 1000000}
`

// bench is one host on one Redis, and a gateway that asks it for models.
type bench struct {
	*testing.T
	addr    string // of Redis as host and gateway see it
	rdb     *redis.Client
	store   *state.Store
	engines *engines
	host    *host.Host
	cfg     host.Config
	stop    context.CancelFunc
	ended   chan error
}

// onBoth runs a test on redis-server and on the embedded Redis.
func onBoth(t *testing.T, test func(t *testing.T, addr string)) {
	t.Run("redis", func(t *testing.T) { test(t, testenv.Redis(t)) })
	t.Run("miniredis", func(t *testing.T) { test(t, testenv.MiniRedis(t).Addr()) })
}

// start starts a host on its own Redis.
func start(t *testing.T, change ...func(*host.Config)) *bench {
	return startOn(t, testenv.Redis(t), change...)
}

func startOn(t *testing.T, addr string, change ...func(*host.Config)) *bench {
	b := &bench{T: t, addr: addr, rdb: redis.NewClient(&redis.Options{Addr: addr}), engines: newEngines()}
	t.Cleanup(func() { _ = b.rdb.Close() })
	b.store = b.open(2 * time.Second)
	b.publish(models)
	b.cfg = host.Config{
		Name: "h", Boot: "boot-1", Addr: "127.0.0.1:1", Limits: policy.Uniform(1),
		Hardware:  host.Hardware{Devices: policy.CPU | policy.NPU, Budget: map[policy.Devices]int64{policy.CPU: 100_000}},
		FairAfter: 50 * time.Millisecond, DrainTimeout: time.Second, Reserve: 300 * time.Millisecond,
		ClearTimeout: 10 * time.Second, Beat: 50 * time.Millisecond, Store: b.open(2 * time.Second), Engines: b.engines,
	}
	for _, c := range change {
		c(&b.cfg)
	}
	b.run()
	t.Cleanup(func() {
		b.end()
		b.engines.mu.Lock()
		defer b.engines.mu.Unlock()
		for _, f := range b.engines.faults {
			t.Error(f)
		}
	})
	return b
}

func (b *bench) open(timeout time.Duration) *state.Store {
	s, err := state.Open(state.Options{URL: "redis://" + b.addr, Timeout: timeout})
	b.must(err)
	b.Cleanup(func() { _ = s.Close() })
	return s
}

// run starts the host again.
func (b *bench) run() {
	b.host, b.ended = host.New(b.cfg), make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	b.stop = cancel
	go func() { b.ended <- b.host.Run(ctx) }()
	b.until("registered", func() bool { return b.host.View().Generation != 0 })
}

// end stops the host and returns the result of Run, or nil if it had already ended.
func (b *bench) end() error {
	b.stop()
	select {
	case err, open := <-b.ended:
		if open {
			close(b.ended)
		}
		return err
	case <-time.After(30 * time.Second):
		b.Fatal("the host does not end")
		return nil
	}
}

func (b *bench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// until waits for a condition. If it is not met in time, it shows the host.
func (b *bench) until(what string, ok func() bool) {
	b.Helper()
	defer func() {
		if b.Failed() {
			b.Logf("host: %+v", b.host.View())
		}
	}()
	kit.Eventually(b, what, ok)
}

// publish makes text the pool's catalog.
func (b *bench) publish(text string) {
	b.Helper()
	c, _, err := catalog.Parse("models.yaml", []byte(text))
	b.must(err)
	raw, err := c.Marshal()
	b.must(err)
	_, err = b.store.PutCatalog(b.Context(), c.Version, raw, nil)
	b.must(err)
}

// ask queues a ticket as a gateway does and returns its id.
func (b *bench) ask(w state.Want) string {
	b.Helper()
	w.Host = "h"
	if w.Gateway == "" {
		w.Gateway = "g"
	}
	w.Anew = true // a ticket even for a loaded model
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		s, err := b.store.Snapshot(context.Background())
		if err == nil {
			if w.Revision = s.RevisionOf(w.Host, w.Model); w.Unload {
				w.Revision = s.RevisionOf(w.Host, "")
			}
			var a state.Acquired
			if a, err = b.store.Acquire(context.Background(), w); err == nil {
				return a.Ticket
			}
		}
		if time.Now().After(end) {
			b.Fatal(err)
		}
	}
}

func (b *bench) load(model string) string { b.Helper(); return b.ask(state.Want{Model: model}) }

func (b *bench) unload(model string, fields ...string) string {
	b.Helper()
	w := state.Want{Model: model, Unload: true, OwnTicket: true, Unattended: true, Fields: map[string]string{}}
	for i := 0; i < len(fields); i += 2 {
		w.Fields[fields[i]] = fields[i+1]
	}
	return b.ask(w)
}

// peek reads a ticket and renews the gateway's wait for it.
func (b *bench) peek(ticket string) state.TicketStatus {
	b.Helper()
	st, err := b.store.Renew(context.Background(), "g", state.Renewal{Ticket: ticket})
	if err != nil || len(st) == 0 {
		return state.TicketStatus{}
	}
	return st[0]
}

// outcome waits for a ticket's end.
func (b *bench) outcome(ticket string) (r state.TicketRecord) {
	b.Helper()
	b.until("end of ticket "+ticket, func() bool {
		r = b.peek(ticket).Record
		return r.Done()
	})
	return r
}

// ready waits for a load and serves one of the gateway's requests, for which the model was loaded.
func (b *bench) ready(ticket string) state.TicketRecord {
	b.Helper()
	r := b.outcome(ticket)
	if r.State != "ready" {
		b.Fatalf("%s: %s %s %q", r.Model, r.State, r.Code, r.Message)
	}
	if leave, refused := b.enter(r.Model, ticket); refused == "" {
		leave()
	}
	return r
}

func (b *bench) failed(ticket, code string) state.TicketRecord {
	b.Helper()
	r := b.outcome(ticket)
	if r.State != "failed" || r.Code != code {
		b.Errorf("%s: %s %s %q, want %s", r.Model, r.State, r.Code, r.Message, code)
	}
	return r
}

// enter starts a request; leave ends it. A cut request leaves on its own.
func (b *bench) enter(model, ticket string) (leave func(), refused string) {
	var once sync.Once
	var f *fake
	var pass *host.Ref
	admitted := make(chan struct{})
	leave = func() {
		<-admitted
		once.Do(func() {
			f.open.Add(-1)
			pass.Release()
		})
	}
	pass, refused = b.host.AcquireModel(model, ticket, "g", 1, func(error) {
		<-admitted
		f.mayCut.Store(true)
		leave()
	})
	if refused != "" {
		return nil, refused
	}
	f = pass.Engine.(*fake)
	f.open.Add(1)
	close(admitted)
	return leave, ""
}

// busy starts a request that must be admitted.
func (b *bench) busy(model string) (leave func()) {
	b.Helper()
	leave, refused := b.enter(model, "")
	if refused != "" {
		b.Fatalf("%s: refused: %s", model, refused)
	}
	return leave
}

// holds checks which models the host's view lists.
func (b *bench) holds(want ...string) {
	b.Helper()
	var got []string
	for _, m := range b.host.View().Models {
		got = append(got, m.ID)
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		b.Errorf("host holds %v, want %v", got, want)
	}
}

// record returns a model's record in Redis, or nil.
func (b *bench) record(model string) *state.ModelRecord {
	s, err := b.store.Snapshot(context.Background())
	if err != nil || s.Hosts["h"] == nil {
		return nil
	}
	return s.Hosts["h"].Models[model]
}
