package host_test

import (
	"errors"
	"io/fs"
	"strings"
	"testing"
	"time"

	"reveille/infra/policy"
	"reveille/infra/rpc"
	"reveille/infra/state"
	"reveille/runner/engine"
	"reveille/runner/host"
)

func TestLoadServesAndIsRecorded(t *testing.T) {
	onBoth(t, func(t *testing.T, addr string) {
		b := startOn(t, addr)
		b.engines.took["a"] = 1 << 20
		if _, refused := b.enter("a", ""); refused != rpc.RefusedNotLoaded {
			t.Errorf("before the load: %q", refused)
		}
		b.ready(b.load("a"))
		leave := b.busy("a")
		defer leave()
		b.until("record with one open request", func() bool {
			r := b.record("a")
			return r != nil && r.State == "loaded" && r.PID == b.engines.of("a").pid && r.InFlight == 1 && r.Type == "llm"
		})
		if text := b.record("a").Fields["plan"]; !strings.Contains(text, `"measured":1048576`) {
			t.Errorf("what the engine took is missing: %s", text)
		}
	})
}

// Rules 1 and 2: the least recently used model of the type is evicted; other types stay.
func TestLeastRecentlyUsedModelIsEvicted(t *testing.T) {
	limits, _ := policy.ParseLimits("2 1")
	b := start(t, func(c *host.Config) { c.Limits = limits })
	for _, m := range []string{"e", "a", "b"} {
		b.ready(b.load(m))
	}
	b.busy("a")() // a is now used after b
	if r := b.ready(b.load("c")); r.Evicted != "b" {
		t.Errorf("evicted %q, want b", r.Evicted)
	}
	b.holds("a", "c", "e")
	if r := b.record("b"); r != nil {
		t.Errorf("record of b stays: %+v", r)
	}
}

func TestNothingIsEvictedWithoutALimit(t *testing.T) {
	b := start(t, func(c *host.Config) { c.Limits = policy.Uniform(-1) })
	for _, m := range []string{"a", "b", "c"} {
		b.ready(b.load(m))
	}
	b.holds("a", "b", "c")
}

// Rule 3: one model on the NPU, whatever its type.
func TestNPUHoldsOneModel(t *testing.T) {
	b := start(t)
	b.ready(b.load("n"))
	b.ready(b.load("o"))
	b.holds("o")
	if v, _ := b.rdb.Get(t.Context(), "rv:{main}:npu:h").Result(); v != "o" {
		t.Errorf("NPU holder %q, want o", v)
	}
}

// Rules 4 and 5: a load waits for a busy victim and finally closes it; loads that need not wait pass.
func TestLoadWaitsForABusyVictim(t *testing.T) {
	b := start(t)
	b.ready(b.load("a"))
	leave := b.busy("a")
	waiting := b.load("b")
	b.until("a is shut", func() bool { return b.host.View().Models[0].Closed })
	if _, refused := b.enter("a", ""); refused != rpc.RefusedNotLoaded {
		t.Errorf("shut model: %q", refused)
	}
	b.ready(b.load("e"))
	if st := b.peek(waiting).Record.State; st != "queued" {
		t.Fatalf("b is %s while a serves", st)
	}
	leave()
	b.ready(waiting)
	b.holds("b", "e")
}

// A model closed for a load that nobody wants any more opens again.
func TestClosedModelReopensWhenItsLoadIsDropped(t *testing.T) {
	b := start(t)
	b.ready(b.load("a"))
	leave := b.busy("a")
	defer leave()
	waiting := b.load("b")
	b.until("a is shut", func() bool { return b.host.View().Models[0].Closed })
	b.must(b.store.ReleaseTicket(t.Context(), "g", waiting, false))
	b.until("a is open", func() bool { return !b.host.View().Models[0].Closed })
	b.busy("a")()
	if b.engines.starts("b") != 0 {
		t.Error("b was loaded for nobody")
	}
}

var errLoad = errors.New("engine said: cannot open /srv/models/secret.gguf at 10.1.2.3:99")

