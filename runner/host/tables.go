package host

import (
	"context"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/placement"
	"reveille/infra/policy"
	"reveille/infra/state"
)

// settings are the run-time tables of the pool as last read.
type settings struct {
	saved, pins, runtime map[string]string
	limits               policy.Limits // the flags' with the run-time ones over them
	read                 uint64        // the change that they were read after
}

// refreshSettings reads the run-time tables when an event made them stale. If that fails, loads wait for Redis like
// everything else, and the tables read before stay in force.
func (h *Host) refreshSettings(ctx context.Context) error {
	h.mu.Lock()
	change := h.settingsChange
	fresh := h.settings.read == change
	h.mu.Unlock()
	if fresh {
		return nil
	}
	saved, err := h.store.All(ctx, state.SavedOptions)
	if err != nil {
		return err
	}
	pins, err := h.store.All(ctx, state.Pins)
	if err != nil {
		return err
	}
	runtime, err := h.store.All(ctx, state.Runtime)
	if err != nil {
		return err
	}
	h.mu.Lock()
	was := h.settings.limits
	for _, r := range h.residents {
		if h.settings.pins[r.id] != pins[r.id] { // a call that is newer than the load
			r.dirty, r.loadPin = r.dirty || r.loadPin != nil, nil
		}
	}
	h.settings = settings{saved: saved, pins: pins, runtime: runtime, limits: runtimeLimits(h.cfg.Limits, runtime), read: change}
	for _, r := range h.residents {
		if p := h.pinnedLocked(r.model, r.loadPin); p != r.pinned && !r.retired() {
			r.pinned, r.dirty = p, true
		}
	}
	changed := h.settings.limits != was
	if changed {
		clear(h.learned) // a model's share of a device depends on them
	}
	h.mu.Unlock()
	if changed {
		h.noteWrite(errStale) // gateways place by the limits of the registration
	}
	return nil
}

// pinnedLocked says whether a model is pinned: by its load where that says so, else by a management call, else by the
// catalogue.
func (h *Host) pinnedLocked(m *catalog.Model, load *bool) bool {
	if load != nil {
		return *load
	}
	if p, ok := h.settings.pins[m.ID]; ok {
		return state.PinnedBy(p)
	}
	return m.Pin
}

// refreshCatalog reads the published catalogue when its version is not the one held. One that cannot be understood is
// passed over; one that the store refuses is looked at again after a beat. Models whose entry needs no other engine get
// their new entry.
func (h *Host) refreshCatalog(ctx context.Context, version string) error {
	h.mu.Lock()
	same := version == "" || version == h.catalog.Version || version == h.refusedCatalog ||
		version == h.lookedCatalog && time.Since(h.looked) < h.cfg.Beat
	h.mu.Unlock()
	if same {
		return nil
	}
	published, raw, err := h.store.Catalog(ctx)
	if err != nil {
		return err
	}
	h.mu.Lock()
	h.lookedCatalog, h.looked = version, time.Now()
	same = published == "" || published == h.catalog.Version // the store goes on with the one that was right
	h.mu.Unlock()
	if same {
		return nil
	}
	next, err := catalog.Unmarshal(raw)
	own, err2 := h.cfg.Recipes()
	h.mu.Lock()
	defer h.mu.Unlock()
	if err2 != nil {
		h.log.Error("recipes not understood, those before stay", "error", err2)
		own = h.catalog.Recipes
	}
	if err != nil {
		h.refusedCatalog = published
		h.log.Error("catalogue not understood, the one before stays", "version", published, "error", err)
		return nil
	}
	next.Recipes = own // what is executed is never read from Redis
	h.catalog, h.refusedCatalog = next, ""
	h.log.Info("catalogue read", "version", next.Version, "models", len(next.Models))
	return nil
}

// dismissOutdated retires models whose entry changed in a way that needs another engine, or is gone; the others get their
// new entry. A model that is loading is looked at when it is loaded and has served those that it was loaded for.
func (h *Host) dismissOutdated(ctx context.Context) {
	outdated := h.compareEntries()
	var gone []*resident
	h.mu.Lock()
	for r, out := range outdated {
		if h.residents[r.id] != r || r.state != policy.ModelLoaded {
			continue
		}
		if out {
			gone = append(gone, r)
			continue
		}
		r.checked = h.catalog
		m, _ := h.catalog.Model(r.id)
		r.model, r.pinned, r.dirty = placement.On(m, r.recipe, r.options), h.pinnedLocked(m, r.loadPin), true
	}
	h.mu.Unlock()
	for _, r := range gone {
		h.retire(ctx, r)
	}
}

// compareEntries says of each loaded model that is not reserved and was not compared with the catalogue yet whether it is
// outdated. Comparing takes its time, so the host is not locked meanwhile; only the loop, which calls this, changes the
// catalogue.
func (h *Host) compareEntries() map[*resident]bool {
	outdated := map[*resident]bool{}
	h.mu.Lock()
	current := h.catalog
	for _, r := range h.residents {
		if r.checked != current && r.state == policy.ModelLoaded && !r.reservations.any() {
			outdated[r] = false
		}
	}
	h.mu.Unlock()
	for r := range outdated {
		outdated[r] = catalog.Outdated(r.catalog, current, r.id)
	}
	return outdated
}
