package manage

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/valyala/fasthttp"

	"reveille/gateway/api"
	"reveille/gateway/models"
	"reveille/gateway/web"
	"reveille/infra/catalog"
	"reveille/infra/policy"
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
	PinnedBy   string         `json:"pinned_by,omitempty"` // see models.Registry.PinnedBy
}

// modelState is a model's state. For GET /models/{id} it says how far a load is, as do the comments of a stream that
// waits for it; what is unknown is left out.
type modelState struct {
	Value      string  `json:"value"`
	Host       string  `json:"host,omitempty"`
	Waited     float64 `json:"waited,omitempty"` // seconds since its load was requested
	Position   int     `json:"position,omitempty"`
	ETA        int64   `json:"eta,omitempty"` // seconds
	BytesDone  int64   `json:"bytes_done,omitempty"`
	BytesTotal int64   `json:"bytes_total,omitempty"`
}

// Models is GET /models: the catalog's models, aliases with presets and names for several models. Models whose files
// are missing are listed only with ?show_all.
func (s *Service) Models(r *web.Request) error {
	_, _ = s.registry.Fresh() // states come from the mirror
	list := []modelItem{}
	cat := s.cfg.Catalog()
	for _, m := range cat.Models {
		if !r.Key.Allows(m.ID) {
			continue
		}
		if item := s.modelItemOf(r, cat, m); servable(m, item.Downloaded) || r.QueryFlag("show_all") {
			list = append(list, item)
			for _, alias := range slices.Sorted(maps.Keys(m.Presets)) { // a client may choose them as it chooses models
				item.ID = alias
				list = append(list, item)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(cat.Any)) {
		if m, err := s.registry.Named(&r.Key, name); err == nil {
			item := s.modelItemOf(r, cat, m)
			item.ID = name
			list = append(list, item)
		}
	}
	if s.isAnthropicClient(r) {
		return r.Reply(fasthttp.StatusOK, anthropicListing(list))
	}
	return r.Reply(fasthttp.StatusOK, map[string]any{"object": "list", "data": list})
}

// Model is GET /models/{id}: one model, found by any of its names.
func (s *Service) Model(r *web.Request) error {
	m, err := s.registry.Named(&r.Key, r.Match.ID)
	if err != nil {
		return err
	}
	snap, _ := s.registry.Fresh()
	item := s.modelItemOf(r, s.cfg.Catalog(), m)
	if copies := snap.Copies(m.ID); len(copies) > 0 {
		item.Status.Host = copies[0].Host
	} else if p, loading := s.cfg.Gate.ProgressOf(m.ID); loading {
		item.Status = modelState{
			Value: p.Stage, Host: p.Host, Waited: p.Waited.Truncate(time.Millisecond).Seconds(), Position: p.Position, ETA: api.Seconds(p.ETA),
			BytesDone: p.BytesDone, BytesTotal: p.BytesTotal,
		}
	}
	if s.isAnthropicClient(r) {
		return r.Reply(fasthttp.StatusOK, anthropicItem(item))
	}
	r.Ctx.Response.Header.Set(api.HeaderModel, m.ID)
	return r.Reply(fasthttp.StatusOK, item)
}

func (s *Service) modelItemOf(r *web.Request, cat *catalog.Catalog, m *catalog.Model) modelItem {
	w := s.registry.WeightsOf(cat, m)
	out := modelItem{
		ID: m.ID, Object: "model", Created: cmp.Or(w.Created, s.started.Unix()), OwnedBy: "reveille", Checkpoint: m.Checkpoint, Recipe: m.Recipe,
		Type: string(m.Type), Labels: append([]string{}, m.Labels...), Size: float64(w.Bytes) / 1e9, Downloaded: w.There,
		Options: s.registry.Effective(cat, m), Aliases: s.registry.AliasesOf(m), Status: modelState{Value: s.registry.StateOf(m.ID)}, PinnedBy: s.registry.PinnedBy(m),
	}
	out.Context, out.MaxContext = s.registry.ContextOf(m, w, out.Options)
	if !r.Manages() {
		out.Checkpoint, out.Options = redactCheckpoint(out.Checkpoint), redactOptions(out.Options)
	}
	return out
}

// servable reports whether a model can be requested: its weights are present, or its first request fetches them.
func servable(m *catalog.Model, there bool) bool { return there || models.Remote(m) }

// isAnthropicClient reports whether the request is from a client of Anthropic's API, in which two paths have their own
// format.
func (s *Service) isAnthropicClient(r *web.Request) bool {
	return len(r.Ctx.Request.Header.Peek("anthropic-version")) > 0
}

// anthropicModel is a model in Anthropic's format.
type anthropicModel struct {
	Type        string    `json:"type"`
	ID          string    `json:"id"`
	DisplayName string    `json:"display_name"`
	CreatedAt   time.Time `json:"created_at"`
	MaxInput    int64     `json:"max_input_tokens,omitempty"`
}

func anthropicItem(m modelItem) anthropicModel {
	return anthropicModel{Type: "model", ID: m.ID, DisplayName: m.ID, CreatedAt: time.Unix(m.Created, 0).UTC(), MaxInput: m.Context}
}

// anthropicList is a page of models.
type anthropicList struct {
	Data    []anthropicModel `json:"data"`
	FirstID *string          `json:"first_id"`
	LastID  *string          `json:"last_id"`
	HasMore bool             `json:"has_more"`
}

// anthropicListing returns a listing's only page: the models that take messages.
func anthropicListing(models []modelItem) any {
	list := anthropicList{Data: []anthropicModel{}}
	for _, m := range models {
		if m.Type == string(policy.LLM) {
			list.Data = append(list.Data, anthropicItem(m))
		}
	}
	if n := len(list.Data); n > 0 {
		list.FirstID, list.LastID = &list.Data[0].ID, &list.Data[n-1].ID
	}
	return list
}
