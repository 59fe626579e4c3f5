package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"reveille/infra/oom"
	"reveille/infra/policy"
	"reveille/infra/recipe"
	"reveille/runner/engine"
	"reveille/runner/plan"
)

const (
	retryTooLarge = 10 * time.Minute // how long a load is refused because its engine ran out of memory
	measureEvery  = 10 * time.Second // interval at which the memory of loaded engines is measured
	maxKnownNeeds = 1000
)

// A measuredNeed is the device memory that a load took on this host.
type measuredNeed struct {
	bytes int64
	// failed is when an engine last ran out of memory with less than bytes, which is then the minimum that it needs. It
	// is zero if bytes was measured.
	failed time.Time
}

// planOn returns the plan of a load on n GPUs, with the memory that such a load was measured to need. n is 0 for an
// engine whose GPUs cannot be chosen. A need above the budget, or above what other programs leave free, leads to a
// smaller context if the context is automatic. If it cannot shrink, but the estimate fits the budget, the load is
// tried with the budget as its need, unless its engine ran out of memory within retryTooLarge.
func (h *Host) planOn(e loadSpec, n int, share plan.Share) (plan.Plan, error) {
	p, err := h.planIgnoringOthers(e, n, share)
	if err != nil || e.model.Memory > 0 || share.Left <= 0 || p.Need <= share.Left {
		return p, err
	}
	share.Budget = share.Left
	if smaller, err := h.planIgnoringOthers(e, n, share); err == nil && smaller.Context < p.Context {
		return smaller, nil
	}
	return p, nil
}

// planIgnoringOthers is planOn without regard to what other programs hold.
func (h *Host) planIgnoringOthers(e loadSpec, n int, share plan.Share) (plan.Plan, error) {
	p, err := h.cfg.Engines.Plan(e.model, e.recipe, e.options, share)
	if err != nil || e.model.Memory > 0 {
		return p, err
	}
	p.Key = needKey(cmp.Or(p.Signature, e.digest), e.model.Devices, n)
	need := h.needOf(p.Key)
	if need.bytes == 0 {
		return p, nil
	}
	budget := share.Budget
	if budget > 0 && need.bytes > budget && share.AboveEstimate == 0 {
		reduced := share
		reduced.AboveEstimate = max(need.bytes-p.Estimate, 0)
		if smaller, err := h.planIgnoringOthers(e, n, reduced); err == nil && smaller.Context < p.Context {
			return smaller, nil
		}
	}
	failed := !need.failed.IsZero()
	recent := failed && time.Since(need.failed) < retryTooLarge
	if p.Need <= budget && need.bytes > budget && !recent {
		need.bytes, failed = budget, false
	}
	p.Need, p.NeedSource = need.bytes, plan.FromMeasurement
	if failed {
		p.NeedSource = plan.FromOOM
	}
	return p, nil
}

// needKey identifies loads that take the same memory on this host: by plan, devices and number of GPUs.
func needKey(signature string, d policy.Devices, gpus int) string {
	return fmt.Sprint(signature, " ", d, " ", gpus)
}

func (h *Host) needOf(key string) measuredNeed {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.needs[key]
}

func (h *Host) setNeed(key string, n measuredNeed) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, known := h.needs[key]; !known && len(h.needs) >= maxKnownNeeds {
		clear(h.needs)
	}
	h.needs[key] = n
}

// measureLocked records the memory that a loaded engine has taken, and reports whether that is new. If it is more than
// planned, the model counts with it from now on.
func (h *Host) measureLocked(r *resident, taken int64) bool {
	p := &r.plan
	if taken <= p.Measured || p.Measured > 0 && !differ(taken, p.Measured) {
		return false
	}
	p.Measured, r.dirty = taken, true
	if need := p.NeedFromMeasurement(taken, r.model.Devices); p.Key != "" && need > r.memory {
		r.memory, r.gpuMemory, p.Need, p.NeedSource = need, r.gpuMemory.Scaled(need), need, plan.FromMeasurement
	}
	h.log.Info("memory measured", "model", r.id, "estimated", p.Estimate, "measured", taken, "parts", p.Parts())
	return true
}

// measure measures a loaded engine, and records its need for later loads if that is new.
func (h *Host) measure(r *resident) {
	taken := r.engine.Measured()
	h.mu.Lock()
	changed := h.measureLocked(r, taken)
	h.mu.Unlock()
	if changed {
		h.recordNeed(r)
	}
}

// recordNeed records the measured need of a loaded model for later loads, unless it differs little from the known one.
func (h *Host) recordNeed(r *resident) {
	if r.plan.Key == "" {
		return
	}
	h.mu.Lock()
	next, previous := h.nextNeedLocked(r)
	h.mu.Unlock()
	if next.bytes > 0 && (!previous.failed.IsZero() || differ(next.bytes, cmp.Or(previous.bytes, r.plan.Estimate))) {
		h.setNeed(r.plan.Key, next)
	}
}

// nextNeedLocked returns what the next load like that of a loaded model is expected to need. On a CPU it never falls,
// because an earlier engine may have served larger requests.
func (h *Host) nextNeedLocked(r *resident) (next, previous measuredNeed) {
	previous = h.needs[r.plan.Key]
	next.bytes = r.plan.NeedFromMeasurement(r.plan.Measured, r.model.Devices)
	if previous.failed.IsZero() && r.model.Devices == policy.CPU {
		next.bytes = max(next.bytes, previous.bytes)
	}
	return next, previous
}

// differ reports whether a differs from b by more than a thirtieth.
func differ(a, b int64) bool { return max(a-b, b-a) > b/30 }

// measureLoop measures the loaded engines that have been used, until ctx ends.
func (h *Host) measureLoop(ctx context.Context) {
	tick := time.NewTicker(measureEvery)
	defer tick.Stop()
	for last := time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		since := last
		last = time.Now()
		var list []*resident
		h.mu.Lock()
		for _, r := range h.residents {
			if r.isLoaded() && (len(r.open) > 0 || r.used.After(since)) {
				list = append(list, r)
			}
		}
		h.mu.Unlock()
		for _, r := range list {
			h.measure(r)
		}
	}
}

// raiseNeed raises a load's recorded need after its engine ran out of memory, by what the engine failed to allocate, to
// twice the estimate at most. It returns the new need, 0 after other failures.
func (h *Host) raiseNeed(p plan.Plan, rc *recipe.Recipe, err error) int64 {
	exit, ended := errors.AsType[*engine.ExitError](err)
	if !ended || p.Key == "" || errors.Is(err, engine.ErrRefused) {
		return 0
	}
	tail := strings.Join(exit.Tail, "\n")
	if !errors.Is(err, engine.ErrOutOfMemory) && rc.Errors.Cause(tail) != recipe.CauseOutOfMemory {
		return 0
	}
	need := max(p.Need, p.Estimate)
	need += cmp.Or(oom.FailedAllocation(tail), need/8)
	if p.Estimate > 0 {
		need = min(need, 2*p.Estimate)
	}
	if need <= 0 {
		return 0
	}
	h.log.Warn("engine ran out of memory, raising the model's memory need", "estimated", p.Estimate, "before", p.Need, "need", need)
	h.setNeed(p.Key, measuredNeed{need, time.Now()})
	return need
}
