package manage

import (
	"cmp"

	"github.com/valyala/fasthttp"

	"reveille/gateway/models"
	"reveille/gateway/web"
	"reveille/infra/catalog"
	"reveille/infra/recipe"
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
	PinnedBy   string         `json:"pinned_by,omitempty"` // see models.Directory.PinnedBy
}

type modelState struct {
	Value string `json:"value"`
}

type modelList struct {
	Object string      `json:"object"`
	Data   []modelItem `json:"data"`
}

// models lists the catalogue's models; those whose files are missing only with ?show_all.
func (s *Service) models(r *web.Request) error {
	_, _ = s.dir.Fresh() // states come from the mirror
	list := modelList{Object: "list", Data: []modelItem{}}
	cat := s.cfg.Catalog()
	for _, m := range cat.Models {
		if !r.Key.Allows(m.ID) {
			continue
		}
		if item := s.item(r, cat, m); servable(m, item.Downloaded) || r.Asks("show_all") {
			list.Data = append(list.Data, item)
		}
	}
	if s.fromAnthropic(r) {
		return r.Reply(fasthttp.StatusOK, anthropicListing(list.Data))
	}
	return r.Reply(fasthttp.StatusOK, list)
}

// modelOne returns one model, found by any of its names.
func (s *Service) modelOne(r *web.Request) error {
	m, err := s.dir.Named(&r.Key, r.Match.ID)
	if err != nil {
		return err
	}
	_, _ = s.dir.Fresh()
	item := s.item(r, s.cfg.Catalog(), m)
	if s.fromAnthropic(r) {
		return r.Reply(fasthttp.StatusOK, anthropicItem(item))
	}
	return r.Reply(fasthttp.StatusOK, item)
}

func (s *Service) item(r *web.Request, cat *catalog.Catalog, m *catalog.Model) modelItem {
	w := s.dir.WeightsOf(cat, m)
	out := modelItem{
		ID: m.ID, Object: "model", Created: cmp.Or(w.Created, s.started.Unix()), OwnedBy: "reveille", Checkpoint: m.Checkpoint, Recipe: m.Recipe,
		Type: string(m.Type), Labels: append([]string{}, m.Labels...), Size: float64(w.Bytes) / 1e9, Downloaded: w.There,
		Options: s.dir.Effective(cat, m), Aliases: s.dir.AliasesOf(m), Status: modelState{s.dir.StateOf(m.ID)}, PinnedBy: s.dir.PinnedBy(m),
	}
	out.Context, out.MaxContext = s.dir.ContextOf(m, w, out.Options)
	if !r.Manages() {
		out.Checkpoint, out.Options = redactCheckpoint(out.Checkpoint), redactOptions(out.Options)
	}
	return out
}

// servable reports whether a model can be requested: its weights are present, or its first request fetches them.
func servable(m *catalog.Model, there bool) bool { return there || models.Remote(m) }
