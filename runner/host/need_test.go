package host_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"reveille/infra/policy"
	"reveille/runner/devices"
	"reveille/runner/engine"
	"reveille/runner/host"
	"reveille/runner/plan"
	"reveille/testenv"
)

const unmeasured = `
models:
  a: {type: llm, recipe: standin, device: cpu}
  b: {type: llm, recipe: standin, device: cpu}
`

// startUnmeasured starts a host of 100 bytes and no limit of models, on which a and b count as 40 bytes each.
func startUnmeasured(t *testing.T, addr string) *bench {
	b := startOn(t, addr, func(c *host.Config) {
		c.Limits, c.Hardware.Budget = policy.Uniform(-1), map[policy.Devices]int64{policy.CPU: 100}
	})
	for _, m := range []string{"a", "b"} {
		b.engines.plans[m] = plan.Plan{Estimate: 40, Need: 40, Signature: m, NeedSource: plan.FromEstimate}
	}
	b.publish(unmeasured)
	return b
}

// What an engine took counts immediately, and for the next loads. Less than the estimate does not count
// on a processor, and a measured need above the budget does not refuse what fits by its estimate.
func TestMeasuredMemoryCounts(t *testing.T) {
	onBoth(t, func(t *testing.T, addr string) {
		b := startUnmeasured(t, addr)
		b.engines.took["a"], b.engines.took["b"] = 70, 10
		b.ready(b.load("a"))
		if r := b.record("a"); r.Memory != 70 || !strings.Contains(r.Fields["plan"], `"estimate":40,"need":70,"ruled":"measured","measured":70`) {
			t.Errorf("loaded: %d, %s", r.Memory, r.Fields["plan"])
		}
		if r := b.ready(b.load("b")); r.Evicted != "a" || b.record("b").Memory != 40 {
			t.Errorf("evicted %q for b of %d", r.Evicted, b.record("b").Memory)
		}
		b.engines.took["a"] = 0
		if r := b.ready(b.load("a")); r.Evicted != "b" || b.record("a").Memory != 70 {
			t.Errorf("again: evicted %q for a of %d", r.Evicted, b.record("a").Memory)
		}
		b.ready(b.unload("a"))
		b.engines.took["a"] = 170
		b.ready(b.load("a"))
		b.ready(b.unload("a"))
		if b.ready(b.load("a")); b.record("a").Memory != 170 { // it still takes so much
			t.Errorf("beyond the budget: %d bytes", b.record("a").Memory)
		}
	})
}

// An engine that runs out of memory counts as larger by what it failed to get, at most twice its estimate, and is
// refused for a while where that is more than the host has. A good load corrects it.
func TestOutOfMemoryRaisesTheNeed(t *testing.T) {
	b := startUnmeasured(t, testenv.Redis(t))
	dies := func(size string) error {
		return &engine.LoadError{Kind: engine.ErrOutOfMemory, Exit: &engine.ExitError{Code: 1, Tail: []string{"failed to allocate buffer of size " + size, "bye"}}}
	}
	refused := &engine.LoadError{Kind: engine.ErrRefused, Exit: &engine.ExitError{Code: 1, Tail: []string{"out of memory"}}}
	b.engines.fails["a"] = []error{refused, dies("30"), dies("5")}
	b.failed(b.load("a"), "model_load_error")
	b.failed(b.load("a"), "engine_out_of_memory")
	b.ready(b.load("b"))
	if r := b.ready(b.load("a")); r.Evicted != "b" || !strings.Contains(b.record("a").Fields["plan"], `"need":75,"ruled":"out of memory"`) {
		t.Errorf("evicted %q, %s", r.Evicted, b.record("a").Fields["plan"])
	}
	b.ready(b.unload("a"))
	b.ready(b.load("b"))
	if r := b.ready(b.load("a")); r.Evicted != "" {
		t.Errorf("after a good load: evicted %q", r.Evicted)
	}

	b.ready(b.unload("b"))
	b.engines.plans["b"] = plan.Plan{Estimate: 60, Need: 60, Signature: "large", WeightsBytes: 60, NeedSource: plan.FromEstimate}
	b.engines.fails["b"] = []error{dies("9999999999"), dies("1")}
	b.failed(b.load("b"), "engine_out_of_memory")
	r := b.failed(b.load("b"), "model_too_large")
	if want := "model b needs 120 bytes of cpu memory (weights 60, KV cache 0, buffers 0; an engine ran out of memory, counted as 120), more than the 100 a host has"; r.Message != want {
		t.Errorf("%q, want %q", r.Message, want)
	}
	s, err := b.store.Snapshot(t.Context())
	b.must(err)
	if need := s.Hosts["h"].Fields["need:b"]; !strings.Contains(need, `"until":`) {
		t.Errorf("gateways never ask again: %s", need)
	}
}

// What other programs took is not given to models: a load makes more room, waits a while for theirs, and is then
// refused with what they hold.
func TestLoadWaitsForMemoryOfOtherPrograms(t *testing.T) {
	var free atomic.Int64
	free.Store(1000)
	b := startOn(t, testenv.Redis(t), func(c *host.Config) {
		c.Limits, c.Hardware.Budget = policy.Uniform(-1), map[policy.Devices]int64{policy.CPU: 100}
		c.Margin, c.OthersWait = 5, 4*time.Second
		c.Free = func(context.Context, policy.Devices) devices.Found {
			return devices.Found{Devices: []devices.Device{{Kind: "cpu", Total: 2000, Free: free.Load()}}}
		}
	})
	b.publish(strings.ReplaceAll(unmeasured, "cpu}", "cpu, memory: 40}"))
	b.ready(b.load("a"))
	free.Store(30)
	time.Sleep(time.Second) // what was just read counts for that long
	if r := b.ready(b.load("b")); r.Evicted != "a" {
		t.Errorf("evicted %q: 30 are free, and a holds 40", r.Evicted)
	}
	b.ready(b.unload("b"))
	time.Sleep(time.Second)
	waiting := b.load("a")
	time.Sleep(500 * time.Millisecond)
	if st := b.peek(waiting).Record.State; st != "queued" {
		t.Errorf("it is %s while other programs hold its memory", st)
	}
	free.Store(90)
	b.ready(waiting)
	b.ready(b.unload("a"))
	free.Store(30)
	time.Sleep(time.Second)
	r := b.failed(b.load("a"), "model_too_large")
	if want := "model a needs 40 bytes of cpu memory, more than the 25 a host has, while other programs use 75"; r.Message != want {
		t.Errorf("%q, want %q", r.Message, want)
	}
}