// Rule 6: everything is unloaded, busy models when they are done, and the load is tried once more.
func TestFailedLoadClearsTheHost(t *testing.T) {
	b := start(t)
	b.ready(b.load("a"))
	b.ready(b.load("e"))
	leave := b.busy("e")
	b.engines.fails["i"] = []error{errLoad}
	ticket := b.load("i")
	b.until("a is gone", func() bool { return b.engines.of("a") == nil })
	time.Sleep(200 * time.Millisecond) // several looks of the policy at e, which is closed
	if _, refused := b.enter("e", ""); refused == "" {
		t.Error("e takes requests while the host is cleared")
	}
	if b.engines.starts("i") != 1 {
		t.Error("retried before the host was clear")
	}
	leave()
	if r := b.ready(ticket); r.Evicted != "a,e" {
		t.Errorf("evicted %q", r.Evicted)
	}
	b.holds("i")
	if s := b.host.Stats(); s.Clears != 1 || s.LoadFailures != 1 || b.engines.starts("i") != 2 {
		t.Errorf("%+v, %d starts", s, b.engines.starts("i"))
	}
}

func TestLoadThatFailsTwiceClearsNoMore(t *testing.T) {
	b := start(t)
	b.ready(b.load("a"))
	b.engines.fails["i"] = []error{errLoad, errLoad, errLoad}
	r := b.failed(b.load("i"), "model_load_error")
	if strings.Contains(r.Message, "/srv") || strings.Contains(r.Message, "10.1.2.3") || !strings.Contains(r.Message, "secret.gguf") {
		t.Errorf("message %q", r.Message)
	}
	b.holds()
	b.ready(b.load("a"))
	b.failed(b.load("i"), "model_load_error")
	b.holds("a") // it must not clear the host again so soon
	b.ready(b.load("i"))
	if s := b.host.Stats(); s.Clears != 1 || b.engines.starts("i") != 4 {
		t.Errorf("%+v, %d starts", s, b.engines.starts("i"))
	}
}

// While a failed load waits for a busy model, the model takes new requests for --fair-after.
func TestBusyModelServesBeforeItIsCleared(t *testing.T) {
	b := start(t, func(c *host.Config) { c.FairAfter = 10 * time.Second })
	b.ready(b.load("a"))
	b.ready(b.load("e"))
	leave := b.busy("e")
	b.engines.fails["i"] = []error{errLoad}
	ticket := b.load("i")
	b.until("a is gone", func() bool { return b.engines.of("a") == nil })
	next := b.busy("e")
	leave()
	b.busy("e")()
	next()
	b.ready(ticket)
	b.holds("i")
}

// Failures that clearing the host cannot fix clear nothing.
func TestFatalFailureClearsNothing(t *testing.T) {
	b := start(t)
	b.ready(b.load("a"))
	for err, code := range map[error]string{
		&engine.LoadError{Kind: engine.ErrFileNotFound, Detail: "x.gguf"}:                       "model_file_not_found",
		&host.Error{Code: rpc.CodeModelLoadError, Message: "weights are far away", Final: true}: rpc.CodeModelLoadError,
		&engine.LoadError{Kind: engine.ErrRefused, Detail: "see its log"}:                       rpc.CodeModelLoadError,
		&engine.LoadError{Kind: engine.ErrNoProgram, Detail: "recipe llamacpp: no server"}:      rpc.CodeModelLoadError,
		&engine.LoadError{Kind: engine.ErrCorrupt, Detail: "x.gguf: it is cut off"}:             rpc.CodeModelLoadError,
		&engine.LoadError{Kind: engine.ErrUnsupported, Detail: "its architecture"}:              rpc.CodeModelLoadError,
		&engine.LoadError{Kind: engine.ErrLoadTimeout, Detail: "no progress"}:                   rpc.CodeLoadTimeout,
		&engine.ExitError{Code: 1, Early: true}:                                                 rpc.CodeModelLoadError,
		&fs.PathError{Op: "fork/exec", Path: "/bin/x", Err: fs.ErrPermission}:                   rpc.CodeModelLoadError,
	} {
		b.engines.mu.Lock()
		b.engines.fails["i"] = []error{err}
		b.engines.mu.Unlock()
		b.failed(b.load("i"), code)
	}
	b.failed(b.load("huge"), "model_too_large")
	b.failed(b.load("nobody-knows-it"), "model_not_found")
	b.holds("a")
	if s := b.host.Stats(); s.Clears != 0 || b.engines.starts("i") != 9 {
		t.Errorf("%+v, %d starts", s, b.engines.starts("i"))
	}
}

