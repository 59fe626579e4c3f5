package host

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/policy"
	"reveille/infra/rpc"
	"reveille/infra/state"
	"reveille/runner/engine"
	"reveille/runner/plan"
)

func TestFailureHasCodeAndMessage(t *testing.T) {
	exit := &engine.ExitError{Code: 1, Tail: []string{"panic at /opt/engine/src/a.cpp"}}
	for _, c := range []struct {
		err           error
		code, message string
	}{
		{exit, "model_load_error", "engine exited with status 1: panic at a.cpp"},
		{&engine.LoadError{Kind: engine.ErrOutOfMemory, Exit: exit}, "engine_out_of_memory", "engine out of memory"},
		{&engine.LoadError{Kind: engine.ErrLoadTimeout, Detail: "no progress for 1m0s"}, "load_timeout", "engine load timed out: no progress for 1m0s"},
		{&engine.LoadError{Kind: engine.ErrFileNotFound, Detail: "x.gguf"}, "model_file_not_found", "model file not found: x.gguf"},
		{&Error{Code: "model_busy", Message: "busy", Cause: errors.New("/a/b")}, "model_busy", "busy"},
		{fmt.Errorf("options: %w", errors.New("no JSON")), "model_load_error", "options: no JSON"},
	} {
		out := failure(c.err)
		if !out.Failed || out.Fields["code"] != c.code || out.Fields["message"] != c.message {
			t.Errorf("%v: %v", c.err, out.Fields)
		}
	}
	for code, want := range map[policy.Code]string{policy.TooLarge: "model_too_large", policy.SlotsPinned: "slots_pinned_error", policy.NoDevice: rpc.CodeModelLoadError} {
		if got := refusal(policy.Refusal{Code: code, Model: "m"}, &plan.Plan{}).Fields["code"]; got != want {
			t.Errorf("%s: %s, want %s", code, got, want)
		}
	}
	made := &plan.Plan{Estimate: 60, Need: 60, WeightsBytes: 30, KVBytes: 20, ComputeBytes: 10}
	out := refusal(policy.Refusal{Code: policy.TooLarge, Model: "m", Device: policy.GPU, Need: 60, Budget: 50}, made)
	if want := "model m needs 60 bytes of gpu memory (weights 30, KV cache 20, buffers 10), more than the 50 a host has"; out.Fields["message"] != want {
		t.Errorf("%s, want %s", out.Fields["message"], want)
	}
}

func TestReservationIsKeptForItsWaiters(t *testing.T) {
	now := time.Now()
	d := reservations{}
	g, h := reservation{"t", "g"}, reservation{"t", "h"}
	if len(d) > 0 || d.has(g) {
		t.Error("the zero value has a reservation")
	}
	d.remove(g) // no reservation yet
	d.resolve("t", []string{"g"}, now)
	if len(d) > 0 {
		t.Error("a reservation for a ticket that was given up")
	}
	d[reservation{ticket: "t"}] = pending{}
	d[reservation{ticket: "u"}] = pending{}
	if !d.has(g) || !d.has(h) || d.has(reservation{"", "g"}) || d.has(reservation{"v", "g"}) {
		t.Error("while the outcome is written, the model is reserved for every request with the ticket, and for no other")
	}
	d.countArrival(g, 1, now) // arrived before the response
	d.resolve("u", nil, now)
	if !d.has(h) {
		t.Error("the response for one ticket ended another's")
	}
	d.resolve("t", []string{"g", "h"}, now.Add(time.Second))
	if d.has(g) || !d.has(h) {
		t.Error("the reservation of who came has ended, that of who did not has not")
	}
	d.expire(now)
	if !d.has(h) {
		t.Error("lapsed early")
	}
	d.expire(now.Add(time.Second))
	if len(d) > 0 {
		t.Error("not lapsed")
	}

	// Several requests of one gateway waited.
	d[reservation{ticket: "w"}] = pending{}
	d.countArrival(reservation{"w", "g"}, 2, now)
	d.countArrival(reservation{"w", "h"}, 2, now)
	d.countArrival(reservation{"w", "h"}, 2, now)
	d.resolve("w", []string{"f", "g", "h"}, now.Add(time.Hour))
	f, g, h := reservation{"w", "f"}, reservation{"w", "g"}, reservation{"w", "h"}
	if !d.has(f) || !d.has(g) || d.has(h) {
		t.Errorf("one of two requests of g and both of h came: %v", d)
	}
	if until := d.countArrival(f, 3, now); until != now.Add(arrivalWait) || !d.has(f) {
		t.Errorf("after the first of three the reservation expires at %v", until)
	}
	if until := d.countArrival(f, 3, now.Add(time.Minute)); !until.IsZero() || !d.has(f) {
		t.Errorf("after the second of three it expires at %v", until)
	}
	d.countArrival(f, 3, now)
	d.countArrival(g, 2, now)
	if len(d) > 0 {
		t.Errorf("all came: %v", d)
	}
	d[reservation{ticket: "x"}] = pending{}
	d.remove(reservation{"x", "g"})
	d.resolve("x", []string{"g"}, now.Add(time.Hour))
	if len(d) > 0 {
		t.Error("a reservation for a gateway that left")
	}
}

