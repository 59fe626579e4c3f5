package responses

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"reveille/gateway/api"
)

// ByID returns the items of the conversation that have an id.
func (s *Stored) ByID() map[string]json.RawMessage {
	items := map[string]json.RawMessage{}
	for _, item := range s.Items {
		if id := idOf(item); id != "" {
			items[id] = item
		}
	}
	return items
}

func idOf(item json.RawMessage) string {
	var i struct{ ID string }
	_ = json.Unmarshal(item, &i) // an item without an id
	return i.ID
}

// Page is a part of a list that a client asks for.
type Page struct {
	After     string // id of the item before it, "" for none
	Limit     int    // most items
	Ascending bool   // oldest first
}

type storedItem map[string]any

// InputItems returns a page of the items to which the response replies, those of the conversation before it included;
// id is the response's. found is false if the page should start after an item that does not exist.
func (s *Stored) InputItems(id string, p Page) (list api.List[storedItem], found bool, err error) {
	var response struct{ Output []json.RawMessage }
	if err := json.Unmarshal(s.Response, &response); err != nil {
		return list, false, err
	}
	items := s.Items[:max(len(s.Items)-len(response.Output), 0)]
	ids, order := make([]string, len(items)), make([]int, len(items))
	for i, item := range items {
		order[i] = i
		if ids[i] = idOf(item); ids[i] == "" {
			ids[i] = fmt.Sprintf("item_%s_%d", strings.TrimPrefix(id, "resp_"), i)
		}
	}
	if !p.Ascending {
		slices.Reverse(order)
	}
	if p.After != "" {
		at := slices.IndexFunc(order, func(i int) bool { return ids[i] == p.After })
		if at < 0 {
			return list, false, nil
		}
		order = order[at+1:]
	}
	list = api.List[storedItem]{Object: "list", Data: []storedItem{}, HasMore: len(order) > p.Limit}
	for _, i := range order[:min(len(order), p.Limit)] {
		item := storedItem{}
		if err := json.Unmarshal(items[i], &item); err != nil {
			return list, false, err
		}
		item.complete(ids[i])
		if list.Data = append(list.Data, item); list.FirstID == nil {
			list.FirstID = &ids[i]
		}
		list.LastID = &ids[i]
	}
	return list, true, nil
}

// complete writes out what clients may leave out of an item.
func (i storedItem) complete(id string) {
	i["id"] = id
	if i["type"] == nil {
		i["type"] = "message"
	}
	if i["role"] == nil {
		return
	}
	if i["status"] == nil {
		i["status"] = completed
	}
	if text, ok := i["content"].(string); ok {
		part := map[string]any{"type": "input_text", "text": text}
		if i["role"] == "assistant" {
			part = map[string]any{"type": "output_text", "text": text, "annotations": []any{}, "logprobs": []any{}}
		}
		i["content"] = []any{part}
	}
}