// Rule 7: the model waits for the request that it was loaded for, until that request leaves or its time is over.
func TestLoadedModelServesItsRequestFirst(t *testing.T) {
	b := start(t, func(c *host.Config) { c.Reserve = 30 * time.Second })
	first := b.load("a")
	b.outcome(first)
	second := b.load("b")
	time.Sleep(150 * time.Millisecond)
	if st := b.peek(second).Record.State; st != "queued" || b.engines.of("a") == nil {
		t.Fatalf("b is %s before a served", st)
	}
	leave, refused := b.enter("a", first)
	if refused != "" {
		t.Fatalf("who waited is refused: %s", refused)
	}
	leave()
	b.ready(second)
}

func TestReservationExpires(t *testing.T) {
	for name, end := range map[string]func(b *bench, ticket string){
		"by time": func(*bench, string) {},
		"by leave": func(b *bench, ticket string) {
			b.must(b.store.ReleaseTicket(b.Context(), "g", ticket, false))
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t, func(c *host.Config) {
				if name == "by leave" {
					c.Reserve = time.Hour
				}
			})
			ticket := b.load("a")
			b.outcome(ticket)
			end(b, ticket)
			b.ready(b.load("b"))
			b.holds("b")
		})
	}
}

// Rule 8, and pins at run time.
func TestPinnedModelStays(t *testing.T) {
	b := start(t)
	b.ready(b.load("p"))
	b.failed(b.load("q"), "slots_pinned_error")
	b.must(b.store.Set(t.Context(), state.Pins, "p", "0"))
	b.until("pin is off", func() bool { return !b.host.View().Models[0].Pinned })
	b.ready(b.load("q"))
	b.ready(b.ask(state.Want{Model: "a", OwnTicket: true, Fields: map[string]string{"pinned": "1"}}))
	b.failed(b.load("b"), "slots_pinned_error")
}

// A load's own pin outlives a crash of its engine, but neither an unload nor a management call.
func TestPinSurvivesACrash(t *testing.T) {
	b := start(t)
	pinned := func() string {
		return b.ask(state.Want{Model: "a", OwnTicket: true, Fields: map[string]string{"pinned": "1"}})
	}
	crash := func() {
		b.engines.of("a").die()
		b.until("its slot is free", func() bool { return len(b.host.View().Models) == 0 })
	}
	b.ready(pinned())
	for range 2 {
		crash()
		b.ready(b.load("a"))
		b.failed(b.load("b"), "slots_pinned_error")
	}
	b.outcome(b.unload("a"))
	b.ready(b.load("a"))
	b.ready(b.load("b")) // evicts

	b.ready(pinned())
	crash()
	b.must(b.store.Set(t.Context(), state.Pins, "a", "0"))
	b.ready(b.load("a"))
	b.ready(b.load("b"))
}

// Rule 9: victims are evicted until the memory suffices.
func TestVictimsAreEvictedUntilMemorySuffices(t *testing.T) {
	b := start(t, func(c *host.Config) { c.Budget = map[policy.Devices]int64{policy.CPU: 25} })
	b.ready(b.load("a"))
	b.ready(b.load("e"))
	b.ready(b.load("i"))
	b.holds("e", "i")
}

