package host

import (
	"context"
	"errors"
	"maps"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/placement"
	"reveille/infra/policy"
	"reveille/infra/state"
)

// settings are the pool's run-time tables as last read.
type settings struct {
	saved, pins, runtime map[string]string
	limits               policy.Limits // the flags', overridden at run time
	read                 uint64        // the value of settingsChange when they were read
}

// refreshSettings reads the run-time tables after an event has made them stale. If that fails, loads wait for Redis,
// and the previous tables stay in force.
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
	if err == nil {
		err = h.refreshForgotten(ctx)
	}
	if err != nil {
		return err
	}
	limits, _ := h.cfg.Limits.Override([]byte(runtime["max_loaded_models"])) // without a valid setting, the flags' limits
	h.mu.Lock()
	previous := h.settings.limits
	maps.DeleteFunc(h.crashedPins, func(model string, _ *bool) bool { return h.settings.pins[model] != pins[model] })
	for _, r := range h.residents {
		if h.settings.pins[r.id] != pins[r.id] { // the management call is newer than the load
			r.dirty, r.loadPin = r.dirty || r.loadPin != nil, nil
		}
	}
	h.settings = settings{saved: saved, pins: pins, runtime: runtime, limits: limits, read: change}
	for _, r := range h.residents {
		if p := state.IsPinned(r.loadPin, pins[r.id], r.model.Pin); p != r.pinned && !r.isRetired() {
			r.pinned, r.dirty = p, true
		}
	}
	changed := h.settings.limits != previous
	if changed {
		clear(h.learned) // a model's share of a device depends on them
	}
	h.mu.Unlock()
	if changed {
		h.noteWriteError(errNotRegistered) // gateways place by the limits of the registration
	}
	return nil
}

// refreshCatalog reads the published catalog if its version has changed. It skips a catalog that is invalid or not
// signed.
func (h *Host) refreshCatalog(ctx context.Context, version string) error {
	h.mu.Lock()
	same := version == "" || version == h.catalog.Version || version == h.refusedCatalog ||
		version == h.checkedCatalog && time.Since(h.catalogCheckedAt) < h.cfg.Beat
	h.mu.Unlock()
	if same {
		return nil
	}
	published, raw, err := h.store.Catalog(ctx)
	if errors.Is(err, state.ErrUnsigned) {
		h.log.Error("catalog refused, keeping the previous one", "version", version, "error", err)
		h.mu.Lock()
		h.refusedCatalog = version
		h.mu.Unlock()
		return nil
	}
	if err != nil {
		return err
	}
	h.mu.Lock()
	h.checkedCatalog, h.catalogCheckedAt = version, time.Now()
	same = published == "" || published == h.catalog.Version
	h.mu.Unlock()
	if same {
		return nil
	}
	next, err := catalog.Unmarshal(raw)
	recipes, recipesErr := h.cfg.Recipes()
	h.mu.Lock()
	defer h.mu.Unlock()
	if recipesErr != nil {
		h.log.Error("recipes are invalid, keeping the previous ones", "error", recipesErr)
		recipes = h.catalog.Recipes
	}
	if err != nil {
		h.refusedCatalog = published
		h.log.Error("catalog is invalid, keeping the previous one", "version", published, "error", err)
		return nil
	}
	next.Recipes = recipes // commands never come from Redis
	h.catalog, h.refusedCatalog = next, ""
	h.log.Info("catalog read", "version", next.Version, "models", len(next.Models))
	return nil
}

// retireOutdated retires models whose entry is gone or changed in a way that needs another engine. The others get their
// new entry. A loading model is checked once it is loaded and has served its waiters. Models whose conversations must
// be forgotten are retired as well.
func (h *Host) retireOutdated(ctx context.Context) {
	h.mu.Lock()
	current := h.catalog
	var compare, forgotten []*resident
	for _, r := range h.residents {
		switch {
		case !r.isLoaded():
		case r.forgetting:
			clear(r.reservations)
			forgotten = append(forgotten, r)
		case r.checked != current && len(r.reservations) == 0:
			compare = append(compare, r)
		}
	}
	h.mu.Unlock()
	for _, r := range forgotten {
		h.retire(ctx, r, "conversations forgotten")
	}
	for _, r := range compare {
		if catalog.Outdated(r.catalog, current, r.id) { // slow, so without the lock; only the loop, which calls this, changes the catalog
			h.retire(ctx, r, "catalog entry changed")
			continue
		}
		h.mu.Lock()
		if r.isLoaded() {
			r.checked = current
			m, _ := current.Model(r.id)
			r.model, r.dirty = placement.WithDevices(m, r.recipe, r.options), true
			r.pinned = state.IsPinned(r.loadPin, h.settings.pins[r.id], m.Pin)
		}
		h.mu.Unlock()
	}
}
