package host

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"reveille/infra/oom"
	"reveille/infra/policy"
	"reveille/infra/recipe"
	"reveille/infra/state"
	"reveille/runner/engine"
	"reveille/runner/plan"
)

const (
	needFresh     = time.Minute      // how long a need that was read from Redis is used
	retryTooLarge = 10 * time.Minute // how long a load is refused because its engine ran out of memory
	measureEvery  = 10 * time.Second // between two looks at what loaded engines take
	maxKnownNeeds = 1000
)

// knownNeed is what Redis holds for a key, or that it holds nothing.
type knownNeed struct {
	state.Need
	read time.Time
}

// plan returns the plan of a load on n GPUs, with the memory that such a load was measured to need. n is 0 for an engine whose
// GPUs cannot be chosen. A need above the budget, or above what other programs leave, leads to a smaller context where the
// context is automatic. Otherwise a load that fits by its estimate is refused only for a while, and only if its engine ran out
// of memory.
func (h *Host) plan(ctx context.Context, e loadSpec, n int, share plan.Share, has Hardware) (plan.Plan, error) {
	p, err := h.measuredPlan(ctx, e, n, share, has)
	if err != nil || e.model.Memory > 0 || share.Left <= 0 || p.Need <= share.Left {
		return p, err
	}
	share.Budget = share.Left
	if smaller, err := h.measuredPlan(ctx, e, n, share, has); err == nil && smaller.Context < p.Context {
		return smaller, nil
	}
	return p, nil
}

// measuredPlan is plan without regard to what other programs hold.
func (h *Host) measuredPlan(ctx context.Context, e loadSpec, n int, share plan.Share, has Hardware) (plan.Plan, error) {
	p, err := h.cfg.Engines.Plan(e.model, e.recipe, e.options, share)
	if err != nil || e.model.Memory > 0 {
		return p, err
	}
	p.Key = needKey(cmp.Or(p.Signature, e.digest), e.model.Devices, n, has)
	need := h.needOf(ctx, p.Key)
	if need.Bytes == 0 {
		return p, nil
	}
	budget := share.Budget
	if budget > 0 && need.Bytes > budget && share.AboveEstimate == 0 {
		less := share
		less.AboveEstimate = max(need.Bytes-p.Estimate, 0)
		if smaller, err := h.measuredPlan(ctx, e, n, less, has); err == nil && smaller.Context < p.Context {
			return smaller, nil
		}
	}
	failed := need.FailedMS > 0
	recent := failed && time.Since(time.UnixMilli(need.FailedMS)) < retryTooLarge
	if p.Need <= budget && need.Bytes > budget && !recent {
		need.Bytes, failed = budget, false
	}
	p.Need, p.Ruled = need.Bytes, plan.ByMeasure
	if failed {
		p.Ruled = plan.ByFailure
	}
	return p, nil
}

// needKey identifies loads that take the same memory: by plan, devices and names of GPUs.
func needKey(signature string, d policy.Devices, gpus int, has Hardware) string {
	var names []string
	for _, one := range has.Found.Devices {
		if kind, _ := policy.ParseDevices(one.Kind); kind != policy.CPU && d.Overlaps(kind) {
			names = append(names, one.Name)
		}
	}
	text, _ := json.Marshal([]any{signature, d.String(), gpus, names}) // strings and numbers always marshal
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:12])
}

// needOf returns the need with a key, zero if there is none or Redis cannot be asked. It is asked once a minute at most.
func (h *Host) needOf(ctx context.Context, key string) state.Need {
	h.mu.Lock()
	known, ok := h.needs[key]
	h.mu.Unlock()
	if ok && time.Since(known.read) < needFresh {
		return known.Need
	}
	n, err := h.store.Need(ctx, key)
	if err != nil {
		return known.Need
	}
	h.rememberNeed(key, n)
	return n
}

func (h *Host) rememberNeed(key string, n state.Need) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.needs) >= maxKnownNeeds {
		clear(h.needs)
	}
	h.needs[key] = knownNeed{n, time.Now()}
}