// A model whose record is still to be written is no difference from Redis; a record without its model is one.
func TestUnwrittenRecordIsNoDifference(t *testing.T) {
	for differs, records := range map[bool]map[string]*state.ModelRecord{false: {}, true: {"gone": {}}} {
		h := New(Config{})
		h.mustRegister, h.residents["a"] = false, &resident{dirty: true}
		if h.compareRecords(records, time.Now()); h.mustRegister != differs {
			t.Errorf("with the records %v the host registers again: %v", records, h.mustRegister)
		}
	}
}

// A model's value follows from how long its load took, the price of the host, and how long it has been unused. The
// setting decides whether that value counts or only the time of use.
func TestEvictionSettingChoosesTheVictim(t *testing.T) {
	now := time.Now()
	loaded := func(id string, took, unused time.Duration) *resident {
		return &resident{
			checked: new(catalog.Catalog),
			id:      id, key: id, status: serving, loadTime: took, used: now.Add(-unused),
			model: &catalog.Model{ID: id, Type: policy.LLM, Devices: policy.CPU},
		}
	}
	for _, c := range []struct {
		name      string
		evict     policy.EvictionPolicy
		residents []*resident
		want      string
	}{
		{"the default goes by use", "", []*resident{loaded("slow", time.Minute, 2*time.Minute), loaded("quick", time.Second, time.Minute)}, "slow"},
		{"cost spares the slow", policy.Cost, []*resident{loaded("slow", time.Minute, 2*time.Minute), loaded("quick", time.Second, time.Minute)}, "quick"},
		{"but not for ever", policy.Cost, []*resident{loaded("slow", time.Minute, 10*time.Hour), loaded("quick", time.Second, time.Minute)}, "slow"},
		{"equal costs go by use", policy.Cost, []*resident{loaded("older", time.Second, time.Hour), loaded("newer", time.Second, time.Minute)}, "older"},
	} {
		h := New(Config{Name: "h", Hardware: Hardware{Devices: policy.CPU}, Limits: policy.Uniform(2), Evict: c.evict, Price: 3})
		for _, r := range c.residents {
			h.residents[r.id] = r
		}
		h.mu.Lock()
		v := h.viewLocked([]queuedLoad{{state.TicketRecord{ID: "t"}, loadSpec{model: &catalog.Model{ID: "new", Type: policy.LLM, Devices: policy.CPU}}}})
		h.mu.Unlock()
		if got := policy.Next(v, now, h.cfg.FairAfter).Admission.Evict; !slices.Equal(got, []string{c.want}) {
			t.Errorf("%s: %v goes, want %s", c.name, got, c.want)
		}
		for _, r := range v.Residents {
			of := h.residents[r.ID]
			most := c.evict.Value(of.loadTime, 3, now.Sub(of.used)) // the view was taken a moment earlier
			if r.Value > most || (c.evict == policy.Cost) != (r.Value > 0) {
				t.Errorf("%s: %s is worth %v, want at most %v", c.name, r.ID, r.Value, most)
			}
		}
	}
}
