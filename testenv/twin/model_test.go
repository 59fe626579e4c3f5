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
	loadAt map[string]int  // of loaded models and others, the number of its last load
	nth    int             // loads so far
	pins   map[string]bool // of loaded models and others, by calls
	loads  map[string]bool // of loaded models, what a load said of their pin; it goes before the calls' and ends with the model
}

func (w *twin) pinned(model string) bool {
	if by, said := w.loads[model]; said {
		return by
	}
	return w.pins[model]
}

// use is a request to a model, or a load of it: what it evicts, or that pinned models refuse it the room.
func (w *twin) use(model string) (cold bool, evicted []string, refused bool) {
	if at := slices.Index(w.loaded, model); at >= 0 {
		w.loaded = append(slices.Delete(w.loaded, at, at+1), model)
		return false, nil, false
	}
	stay := slices.Clone(w.loaded)
	evict := func(in func(string) bool) bool {
		at := slices.IndexFunc(stay, func(m string) bool { return in(m) && !w.pinned(m) })
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
	for _, m := range evicted {
		delete(w.loads, m)
	}
	w.loaded = append(stay, model)
	w.nth++
	w.loadAt[model] = w.nth
	return true, evicted, false
}

// unload reports whether there was something to unload.
func (w *twin) unload(model string) bool {
	at := slices.Index(w.loaded, model)
	if at < 0 {
		return false
	}
	w.loaded = slices.Delete(w.loaded, at, at+1)
	delete(w.loads, model)
	return true
}

func (w *twin) unloadAll() {
	w.loaded = nil
	clear(w.loads)
}

func (w *twin) pin(model string, on bool) {
	w.pins[model] = on
	delete(w.loads, model)
}

// order lists the loaded models, the most recently used first.
func (w *twin) order() []string {
	out := slices.Clone(w.loaded)
	slices.Reverse(out)
	return out
}

// latest is the model that was loaded last, "" for none.
func (w *twin) latest() (name string) {
	for _, m := range w.loaded {
		if name == "" || w.loadAt[m] > w.loadAt[name] {
			name = m
		}
	}
	return name
}

// pinnedModels lists the loaded models that are pinned, by name.
func (w *twin) pinnedModels() []string {
	out := slices.DeleteFunc(slices.Clone(w.loaded), func(m string) bool { return !w.pinned(m) })
	slices.Sort(out)
	return out
}