// putNeed keeps a need, here and in Redis, where that succeeds.
func (h *Host) putNeed(ctx context.Context, key string, n state.Need) {
	h.rememberNeed(key, n)
	if err := h.store.PutNeed(ctx, key, n); err != nil {
		h.log.Warn("a measured need is not kept in Redis", "error", err)
	}
}

// measured returns what an engine has taken so far, 0 if that is unknown.
func measured(e Engine) int64 {
	if m, ok := e.(Measured); ok {
		return m.Measured()
	}
	return 0
}

// measureLocked records what a loaded engine took, and reports whether that is new. If it is more than planned, it is what the
// model counts from now on.
func (h *Host) measureLocked(r *resident, took int64) bool {
	p := &r.plan
	if took <= p.Measured || p.Measured > 0 && !differ(took, p.Measured) {
		return false
	}
	p.Measured, r.dirty = took, true
	if need := p.Took(took, r.model.Devices); p.Key != "" && need > r.memory {
		r.memory, p.Need, p.Ruled = need, need, plan.ByMeasure
	}
	h.log.Info("memory measured", "model", r.id, "estimated", p.Estimate, "measured", took, "parts", p.Parts())
	return true
}

// measure measures a loaded engine, and keeps its need for later loads if that is new.
func (h *Host) measure(ctx context.Context, r *resident) {
	took := measured(r.engine)
	h.mu.Lock()
	changed := h.measureLocked(r, took)
	h.mu.Unlock()
	if changed {
		h.keepNeed(ctx, r)
	}
}

// nextNeedLocked returns what the next load like that of a loaded model is expected to need. On a CPU it never falls,
// because an earlier engine may have served larger requests.
func (h *Host) nextNeedLocked(r *resident) (next, was state.Need) {
	was = h.needs[r.plan.Key].Need
	next.Bytes = r.plan.Took(r.plan.Measured, r.model.Devices)
	if was.FailedMS == 0 && r.model.Devices == policy.CPU {
		next.Bytes = max(next.Bytes, was.Bytes)
	}
	return next, was
}

// keepNeed keeps the measured need of a loaded model for later loads, unless it is about the one that was known.
func (h *Host) keepNeed(ctx context.Context, r *resident) {
	if r.plan.Key == "" {
		return
	}
	h.mu.Lock()
	next, was := h.nextNeedLocked(r)
	h.mu.Unlock()
	if next.Bytes > 0 && (was.FailedMS > 0 || differ(next.Bytes, cmp.Or(was.Bytes, r.plan.Estimate))) {
		h.putNeed(ctx, r.plan.Key, next)
	}
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
			if r.state == policy.ModelLoaded && r.engine != nil && (len(r.open) > 0 || r.used.After(since)) {
				list = append(list, r)
			}
		}
		h.mu.Unlock()
		for _, r := range list {
			h.measure(ctx, r)
		}
	}
}

// raiseNeed notes that an engine ran out of memory: what it failed to get is added to its need, which at most doubles the
// estimate. It returns the new need, 0 after other failures.
func (h *Host) raiseNeed(ctx context.Context, p plan.Plan, rc *recipe.Recipe, err error) int64 {
	exit, ended := errors.AsType[*engine.ExitError](err)
	if !ended || p.Key == "" {
		return 0
	}
	tail := strings.Join(exit.Tail, "\n")
	if !errors.Is(err, engine.ErrOutOfMemory) && rc.Errors.Cause(tail) != recipe.CauseOutOfMemory {
		return 0
	}
	need := max(p.Need, p.Estimate)
	need += cmp.Or(oom.Failed(tail), need/8)
	if p.Estimate > 0 {
		need = min(need, 2*p.Estimate)
	}
	if need <= 0 {
		return 0
	}
	h.log.Warn("engine ran out of memory: its model counts as larger", "estimated", p.Estimate, "before", p.Need, "need", need)
	h.putNeed(ctx, p.Key, state.Need{Bytes: need, FailedMS: time.Now().UnixMilli()})
	return need
}
