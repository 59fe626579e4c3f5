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

// noClearTime is how long a load that failed on a cleared host must not clear the host again.
const noClearTime = 10 * time.Minute

// loadSpec is a ticket's model and everything needed to load it.
type loadSpec struct {
	model     *catalog.Model // on the devices that its options select
	catalog   *catalog.Catalog
	recipe    *recipe.Recipe
	options   recipe.Options // the effective ones
	digest    string         // identifies what is loaded, so that a changed entry does not inherit what was learned
	plan      plan.Plan
	gpus      policy.GPUConstraint // GPUs that it may use
	gpuMemory policy.GPUMemory     // what it takes of each GPU, once decided; nil: of all together
	memory    int64
	pinned    bool
	loadPin   *bool // the load's own pin setting, nil for none
}

// specFor resolves a ticket to its model, recipe and effective options (request > saved > catalog > run-time settings >
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
	h.mu.Unlock()
	m, ok := cat.Model(t.Model)
	if !ok {
		return loadSpec{}, &Error{Code: rpc.CodeModelNotFound, Message: "model " + t.Model + " is not in the catalog", Final: true, Cause: errNotInCatalog}
	}
	rc, ok := cat.Recipes[m.Recipe]
	if !ok {
		return loadSpec{}, &Error{Code: rpc.CodeModelLoadError, Message: "this runner has no recipe " + m.Recipe + "; add it to the file of --recipes", Final: true, Cause: errNotInCatalog}
	}
	from := h.sources(m, set)
	from.Request = t.Options
	load, err := placement.Resolve(m, &rc, from)
	if err != nil {
		return loadSpec{}, err
	}
	e := loadSpec{
		model: load.Model, catalog: cat, recipe: &rc, options: load.Options, digest: load.Digest(), memory: int64(m.Memory),
		pinned: state.IsPinned(loadPin, set.pins[m.ID], m.Pin), loadPin: loadPin,
	}
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
// on the catalog: the smallest budget of its devices, less what other models need, divided by the number of language
// models that can be loaded at the same time. If single GPUs can be chosen, the plan uses the fewest that hold the
// model.
func (h *Host) planFor(e loadSpec, set settings) (plan.Plan, policy.GPUConstraint, error) {
	var share plan.Share
	var unknown []string
	if e.model.Type == policy.LLM {
		var needs map[policy.Type][]int64
		needs, unknown = h.needsOfOthers(e, set)
		share = plan.ShareOf(0, set.limits.Of(policy.LLM), h.otherLLMsOn(e.model), plan.NeedsOfOthers(set.limits, needs))
	}
	h.mu.Lock()
	hardware := h.hardware
	available := h.availableLocked()
	h.mu.Unlock()
	for d, budget := range hardware.Budget {
		if e.model.Devices.Overlaps(d) && (share.Budget == 0 || budget < share.Budget) {
			share.Budget = budget
		}
		if n := available.Budget[d]; e.model.Devices.Overlaps(d) && n < budget && (share.Left == 0 || n < share.Left) {
			share.Left = n
		}
	}
	share.Total = hardware.Totals[e.model.Devices] // unknown for several devices
	p, gpus, err := h.planOnGPUs(e, share, hardware, available.Cards)
	if err == nil && len(unknown) > 0 && share.Budget > 0 && e.model.Memory == 0 {
		p.Warnings = append(p.Warnings, fmt.Sprintf("the share of %s leaves no room for %s, whose size is unknown until its weights are on this host: "+
			"set `memory:` in its models file entry to reserve room from the start", e.model.ID, strings.Join(unknown, ", ")))
	}
	return p, gpus, err
}