// Rule 10: other options reload the model, the same options do not.
func TestOtherOptionsReloadTheModel(t *testing.T) {
	b := start(t)
	own := func(options string) string {
		return b.ask(state.Want{Model: "a", OwnTicket: true, Fields: map[string]string{"options": options}})
	}
	b.ready(own(`{"ctx_size":100}`))
	first := b.engines.of("a").pid
	b.ready(own(`{"ctx_size":100}`))
	b.ready(b.load("a"))
	if pid := b.engines.of("a").pid; pid != first {
		t.Error("reloaded for the same options")
	}
	r := b.ready(own(`{"ctx_size":200}`))
	if e := b.engines.of("a"); e.pid == first || e.options["ctx_size"] != int64(200) || r.Evicted != "" {
		t.Errorf("options %v, evicted %q", e.options, r.Evicted)
	}
	if s := b.host.Stats(); s.Evictions != 0 {
		t.Errorf("a reload counts as %d evictions", s.Evictions)
	}
	b.must(b.store.Set(t.Context(), state.SavedOptions, "b", `{"ctx_size":300}`))
	b.ready(b.load("b"))
	if o := b.engines.of("b").options; o["ctx_size"] != int64(300) {
		t.Errorf("saved options: %v", o)
	}
	b.ready(own(`{"args":"--tokens 3","batch_delay":3}`))
	if o := b.engines.of("a").options; o["args"] != nil || o["batch_delay"] != int64(3) {
		t.Errorf("arguments of a request: %v", o)
	}
}

// Limits and options set at run time apply from the next load on, and gateways learn the limits.
func TestRuntimeSettingsApplyFromTheNextLoad(t *testing.T) {
	b := start(t)
	b.must(b.store.Set(t.Context(), state.Runtime, "max_loaded_models", `{"llm":2}`))
	b.must(b.store.Set(t.Context(), state.Runtime, "ctx_size", "77"))
	b.must(b.store.Set(t.Context(), state.Runtime, "llamacpp", `{"backend":"cpu","args":null}`)) // of another recipe
	b.until("limits are published", func() bool {
		s, err := b.store.Snapshot(t.Context())
		return err == nil && s.Hosts["h"].Limits == "2 1 1 1 1 1"
	})
	b.ready(b.load("a"))
	b.ready(b.load("b"))
	b.holds("a", "b")
	if o := b.engines.of("b").options; o["ctx_size"] != int64(77) {
		t.Errorf("%v", o)
	}
	b.must(b.store.Set(t.Context(), state.Runtime, "max_loaded_models", ""))
	b.until("limits are the flags' again", func() bool { return b.host.View().Limits == "1" })
	b.ready(b.load("c"))
	b.holds("c")
}

// Invariant 10: many simultaneous requests for one cold model cause one start.
func TestManyRequestsCauseOneLoad(t *testing.T) {
	b := start(t)
	gate := make(chan struct{})
	b.engines.gates["a"] = gate
	tickets := map[string]bool{}
	for range 20 {
		tickets[b.load("a")] = true
	}
	if len(tickets) != 1 {
		t.Errorf("%d tickets", len(tickets))
	}
	own := b.ask(state.Want{Model: "a", OwnTicket: true})
	close(gate)
	for ticket := range tickets {
		b.ready(ticket)
	}
	b.ready(own)
	if n := b.engines.starts("a"); n != 1 {
		t.Errorf("%d starts", n)
	}
}

func TestReleasedTicketIsNotLoaded(t *testing.T) {
	b := start(t)
	gate := make(chan struct{})
	b.engines.gates["a"] = gate
	loading := b.load("a")
	b.until("a loads", func() bool { return b.engines.starts("a") == 1 })
	other := b.load("e")
	b.must(b.store.ReleaseTicket(t.Context(), "g", other, false))
	b.must(b.store.ReleaseTicket(t.Context(), "g", loading, false)) // has started, so it continues
	close(gate)
	b.until("a is loaded", func() bool { r := b.record("a"); return r != nil && r.State == "loaded" })
	time.Sleep(100 * time.Millisecond)
	if b.engines.starts("e") != 0 {
		t.Error("e was loaded for nobody")
	}
}
