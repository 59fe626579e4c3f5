package host

import (
	"context"
	"maps"
	"testing"

	"reveille/infra/catalog"
	"reveille/infra/policy"
	"reveille/runner/devices"
)

// A budget is at most what is free and what engines hold, less the margin, on each GPU too. Where that is unknown it
// stays.
func TestBudgetIsLimitedToFreeMemory(t *testing.T) {
	cpu := func(free int64) devices.Device { return devices.Device{Kind: "cpu", Total: 200, Free: free} }
	gpu := func(i int, free, shared int64) devices.Device {
		return devices.Device{Kind: "gpu", Index: i, Total: 100, Free: free, Shared: shared}
	}
	both := Hardware{Budget: map[policy.Devices]int64{policy.CPU: 160, policy.GPU: 180, policy.NPU: 7}, Cards: policy.GPUMemory{0: 90, 1: 90}}
	sum := Hardware{Budget: map[policy.Devices]int64{policy.CPU: 160, policy.GPU: 180}}
	for _, test := range []struct {
		name  string
		has   Hardware
		found []devices.Device
		cpu   int64
		gpu   int64
		cards policy.GPUMemory
	}{
		{"no other program", both, []devices.Device{cpu(180), gpu(0, 60, 0), gpu(1, 95, 0)}, 160, 180, policy.GPUMemory{0: 90, 1: 90}},
		{"a desktop and a game", both, []devices.Device{cpu(100), gpu(0, 60, 0), gpu(1, 20, 0)}, 105, 105, policy.GPUMemory{0: 90, 1: 15}},
		{"all is taken", both, []devices.Device{cpu(1), gpu(0, 1, 0), gpu(1, 1, 0)}, 6, 32, policy.GPUMemory{0: 31, 1: 1}},
		{"as one", sum, []devices.Device{cpu(180), gpu(0, 60, 0), gpu(1, 20, 0)}, 160, 110, nil},
		{"GPUs not found", both, []devices.Device{cpu(180)}, 160, 180, policy.GPUMemory{0: 90, 1: 90}},
		{"one GPU unknown", both, []devices.Device{cpu(180), gpu(0, 60, 0), gpu(1, 0, 0)}, 160, 180, policy.GPUMemory{0: 90, 1: 90}},
		{"main memory lent", Hardware{Budget: map[policy.Devices]int64{policy.CPU: 160, policy.GPU: 90}, Cards: policy.GPUMemory{0: 90}}, []devices.Device{cpu(50), gpu(0, 99, 100)}, 55, 80, policy.GPUMemory{0: 80}},
		{"beside a processor's GPU", Hardware{Budget: map[policy.Devices]int64{policy.CPU: 160, policy.GPU: 90}}, []devices.Device{cpu(180), gpu(0, 20, 0), gpu(1, 100, 100)}, 160, 50, nil},
		{"nothing found", both, nil, 160, 180, policy.GPUMemory{0: 90, 1: 90}},
	} {
		held := map[policy.Devices]int64{policy.CPU: 10, policy.GPU: 35}
		out := test.has.limitToFree(devices.Found{Devices: test.found}, held, policy.GPUMemory{0: 35}, 5)
		if out.Budget[policy.CPU] != test.cpu || out.Budget[policy.GPU] != test.gpu || !maps.Equal(out.Cards, test.cards) || out.Budget[policy.NPU] != test.has.Budget[policy.NPU] {
			t.Errorf("%s: %v %v, want %d, %d, %v", test.name, out.Budget, out.Cards, test.cpu, test.gpu, test.cards)
		}
	}
}

// engineHolding is an engine that holds so many bytes.
type engineHolding struct {
	Engine
	bytes int64
}

func (e engineHolding) Held() int64 { return e.bytes }

// What an engine was planned to take of a GPU, and does not hold, is not free once it ends.
func TestPlannedMemoryIsNotHeld(t *testing.T) {
	h := New(Config{
		Hardware: Hardware{Devices: policy.GPU, Budget: map[policy.Devices]int64{policy.GPU: 90}, Cards: policy.GPUMemory{0: 90}},
		Free: func(context.Context, policy.Devices) devices.Found {
			return devices.Found{Devices: []devices.Device{{Kind: "gpu", Total: 100, Free: 20}}}
		},
	})
	h.residents["a"] = &resident{engine: engineHolding{bytes: 30}, model: &catalog.Model{Devices: policy.GPU}, memory: 60, gpuMemory: policy.GPUMemory{0: 60}}
	h.readFree(t.Context())
	if got := h.availableLocked(); got.Cards[0] != 50 {
		t.Errorf("%v, want 50", got.Cards)
	}
}

// What other programs hold of one GPU does not excuse a load that is too large for any.
func TestOthersHoldMemoryOfTheGPUsOfALoad(t *testing.T) {
	h := New(Config{Hardware: Hardware{Budget: map[policy.Devices]int64{policy.GPU: 180}, Cards: policy.GPUMemory{0: 90, 1: 90}}})
	h.available = &Hardware{Budget: map[policy.Devices]int64{policy.GPU: 75}, Cards: policy.GPUMemory{0: 5, 1: 70}}
	for need, want := range map[int64]int64{80: 20, 100: 0} {
		r := policy.Refusal{Code: policy.TooLarge, Device: policy.GPU, GPUs: "gpu:1", Need: need, Budget: 70}
		if got := h.heldByOthers(&r, policy.GPUConstraint{Min: 1, Max: 1}); got != want {
			t.Errorf("a need of %d: others hold %d, want %d", need, got, want)
		}
	}
}
