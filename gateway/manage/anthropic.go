package manage

import (
	"time"

	"reveille/gateway/web"
	"reveille/infra/policy"
)

// fromAnthropic reports whether the request is from a client of Anthropic's API, in which two paths have their own
// format.
func (s *Service) fromAnthropic(r *web.Request) bool {
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
