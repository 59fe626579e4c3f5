package twin

import (
	"slices"

	"reveille/testenv/calls"
)

// twin is the pool of one host as its rules say, and nothing cleverer. Calls come one at a time, so nothing is ever busy.
type twin struct {
	models calls.Catalogue
	limits map[string]int  // by type; -1 is no limit
	loaded []string        // the least recently used first
	pinned map[string]bool // of loaded models and others
}

// use is a request to a model, or a load of it: what it evicts, or that pinned models refuse it the room.
func (w *twin) use(model string) (cold bool, evicted []string, refused bool) {
	if at := slices.Index(w.loaded, model); at >= 0 {
		w.loaded = append(slices.Delete(w.loaded, at, at+1), model)
		return false, nil, false
	}
	stay := slices.Clone(w.loaded)
	evict := func(in func(string) bool) bool {
		at := slices.IndexFunc(stay, func(m string) bool { return in(m) && !w.pinned[m] })
		if at < 0 {
			return false
		}
		evicted = append(evicted, stay[at])
		stay = slices.Delete(stay, at, at+1)
		return true
	}
	count := func(in func(string) bool) (n int) {
		for _, m := range stay {
			if in(m) {
				n++
			}
		}
		return n
	}
	if w.models.NPU(model) && count(w.models.NPU) > 0 && !evict(w.models.NPU) {
		return true, nil, true
	}
	sameType := func(m string) bool { return w.models.Type(m) == w.models.Type(model) }
	if limit := w.limits[w.models.Type(model)]; limit >= 0 && count(sameType) >= limit && !evict(sameType) {
		return true, nil, true
	}
	slices.Sort(evicted)
	w.loaded = append(stay, model)
	return true, evicted, false
}

// unload reports whether there was something to unload.
func (w *twin) unload(model string) bool {
	at := slices.Index(w.loaded, model)
	if at < 0 {
		return false
	}
	w.loaded = slices.Delete(w.loaded, at, at+1)
	return true
}

func (w *twin) unloadAll() { w.loaded = nil }

func (w *twin) pin(model string, on bool) { w.pinned[model] = on }

// order lists the loaded models, the most recently used first.
func (w *twin) order() []string {
	out := slices.Clone(w.loaded)
	slices.Reverse(out)
	return out
}

// pins lists the loaded models that are pinned, by name.
func (w *twin) pins() []string {
	out := slices.DeleteFunc(slices.Clone(w.loaded), func(m string) bool { return !w.pinned[m] })
	slices.Sort(out)
	return out
}
