package host

import (
	"context"
	"time"

	"reveille/infra/policy"
	"reveille/runner/devices"
)

// Free memory is read again after freeFresh, or after slowFresh if reading it took longer than slowRead, for example because a
// driver hangs.
const (
	freeFresh = time.Second
	slowRead  = 3 * time.Second
	slowFresh = 5 * time.Minute
)

// readFree reads how much memory the devices have free, for the loads that are decided next. While a load is in progress
// nothing is decided.
func (h *Host) readFree(ctx context.Context) {
	h.mu.Lock()
	if h.cfg.Free == nil || h.loading != nil || time.Now().Before(h.freeNext) {
		h.mu.Unlock()
		return
	}
	list, kinds := h.residentsLocked(), h.hardware.Devices
	h.mu.Unlock()
	held := make(map[*resident]int64, len(list))
	for _, r := range list {
		if m, ok := r.engine.(Measured); ok {
			held[r] = m.Held()
		}
	}
	began := time.Now()
	found := h.cfg.Free(ctx, kinds)
	next := freeFresh
	if time.Since(began) > slowRead {
		next = slowFresh
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
		for gpu := range h.hardware.Cards {
			one := r.view()
			one.Memory = n
			gpus[gpu] += one.OnGPU(gpu, h.hardware.Cards)
		}
	}
	now := h.hardware.limitToFree(found, ours, gpus, h.cfg.Margin)
	h.available, h.freeNext = &now, time.Now().Add(next)
}

// availableLocked returns the hardware with the budgets that other programs leave.
func (h *Host) availableLocked() Hardware {
	if h.available == nil {
		return h.hardware
	}
	return *h.available
}

// limitToFree returns the hardware with budgets of at most what is free or held by engines, less margin. held is by kind of device,
// heldOn by GPU. Devices whose free memory was not found keep their budgets.
func (has Hardware) limitToFree(found devices.Found, held map[policy.Devices]int64, heldOn policy.GPUMemory, margin int64) Hardware {
	out := has
	out.Budget = map[policy.Devices]int64{}
	room := map[policy.Devices]int64{}
	known := map[policy.Devices]bool{policy.CPU: true, policy.GPU: true}
	gpus := policy.GPUMemory{}
	main := int64(0)
	for _, d := range found.Devices {
		kind, err := policy.ParseDevices(d.Kind)
		if err != nil || kind == policy.NPU {
			continue
		}
		if kind == policy.CPU {
			main = d.Free
		}
		free := d.Free
		if d.Shared > 0 {
			free = main
		}
		if d.Total > 0 {
			known[kind] = known[kind] && free > 0
			room[kind] += free
			gpus[d.Index] = free
		}
	}
	for d, budget := range has.Budget {
		out.Budget[d] = budget
		if room[d] > 0 && known[d] && budget > 0 {
			out.Budget[d] = min(budget, max(room[d]+held[d]-margin, 1)) // below 1 there would be no limit
		}
	}
	if has.Cards == nil {
		return out
	}
	out.Cards, out.Budget[policy.GPU] = policy.GPUMemory{}, 0
	for gpu, budget := range has.Cards {
		out.Cards[gpu] = budget
		if free := gpus[gpu]; free > 0 && known[policy.GPU] {
			out.Cards[gpu] = min(budget, max(free+heldOn[gpu]-margin, 1))
		}
		out.Budget[policy.GPU] += out.Cards[gpu]
	}
	return out
}

// heldByOthers returns how much of the budget that a refusal names other programs hold, the margin included. It returns 0 if
// the load would not fit even without them.
func (h *Host) heldByOthers(r *policy.Refusal) int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r.Need <= 0 || r.Budget <= 0 {
		return 0
	}
	others := h.hardware.Budget[r.Device] - h.availableLocked().Budget[r.Device]
	if others <= 0 || r.Need-r.Budget > others {
		return 0
	}
	return others
}

// waitsForOthers reports whether a refused load waits a while for memory that other programs hold.
func (h *Host) waitsForOthers(ticket string, r *policy.Refusal, now time.Time) bool {
	if r.Others == 0 {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	w := h.waits[ticket]
	if w == nil {
		w = &wait{}
		h.waits[ticket] = w
	}
	if w.others.IsZero() {
		w.others = now
		h.log.Warn("load waits for memory that other programs hold", "model", r.Model, "need", r.Need, "left", r.Budget, "others", r.Others)
	}
	return now.Sub(w.others) < h.cfg.OthersWait
}
