package httpapi

import (
	"cmp"
	"encoding/json"
	"maps"
	"os"
	"slices"

	"github.com/valyala/fasthttp"

	"reveille/infra/catalog"
	"reveille/infra/policy"
	"reveille/infra/recipe"
	"reveille/infra/state"
)

// modelItem is a model in a listing.
type modelItem struct {
	ID         string         `json:"id"`
	Object     string         `json:"object"`
	Created    int64          `json:"created"` // Unix seconds
	OwnedBy    string         `json:"owned_by"`
	Checkpoint string         `json:"checkpoint"`
	Recipe     string         `json:"recipe"`
	Type       string         `json:"type"`
	Labels     []string       `json:"labels"`
	Size       float64        `json:"size"` // GB
	Downloaded bool           `json:"downloaded"`
	Context    int64          `json:"context_length,omitempty"`     // tokens, 0 if unknown
	MaxContext int64          `json:"max_context_window,omitempty"` // tokens, 0 if unknown
	Options    recipe.Options `json:"recipe_options"`
	Aliases    []string       `json:"aliases"`
	Status     modelState     `json:"status"`
	PinnedBy   string         `json:"pinned_by,omitempty"` // see Server.pinnedBy
}

type modelState struct {
	Value string `json:"value"`
}

type modelList struct {
	Object string      `json:"object"`
	Data   []modelItem `json:"data"`
}

// models lists the catalogue's models; those whose files are missing only with ?show_all.
func (s *Server) models(r *request) error {
	_, _ = s.freshSnapshot() // states come from the mirror
	list := modelList{Object: "list", Data: []modelItem{}}
	cat := s.cfg.Catalog()
	for _, m := range cat.Models {
		if item := r.item(cat, m); servable(m, item.Downloaded) || r.asks("show_all") {
			list.Data = append(list.Data, item)
		}
	}
	if r.fromAnthropic() {
		return r.reply(fasthttp.StatusOK, anthropicListing(list.Data))
	}
	return r.reply(fasthttp.StatusOK, list)
}

// modelOne returns one model, found by any of its names.
func (s *Server) modelOne(r *request) error {
	m, err := s.modelNamed(r.hit.ID)
	if err != nil {
		return err
	}
	_, _ = s.freshSnapshot()
	item := r.item(s.cfg.Catalog(), m)
	if r.fromAnthropic() {
		return r.reply(fasthttp.StatusOK, anthropicItem(item))
	}
	return r.reply(fasthttp.StatusOK, item)
}

func (r *request) item(cat *catalog.Catalog, m *catalog.Model) modelItem {
	s := r.s
	w := s.weightsOf(cat, m)
	out := modelItem{
		ID: m.ID, Object: "model", Created: cmp.Or(w.created, s.started.Unix()), OwnedBy: "reveille", Checkpoint: m.Checkpoint, Recipe: m.Recipe,
		Type: string(m.Type), Labels: append([]string{}, m.Labels...), Size: float64(w.bytes) / 1e9, Downloaded: w.there,
		Options: s.effective(cat, m), Aliases: s.aliasesOf(m), Status: modelState{s.stateOf(m.ID)}, PinnedBy: s.pinnedBy(m),
	}
	out.Context, out.MaxContext = s.contextOf(m, w, out.Options)
	if !r.manages() {
		out.Checkpoint, out.Options = redactCheckpoint(out.Checkpoint), redactOptions(out.Options)
	}
	return out
}

// servable reports whether a model can be requested: its weights are present, or its first request fetches them.
func servable(m *catalog.Model, there bool) bool { return there || remote(m) }

// contextOf returns the longest sequence that a model takes, and the one that it was trained for, in tokens; 0 if
// unknown. The first comes from the plan of a loaded copy, else from the options; the second from the plan or the
// model's file.
func (s *Server) contextOf(m *catalog.Model, w weights, o recipe.Options) (now, most int64) {
	now = contextAsked(o)
	most = w.context
	if copies := s.cfg.Mirror.Snapshot().Copies(m.ID); len(copies) > 0 {
		if p := planOf(copies[0]); p.Positions > 0 && p.Longest > 0 {
			now, most = p.Longest, p.Positions
		}
	}
	if now == 0 || most > 0 && now > most && m.Type != policy.LLM { // a language model's positions may be stretched
		now = most
	}
	return now, max(now, most)
}

// contextAsked returns the context that options set, in tokens; 0 if they leave it open.
func contextAsked(o recipe.Options) int64 {
	n, _ := o["ctx_size"].(int64)
	return max(n, 0)
}

// planContext is the part of a runner's plan about a model's context, in tokens; 0 if unknown.
type planContext struct {
	Longest   int64 `json:"longest"`   // longest sequence that the loaded copy takes
	Positions int64 `json:"positions"` // longest sequence that the model was trained for
}

// planOf reads the plan in a loaded model's record.
func planOf(rec *state.ModelRecord) planContext {
	var p planContext
	if err := json.Unmarshal([]byte(rec.Fields["plan"]), &p); err != nil {
		return planContext{}
	}
	return p
}

// remote reports whether a model's weights are stored elsewhere, so that its first request fetches them.
func remote(m *catalog.Model) bool {
	return catalog.ParseCheckpoint(m.Checkpoint).Scheme != catalog.SchemePath
}

// weights is what this gateway knows of a model's files. They are on the hosts. A gateway sees them only if it runs on
// the same machine.
type weights struct {
	there   bool
	folder  bool // they are files in a folder
	bytes   int64
	context int64 // tokens that the model was trained for, 0 if unknown
	created int64 // Unix seconds of the newest change, 0 if unknown
}

func (s *Server) weightsOf(cat *catalog.Catalog, m *catalog.Model) weights {
	var w weights
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
		w.created = max(w.created, info.ModTime().Unix())
		w.folder = w.folder || info.IsDir()
		if place == m.Checkpoint {
			w.context = s.contexts.Context(c.Path, info)
		}
		if info.Mode().IsRegular() {
			w.bytes += info.Size()
		}
	}
	rc := cat.Recipes[m.Recipe]
	w.there = !missing || !rc.NeedsFile() || s.stateOf(m.ID) == "loaded" || elsewhere(cat, m)
	return w
}

// elsewhere reports whether a model whose weights are a path may run on another machine. Its weights then count as present.
func elsewhere(cat *catalog.Catalog, m *catalog.Model) bool {
	if remote(m) {
		return false
	}
	return slices.ContainsFunc(cat.HostsFor(m), func(h *catalog.Host) bool { return h.Driver != catalog.DriverLocal })
}

// aliasesOf lists a model's further names: the catalogue's, then those set at run time.
func (s *Server) aliasesOf(m *catalog.Model) []string {
	out := append([]string{}, m.Aliases...)
	table := s.tables.of(state.Aliases)
	for _, alias := range slices.Sorted(maps.Keys(table)) {
		if table[alias] == m.ID && !slices.Contains(out, alias) {
			out = append(out, alias)
		}
	}
	return out
}
