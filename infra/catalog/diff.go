package catalog

import (
	"bytes"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
)

// Changes tells what a new catalogue asks of what runs under an old one. All lists are sorted. What is in none of them
// is the same in both catalogues and is not to be touched.
type Changes struct {
	Added, Removed []string                // ids of models
	Changed        map[string]ModelChanges // by id; only models that are in both and differ
	Hosts          []string                // names of hosts that were added, removed or changed
	Defaults, Warm bool                    // the section differs
}

// ModelChanges are the fields of models.yaml in which two versions of a model differ, sorted.
type ModelChanges struct {
	// Reload are those that a loaded engine was started with: the model has to be drained and loaded again for them to
	// count. "recipe" also stands for a recipe of the same name whose content changed.
	Reload []string
	// Update are those that count from now on without touching the engine.
	Update []string
}

// Diff compares two catalogues. A nil one counts as empty.
func Diff(old, new *Catalog) Changes {
	if old == nil {
		old = &Catalog{}
	}
	if new == nil {
		new = &Catalog{}
	}
	out := Changes{
		Changed:  map[string]ModelChanges{},
		Defaults: !reflect.DeepEqual(old.Defaults, new.Defaults),
		Warm:     !slices.EqualFunc(old.Warm, new.Warm, func(a, b Warmup) bool { return a == b }),
	}
	out.Added, out.Removed = oneSided(old.index.byID, new.index.byID)
	for id, a := range old.index.byID {
		b, ok := new.index.byID[id]
		if !ok {
			continue
		}
		if m := diffModel(old, new, a, b); len(m.Reload)+len(m.Update) > 0 {
			out.Changed[id] = m
		}
	}
	added, removed := oneSided(old.index.hosts, new.index.hosts)
	out.Hosts = append(added, removed...)
	for name, a := range old.index.hosts {
		if b, ok := new.index.hosts[name]; ok && !reflect.DeepEqual(a, b) {
			out.Hosts = append(out.Hosts, name)
		}
	}
	slices.Sort(out.Hosts)
	return out
}

// Outdated reports whether an engine that was loaded for a model under the old catalogue has to be loaded again under the new
// one, or to go: the model differs in a field of [ModelChanges.Reload], or the new one lacks it. It compares that model alone.
func Outdated(old, new *Catalog, id string) bool {
	a, b := old.index.byID[id], new.index.byID[id]
	return a == nil || b == nil || len(diffModel(old, new, a, b).Reload) > 0
}

// oneSided returns the keys that only the new map has and those that only the old one has, sorted.
func oneSided[V any](old, new map[string]V) (added, removed []string) {
	for _, k := range slices.Sorted(maps.Keys(new)) {
		if _, ok := old[k]; !ok {
			added = append(added, k)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(old)) {
		if _, ok := new[k]; !ok {
			removed = append(removed, k)
		}
	}
	return added, removed
}

// diffModel compares a model of the old catalogue with its namesake of the new one.
func diffModel(old, new *Catalog, a, b *Model) ModelChanges {
	var out ModelChanges
	for _, f := range [...]struct {
		name   string
		same   bool
		reload bool
	}{
		{"aliases", slices.Equal(a.Aliases, b.Aliases), false},
		{"checkpoint", a.Checkpoint == b.Checkpoint, true},
		{"description", a.Description == b.Description, false},
		{"device", a.Devices == b.Devices, true},
		{"dimensions", a.Dimensions == b.Dimensions, false},
		{"fallback", slices.Equal(a.Fallback, b.Fallback), false},
		{"hosts", slices.Equal(a.Hosts, b.Hosts), false},
		{"idle", reflect.DeepEqual(a.Idle, b.Idle), false},
		{"labels", slices.Equal(a.Labels, b.Labels), false},
		{"memory", a.Memory == b.Memory, false},
		{"mm_cache", a.MMCache == b.MMCache, true},
		{"mmproj", a.MMProj == b.MMProj, true},
		{"normalize_scores", a.NormalizeScores == b.NormalizeScores, false},
		{"options", a.Options.Equal(b.Options), true},
		{"pin", a.Pin == b.Pin, false},
		{"recipe", a.Recipe == b.Recipe, true},
		{"sha256", a.SHA256 == b.SHA256, true},
		{"replicas", a.Replicas == b.Replicas, false},
		{"type", a.Type == b.Type, true},
	} {
		switch {
		case f.same:
		case f.reload:
			out.Reload = append(out.Reload, f.name)
		default:
			out.Update = append(out.Update, f.name)
		}
	}
	if a.Recipe == b.Recipe && !same(old.Recipes[a.Recipe], new.Recipes[b.Recipe]) {
		out.Reload = append(out.Reload, "recipe")
		slices.Sort(out.Reload)
	}
	return out
}

// same compares by the published form, in which a value that was read back equals the one that was written.
func same(a, b any) bool {
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}
