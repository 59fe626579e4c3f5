package host

import (
	"context"
	"time"

	"reveille/infra/policy"
	"reveille/runner/devices"
)

// Free memory is read again after freeInterval, or after slowInterval if reading it took longer than slowRead, for
// example because a driver hangs.
const (
	freeInterval = time.Second
	slowRead     = 3 * time.Second
	slowInterval = 5 * time.Minute
)

// readFree reads how much memory is free on the devices, for the loads that are decided next. While a load is in
// progress it does nothing, because nothing is decided then.
func (h *Host) readFree(ctx context.Context) {
	h.mu.Lock()
	if h.cfg.Free == nil || h.loading != nil || time.Now().Before(h.freeNext) {
		h.mu.Unlock()
		return
	}
	list, kinds := h.withEngineLocked(), h.hardware.Devices
	h.mu.Unlock()
	held := make(map[*resident]int64, len(list))
	for _, r := range list {
		held[r] = r.engine.Held()
	}
	start := time.Now()
	found := h.cfg.Free(ctx, kinds)
	next := freeInterval
	if time.Since(start) > slowRead {
		next = slowInterval
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	ours := map[policy.Devices]int64{}
	gpus := policy.GPUMemory{}
	for r, n := range held {
		if n <= 0 {
			n = r.memory
		}
		for _, d := range []policy.Devices{policy.CPU, policy.GPU} {
			if r.model.Devices.Has(d) {
				ours[d] += n
			}
		}
		one := r.view()
		one.Memory, one.GPUMemory = n, r.gpuMemory.Scaled(n)
		for gpu := range h.hardware.Cards {
			gpus[gpu] += one.OnGPU(gpu, h.hardware.Cards)
		}
	}
	now := h.hardware.limitToFree(found, ours, gpus, h.cfg.Margin)
	h.available, h.freeNext = &now, time.Now().Add(next)
}

// availableLocked returns the hardware with its budgets reduced by what other programs hold.
func (h *Host) availableLocked() Hardware {
	if h.available == nil {
		return h.hardware
	}
	return *h.available
}

// limitToFree returns the hardware with each budget limited to the memory that is free or held by engines, less margin.
// held is by kind of device, heldOn by GPU. Devices whose free memory is unknown keep their budgets.
func (hw Hardware) limitToFree(found devices.Found, held map[policy.Devices]int64, heldOn policy.GPUMemory, margin int64) Hardware {
	out := hw
	out.Budget = map[policy.Devices]int64{}
	freeBytes := map[policy.Devices]int64{}
	known := map[policy.Devices]bool{policy.CPU: true, policy.GPU: true}
	gpus := policy.GPUMemory{}
	mainFree := int64(0)
	for _, d := range found.Used() {
		kind, _ := policy.ParseDevices(d.Kind)
		if kind == policy.CPU {
			mainFree = d.Free
		}
		free := d.Free
		if d.Shared > 0 {
			free = mainFree
		}
		known[kind] = known[kind] && free > 0
		freeBytes[kind] += free
		gpus[d.Index] = free
	}
	for d, budget := range hw.Budget {
		out.Budget[d] = budget
		if freeBytes[d] > 0 && known[d] && budget > 0 {
			out.Budget[d] = min(budget, max(freeBytes[d]+held[d]-margin, 1)) // 0 would mean no limit
		}
	}
	if hw.Cards == nil {
		return out
	}
	out.Cards, out.Budget[policy.GPU] = policy.GPUMemory{}, 0
	for gpu, budget := range hw.Cards {
		out.Cards[gpu] = budget
		if free := gpus[gpu]; free > 0 && known[policy.GPU] {
			out.Cards[gpu] = min(budget, max(free+heldOn[gpu]-margin, 1))
		}
		out.Budget[policy.GPU] += out.Cards[gpu]
	}
	return out
}

// heldByOthers returns how much of a refusal's budget other programs hold, the margin included. It returns 0 if the
// load, on GPUs that gpus describes, would not fit even without them.
func (h *Host) heldByOthers(r *policy.Refusal, gpus policy.GPUConstraint) int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r.Need <= 0 || r.Budget <= 0 {
		return 0
	}
	others := h.hardware.Budget[r.Device] - h.availableLocked().Budget[r.Device]
	if r.Code == policy.TooLarge && r.GPUs != "" { // the budget is that of the best GPUs, not of all
		_, best := gpus.Largest(h.hardware.Cards)
		others = best - r.Budget
	}
	if others <= 0 || r.Need-r.Budget > others {
		return 0
	}
	return others
}

// waitsForOthers reports whether a refused load keeps waiting for memory that other programs hold.
func (h *Host) waitsForOthers(ticket string, r *policy.Refusal, now time.Time) bool {
	if r.Others == 0 {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	w := h.waits[ticket]
	if w == nil {
		w = &ticketWait{}
		h.waits[ticket] = w
	}
	if w.othersSince.IsZero() {
		w.othersSince = now
		h.log.Warn("load waits for memory that other programs hold", "model", r.Model, "need", r.Need, "left", r.Budget, "others", r.Others)
	}
	return now.Sub(w.othersSince) < h.cfg.OthersWait
}
