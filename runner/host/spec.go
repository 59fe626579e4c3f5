package host

import (
	"fmt"
	"maps"
	"strings"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/placement"
	"reveille/infra/policy"
	"reveille/infra/recipe"
	"reveille/infra/rpc"
	"reveille/infra/state"
	"reveille/runner/plan"
)

// quarantine is how long a load that failed although the host was cleared for it does not clear the host again.
const quarantine = 10 * time.Minute

// loadSpec is a ticket's model and everything needed to load it.
type loadSpec struct {
	model     *catalog.Model // on the devices that its options select
	catalog   *catalog.Catalog
	recipe    *recipe.Recipe
	options   recipe.Options // effective
	digest    string         // of what is loaded, so that a changed entry does not inherit what was learned
	plan      plan.Plan
	gpus      policy.GPUChoice // GPUs that it may use
	gpuMemory policy.GPUMemory // what it takes of each GPU, once decided; nil: of all together
	memory    int64
	pinned    bool
	loadPin   *bool // the load's own pin setting, nil for none
}

// specFor reads a ticket: its model, recipe and effective options (request > saved > catalogue > run-time settings >
// flags > recipe).
func (h *Host) specFor(t state.TicketRecord) (loadSpec, error) {
	h.mu.Lock()
	cat, set := h.catalog, h.settings
	loadPin := requestedPin(t)
	if r := h.residents[t.Model]; loadPin == nil && t.Options != "" && r != nil && r.isLoaded() {
		loadPin = r.loadPin // a reload with other options keeps the pin
	}
	if loadPin == nil {
		loadPin = h.crashedPins[t.Model]
	}
	pinned := false
	m, ok := cat.Model(t.Model)
	if ok {
		pinned = h.pinnedLocked(m, loadPin)
	}
	h.mu.Unlock()
	if !ok {
		return loadSpec{}, &Error{Code: rpc.CodeModelNotFound, Message: "model " + t.Model + " is not in the catalogue", Final: true, Cause: errUnknown}
	}
	rc, ok := cat.Recipes[m.Recipe]
	if !ok {
		return loadSpec{}, &Error{Code: rpc.CodeModelLoadError, Message: "this runner has no recipe " + m.Recipe + "; name a file that has it with --recipes", Final: true, Cause: errUnknown}
	}
	from := h.sources(m, set)
	from.Request = t.Options
	load, err := placement.Resolve(m, &rc, from)
	if err != nil {
		return loadSpec{}, err
	}
	e := loadSpec{model: load.Model, catalog: cat, recipe: &rc, options: load.Options, digest: load.Digest(), memory: int64(m.Memory), pinned: pinned, loadPin: loadPin}
	if e.plan, e.gpus, err = h.planFor(e, set); err != nil {
		return loadSpec{}, &Error{Code: rpc.CodeModelLoadError, Message: err.Error(), Final: true}
	}
	if e.memory == 0 {
		e.memory = e.plan.Need
	}
	return e, nil
}

// sources returns the layers of a model's options below a request's.
func (h *Host) sources(m *catalog.Model, set settings) placement.Sources {
	return placement.Sources{Saved: set.saved[m.ID], Runtime: set.runtime, Flags: h.cfg.Options}
}

// planFor computes a load's plan, and which GPUs it may use. Its share of a device depends on the host's settings and
// on the catalogue: the smallest budget of its devices, less what other models need, divided by the number of language
// models that may be loaded at once. If single GPUs can be chosen, the plan is for the fewest that hold it.
func (h *Host) planFor(e loadSpec, set settings) (plan.Plan, policy.GPUChoice, error) {
	var share plan.Share
	var unknown []string
	if e.model.Type == policy.LLM {
		var needs map[policy.Type][]int64
		needs, unknown = h.needsOfOthers(e, set)
		share = plan.ShareOf(0, set.limits.Of(policy.LLM), h.pagedOthers(e.model), plan.NeedsOfOthers(set.limits, needs))
	}
	h.mu.Lock()
	hardware := h.hardware
	left := h.availableLocked()
	h.mu.Unlock()
	for d, budget := range hardware.Budget {
		if e.model.Devices.Overlaps(d) && (share.Budget == 0 || budget < share.Budget) {
			share.Budget = budget
		}
		if n := left.Budget[d]; e.model.Devices.Overlaps(d) && n < budget && (share.Left == 0 || n < share.Left) {
			share.Left = n
		}
	}
	share.Total = hardware.Totals[e.model.Devices] // ambiguous for several devices
	p, gpus, err := h.planOnGPUs(e, share, hardware, left.Cards)
	if err == nil && len(unknown) > 0 && share.Budget > 0 && e.model.Memory == 0 {
		p.Warnings = append(p.Warnings, fmt.Sprintf("the share of %s leaves no room for %s, whose size is not known before the weights are here: "+
			"with a `memory:` of its own in the models file a model counts from the start", e.model.ID, strings.Join(unknown, ", ")))
	}
	return p, gpus, err
}

