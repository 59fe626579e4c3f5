package models

import (
	"slices"
	"strconv"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/state"
)

// IsPinned follows the copy's load, else a management call, else the catalog, else the runner's record.
func (d *Registry) IsPinned(cat *catalog.Catalog, m *state.ModelRecord) bool {
	if m.LoadPin {
		return m.Pinned
	}
	pinned := m.Pinned
	if entry, there := cat.Model(m.ID); there {
		pinned = entry.Pin
	}
	return state.IsPinned(nil, d.Tables.Of(state.Pins)[m.ID], pinned)
}

// PinnedBy returns what pins a model: "pin", a call, until another call unpins it; "catalog", its entry; "load", the
// load of a copy, until that copy is unloaded; "" for nothing.
func (d *Registry) PinnedBy(m *catalog.Model) string {
	p, set := d.Tables.Of(state.Pins)[m.ID]
	switch {
	case set && state.ParsePinValue(p):
		return "pin"
	case !set && m.Pin:
		return "catalog"
	case slices.ContainsFunc(d.cfg.Mirror.Snapshot().Copies(m.ID), func(c *state.ModelRecord) bool { return c.LoadPin && c.Pinned }):
		return "load"
	}
	return ""
}

// IdleTime returns how long a model can be unused before the warmer unloads it; below 0 means for ever. It follows the
// catalog's warm list, keep_alive, the catalog's idle times, or the warmer's default.
func (d *Registry) IdleTime(cat *catalog.Catalog, id string) (idle time.Duration, known bool) {
	if keptWarm(cat, id) {
		return -1, true
	}
	if idle, known = d.tableIdle(id); known {
		return idle, true
	}
	return d.ConfiguredIdle(cat, id)
}

// keptWarm reports whether the catalog's warm list holds the model now.
func keptWarm(cat *catalog.Catalog, id string) bool {
	return slices.ContainsFunc(cat.Warm, func(w catalog.Warmup) bool { return w.Model == id && w.Active(time.Now()) })
}

// ConfiguredIdle is IdleTime without keep_alive.
func (d *Registry) ConfiguredIdle(cat *catalog.Catalog, id string) (idle time.Duration, known bool) {
	if keptWarm(cat, id) {
		return -1, true
	}
	if m, there := cat.Model(id); there {
		if idle, known = cat.Idle(m); known {
			return idle, true
		}
	}
	return d.tableIdle("") // the warmer's default
}

func (d *Registry) tableIdle(id string) (idle time.Duration, known bool) {
	ms, err := strconv.ParseInt(d.Tables.Of(state.IdleTTL)[id], 10, 64)
	return time.Duration(ms) * time.Millisecond, err == nil
}
