package models

import (
	"os"
	"slices"

	"reveille/infra/catalog"
	"reveille/infra/modelfile"
	"reveille/infra/policy"
	"reveille/infra/recipe"
)

// Weights is what this gateway knows of a model's files. They are on the hosts. A gateway sees them only if it runs on
// the same machine.
type Weights struct {
	There           bool
	Folder          bool // they are files in a folder
	Bytes           int64
	modelfile.Facts       // of the checkpoint; zero if it is not a GGUF file
	Created         int64 // Unix seconds of the newest change, 0 if unknown
}

// WeightsOf looks at a model's files.
func (d *Registry) WeightsOf(cat *catalog.Catalog, m *catalog.Model) Weights {
	var w Weights
	missing := false
	for _, place := range []string{m.Checkpoint, m.MMProj} {
		c := catalog.ParseCheckpoint(place)
		if c.Scheme != catalog.SchemePath {
			missing = true
			continue
		}
		if c.Path == "" {
			continue
		}
		info, err := os.Stat(c.Path)
		if err != nil {
			missing = true
			continue
		}
		w.Created = max(w.Created, info.ModTime().Unix())
		w.Folder = w.Folder || info.IsDir()
		if place == m.Checkpoint && info.Mode().IsRegular() {
			w.Facts, _ = d.facts.Read(c.Path, info, modelfile.Read)
		}
		if info.Mode().IsRegular() {
			w.Bytes += info.Size()
		}
	}
	rc := cat.Recipes[m.Recipe]
	w.There = !missing || !rc.NeedsFile() || d.StateOf(m.ID) == "loaded" || elsewhere(cat, m)
	return w
}

// elsewhere reports whether a model whose weights are a path may run on another machine. Its weights then count as
// present.
func elsewhere(cat *catalog.Catalog, m *catalog.Model) bool {
	if Remote(m) {
		return false
	}
	return slices.ContainsFunc(cat.HostsFor(m), func(h *catalog.Host) bool { return h.Driver != catalog.DriverLocal })
}

// Remote reports whether a model's weights are stored elsewhere, so that its first request fetches them.
func Remote(m *catalog.Model) bool {
	return catalog.ParseCheckpoint(m.Checkpoint).Scheme != catalog.SchemePath
}

// ContextOf returns the longest sequence that a model takes, and the one that it was trained for, in tokens; 0 if
// unknown. The first comes from the plan of a loaded copy, else from the options; the second from the plan or the
// model's file.
func (d *Registry) ContextOf(m *catalog.Model, w Weights, o recipe.Options) (now, most int64) {
	asked, _ := o["ctx_size"].(int64) // -1 leaves it open
	now, most = max(asked, 0), w.Context
	if copies := d.cfg.Mirror.Snapshot().Copies(m.ID); len(copies) > 0 {
		if p := copies[0].Plan(); p.Positions > 0 && p.Longest > 0 {
			now, most = p.Longest, p.Positions
		}
	}
	if now == 0 || most > 0 && now > most && m.Type != policy.LLM { // a language model's positions can be stretched
		now = most
	}
	return now, max(now, most)
}