// planOnGPUs plans for the fewest GPUs whose budgets hold the load, and returns how many it needs at least. A load
// whose need is unknown gets all GPUs unless its entry says otherwise. share is that of all GPUs together, and left what other
// programs leave of each.
func (h *Host) planOnGPUs(e loadSpec, share plan.Share, has Hardware, left policy.GPUMemory) (p plan.Plan, gpus policy.GPUChoice, err error) {
	if has.Cards != nil {
		gpus = placement.Load{Model: e.model, Options: e.options}.GPUs(e.recipe, has.Found.API())
	}
	wanted := e.model.Choice()
	totals := has.Found.GPUTotals()
	for n := range gpus.Counts(has.Cards) {
		some := gpus
		some.Min, some.Max = n, n
		set, budget := some.Largest(has.Cards)
		part := share
		part.Budget, part.Total, part.Left = min(budget, share.Budget), 0, 0
		if _, room := some.Largest(left); room < budget {
			part.Left = max(room, 1)
		}
		for _, card := range set {
			part.Total += totals[card]
		}
		part.Paged = (share.Paged*n + len(has.Cards) - 1) / len(has.Cards) // the paged models on the same GPUs
		if p, err = h.plan(e, n, part); err != nil {
			return p, gpus, err
		}
		if p.Need == 0 && wanted == (policy.GPUChoice{}) {
			gpus = policy.GPUChoice{}
			break
		}
		if gpus.Min = n; p.Need <= budget {
			if gpus.Even {
				gpus.Max = n // the plan's sizes are for that many
			}
			return p, gpus, nil
		}
	}
	if p.Need > 0 { // too much for all of them
		return p, gpus, nil
	}
	p, err = h.plan(e, 0, share)
	if wanted != (policy.GPUChoice{}) && e.model.Devices.Has(policy.GPU) && gpus.Max == 0 {
		p.Warnings = append(p.Warnings, "the choice of GPUs is not heeded: "+e.recipe.Name+" cannot be told of single GPUs on this host")
	}
	return p, gpus, err
}

// needsOfOthers returns the memory needs of the models of other types that may be loaded together with e, each planned as its
// own load would be, and the models whose need is unknown, which count as 0.
func (h *Host) needsOfOthers(e loadSpec, set settings) (needs map[policy.Type][]int64, unknown []string) {
	needs = map[policy.Type][]int64{}
	for _, m := range e.catalog.Models {
		rc, ok := e.catalog.Recipes[m.Recipe]
		if m.Type == policy.LLM || !ok {
			continue
		}
		load, err := placement.Resolve(m, &rc, h.sources(m, set))
		if err != nil || !load.Model.Devices.Overlaps(e.model.Devices) {
			continue
		}
		need := h.memoryOf(load, &rc)
		if need == 0 {
			unknown = append(unknown, m.ID)
		}
		needs[m.Type] = append(needs[m.Type], need)
	}
	return needs, unknown
}

// memoryOf returns the memory that a plain model needs, 0 if that is unknown or it cannot be loaded.
func (h *Host) memoryOf(l placement.Load, rc *recipe.Recipe) int64 {
	if l.Model.Memory > 0 {
		return int64(l.Model.Memory)
	}
	p, err := h.cfg.Engines.Plan(l.Model, rc, l.Options, plan.Share{})
	if err != nil {
		return 0
	}
	return p.Need
}

// pagedOthers counts the language models on the devices of m, m excluded.
func (h *Host) pagedOthers(m *catalog.Model) (loaded int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for key, r := range h.residents {
		if key != m.ID && r.model.Type == policy.LLM && r.model.Devices.Overlaps(m.Devices) {
			loaded++
		}
	}
	return loaded
}

// requestedPin returns a load's pin setting, or nil.
func requestedPin(t state.TicketRecord) *bool {
	v, asked := t.Fields["pinned"]
	if !asked {
		return nil
	}
	return new(v == "1")
}

// learn records a load's memory use on this host, so that gateways know it when they place the model next. It returns the
// host's fields to write. If the catalogue gives the size, there is nothing to learn.
func (h *Host) learn(e loadSpec, device policy.Devices) map[string]string {
	if e.memory <= 0 || e.model.Memory > 0 {
		return nil
	}
	n := placement.Need{Bytes: e.memory, Device: device, Parts: e.plan.Parts(), Of: e.digest}
	if e.plan.Ruled == plan.ByFailure {
		n.Until = time.Now().Add(retryTooLarge).UnixMilli()
	}
	field := placement.NeedField + e.model.ID
	h.mu.Lock()
	defer h.mu.Unlock()
	h.learned[field] = n.String()
	return map[string]string{field: n.String()}
}

// learnedLocked returns what was learned about models that are still in the catalogue.
func (h *Host) learnedLocked() map[string]string {
	maps.DeleteFunc(h.learned, func(field, _ string) bool {
		_, there := h.catalog.Model(strings.TrimPrefix(field, placement.NeedField))
		return !there
	})
	return maps.Clone(h.learned)
}

// newResident makes the resident that takes the new model's slot.
func (e loadSpec) newResident(ticket string) *resident {
	return &resident{
		id: e.model.ID, key: e.model.ID, recipe: e.recipe, options: e.options, plan: e.plan, memory: e.memory, gpuMemory: e.gpuMemory, catalog: e.catalog, gone: make(chan struct{}),
		model: e.model, checked: e.catalog, pinned: e.pinned, loadPin: e.loadPin, used: time.Now(), ticket: ticket, open: map[*Ref]struct{}{}, reservations: reservations{}, dirty: true,
	}
}

// quarantined reports whether a load failed after the host was cleared for it, a short while ago.
func (h *Host) quarantined(e loadSpec) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Now().Before(h.quarantine[e.digest])
}