// planOnGPUs plans for the fewest GPUs whose budgets hold the load, and returns the minimum number that it needs. A
// load whose need is unknown gets all GPUs unless its entry says otherwise. share is the share of all GPUs together,
// and left the memory of each that other programs leave free.
func (h *Host) planOnGPUs(e loadSpec, share plan.Share, hw Hardware, left policy.GPUMemory) (p plan.Plan, gpus policy.GPUConstraint, err error) {
	if hw.Cards != nil {
		gpus = placement.Load{Model: e.model, Options: e.options}.GPUs(e.recipe, hw.Found.API())
	}
	wanted := e.model.GPUConstraint()
	totals := hw.Found.GPUTotals()
	for n := range gpus.Counts(hw.Cards) {
		some := gpus
		some.Min, some.Max = n, n
		set, budget := some.Largest(hw.Cards)
		part := share
		part.Budget, part.Total, part.Left = min(budget, share.Budget), 0, 0
		if _, room := some.Largest(left); room < budget {
			part.Left = max(room, 1)
		}
		for _, card := range set {
			part.Total += totals[card]
		}
		part.Paged = (share.Paged*n + len(hw.Cards) - 1) / len(hw.Cards) // the paged models on the same GPUs
		if p, err = h.planOn(e, n, part); err != nil {
			return p, gpus, err
		}
		if p.Need == 0 && wanted == (policy.GPUConstraint{}) {
			gpus = policy.GPUConstraint{}
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
	p, err = h.planOn(e, 0, share)
	if wanted != (policy.GPUConstraint{}) && e.model.Devices.Has(policy.GPU) && gpus.Max == 0 {
		p.Warnings = append(p.Warnings, "the choice of GPUs is ignored: "+e.recipe.Name+" cannot use single GPUs of this host")
	}
	return p, gpus, err
}

// needsOfOthers returns the memory needs of the models of other types that can be loaded together with e, each planned
// as for its own load, and the models whose need is unknown, which count as 0.
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

// memoryOf returns the memory that a model of another type than LLM needs, 0 if unknown or it cannot be loaded.
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

// otherLLMsOn counts the resident language models other than m on its devices: without a limit of slots, a device is
// divided by what is loaded.
func (h *Host) otherLLMsOn(m *catalog.Model) (loaded int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for key, r := range h.residents {
		if key != m.ID && r.model.Type == policy.LLM && r.model.Devices.Overlaps(m.Devices) {
			loaded++
		}
	}
	return loaded
}

// requestedPin returns a load's pin setting, nil for none.
func requestedPin(t state.TicketRecord) *bool {
	v, ok := t.Fields["pinned"]
	if !ok {
		return nil
	}
	return new(v == "1")
}

// learn records a load's memory use on this host, for gateways that place the model next. It returns the fields of the
// host's record to write. If the catalog gives the size, there is nothing to learn.
func (h *Host) learn(e loadSpec, device policy.Devices) map[string]string {
	if e.memory <= 0 || e.model.Memory > 0 {
		return nil
	}
	n := placement.Need{Bytes: e.memory, Device: device, Parts: e.plan.Parts(), Digest: e.digest}
	if e.plan.NeedSource == plan.FromOOM {
		n.Until = time.Now().Add(retryTooLarge).UnixMilli()
	}
	field := placement.NeedField + e.model.ID
	h.mu.Lock()
	defer h.mu.Unlock()
	h.learned[field] = n.String()
	return map[string]string{field: n.String()}
}

// learnedLocked returns what was learned about models that are still in the catalog.
func (h *Host) learnedLocked() map[string]string {
	maps.DeleteFunc(h.learned, func(field, _ string) bool {
		_, ok := h.catalog.Model(strings.TrimPrefix(field, placement.NeedField))
		return !ok
	})
	return maps.Clone(h.learned)
}

// newResident returns the resident that takes the new model's slot.
func (e loadSpec) newResident(ticket string) *resident {
	return &resident{
		id: e.model.ID, key: e.model.ID, recipe: e.recipe, options: e.options, plan: e.plan, memory: e.memory, gpuMemory: e.gpuMemory, catalog: e.catalog, gone: make(chan struct{}),
		model: e.model, checked: e.catalog, pinned: e.pinned, loadPin: e.loadPin, used: time.Now(), ticket: ticket, open: map[*Ref]struct{}{}, background: map[*Ref]struct{}{}, reservations: reservations{}, dirty: true,
	}
}

// mayClear reports whether a load may clear the host: it has not failed on a cleared host a short while ago, and
// min_loaded keeps no model.
func (h *Host) mayClear(e loadSpec) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	for _, r := range h.residents {
		if !r.pinned && now.Before(r.keptUntil()) {
			return false
		}
	}
	return !now.Before(h.noClearUntil[e.digest])
}
