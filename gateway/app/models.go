package app

import (
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/state"
)

// liveCatalog is the catalog in force: the file, and the models that were registered at run time, as far as this gateway
// still allows them. It publishes itself to Redis, where runners and the warmer read it, and again whenever Redis does
// not have it.
type liveCatalog struct {
	store *state.Store
	allow catalog.RegisterList // where the weights of registered models may lie
	log   *slog.Logger
	dirty chan struct{} // capacity 1: something changed

	current atomic.Pointer[catalog.Catalog]
	left    atomic.Pointer[map[string]string] // registered models that are not in force, and why, in words for any client

	mu         sync.Mutex
	file       *catalog.Catalog
	registered []catalog.Model
}

func newLiveCatalog(file *catalog.Catalog, store *state.Store, allow catalog.RegisterList, log *slog.Logger) *liveCatalog {
	m := &liveCatalog{store: store, allow: allow, log: log, dirty: make(chan struct{}, 1), file: file}
	m.current.Store(file)
	m.left.Store(&map[string]string{})
	return m
}

// withheld returns why a registered model is not in force, "" if it is or if there is no such model.
func (m *liveCatalog) withheld(id string) string { return (*m.left.Load())[id] }

// get returns the catalog in force; never nil.
func (m *liveCatalog) get() *catalog.Catalog { return m.current.Load() }

// setFile takes over a new file.
func (m *liveCatalog) setFile(c *catalog.Catalog, warnings catalog.Problems) {
	for _, w := range warnings {
		m.log.Warn("warning in the models file", "warning", w.String())
	}
	m.mu.Lock()
	m.file = c
	m.rebuildLocked()
	m.mu.Unlock()
	m.notify()
	m.log.Info("models file read", "models", len(c.Models), "version", m.get().Version)
}

// rebuildLocked lays the registered models over the file. One that is not allowed any more, or does not fit, is left
// out and stays registered.
func (m *liveCatalog) rebuildLocked() {
	next, left := m.file, map[string]string{}
	for _, r := range m.registered {
		with, err := next, m.allow.Check(&r)
		why := "its weights do not lie where --register-allow allows them"
		if err == nil {
			with, err = next.With(r)
			why = "it does not fit the models file"
		}
		if err != nil {
			m.log.Warn("registered model left out", "model", r.ID, "error", err)
			left[r.ID] = why
			continue
		}
		next = with
	}
	m.left.Store(&left)
	m.current.Store(next)
}

// reloadRegistered reads the models registered at run time and puts them in force.
func (m *liveCatalog) reloadRegistered(ctx context.Context) error {
	table, err := m.store.All(ctx, state.Registered)
	if err != nil {
		return err
	}
	list := make([]catalog.Model, 0, len(table))
	for _, id := range slices.Sorted(maps.Keys(table)) {
		var model catalog.Model
		if err := json.Unmarshal([]byte(table[id]), &model); err != nil || model.ID != id {
			m.log.Warn("registered model cannot be read", "model", id)
			continue
		}
		list = append(list, model)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.registered = list
	m.rebuildLocked()
	return nil
}

func (m *liveCatalog) notify() {
	select {
	case m.dirty <- struct{}{}:
	default:
	}
}

// onEvent processes the pool's events: a change of the registered models, and reconnections, after which Redis may be
// empty.
func (m *liveCatalog) onEvent(e state.Event) {
	if e.Kind == "sync" || e.Kind == "settings" && e.State == string(state.Registered) {
		m.notify()
	}
}

// repairEvery is the time between looks at whether the pool has a catalog at all.
const repairEvery = 2 * time.Second

// run publishes the catalog when this gateway's own changed, and when the pool has none, until ctx ends. pool tells
// the version that the pool has, "" for none. Another version there is another gateway's, with a newer file perhaps:
// whoever changed last is right, and two gateways with different files do not overwrite each other for ever.
func (m *liveCatalog) run(ctx context.Context, pool func() string) {
	tick := time.NewTicker(repairEvery)
	defer tick.Stop()
	published, reload := "", true
	for {
		if reload && m.reloadRegistered(ctx) == nil {
			reload = false
		}
		if c := m.get(); !reload && (c.Version != published || pool() == "") && m.publish(ctx, c) {
			published = c.Version
		}
		select {
		case <-ctx.Done():
			return
		case <-m.dirty:
			reload = true
		case <-tick.C:
		}
	}
}

// publish writes the catalog to Redis and reports whether Redis has it.
func (m *liveCatalog) publish(ctx context.Context, c *catalog.Catalog) bool {
	data, err := c.Marshal()
	if err != nil {
		m.log.Error("catalog cannot be written", "error", err)
		return false
	}
	hosts := map[string]string{}
	for _, h := range c.Hosts {
		if h.Driver != catalog.DriverASG {
			hosts[h.Name] = string(h.Driver)
		}
	}
	changed, err := m.store.PutCatalog(ctx, c.Version, data, hosts)
	if changed && err == nil {
		m.log.Info("catalog published", "version", c.Version)
	}
	return err == nil
}
