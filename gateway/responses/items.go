package responses

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"reveille/infra/jsonscan"
)

// ByID returns the items of the conversation that have an id.
func (s *Stored) ByID() map[string][]byte {
	items := map[string][]byte{}
	eachOf(s.Items, func(item jsonscan.Value) {
		if id := read(item.Raw, referenceMembers)["id"].String(); id != "" {
			items[id] = item.Raw
		}
	})
	return items
}

// Page is a part of a list that a client asks for.
type Page struct {
	After     string // id of the item before it, "" for none
	Limit     int    // most items
	Ascending bool   // oldest first
}

type itemList struct {
	Object string            `json:"object"`
	Data   []json.RawMessage `json:"data"`
	First  *string           `json:"first_id"`
	Last   *string           `json:"last_id"`
	More   bool              `json:"has_more"`
}

// InputItems returns a page of the items that the response answers, those of the conversation before it included, as a JSON
// object; id is the response's. found is false if the page is to begin after an item that is not there.
func (s *Stored) InputItems(id string, p Page) (list []byte, found bool, err error) {
	var response struct{ Output []json.RawMessage }
	if err := json.Unmarshal(s.Response, &response); err != nil {
		return nil, false, err
	}
	var items []jsonscan.Value
	eachOf(s.Items, func(item jsonscan.Value) { items = append(items, item) })
	items = items[:max(len(items)-len(response.Output), 0)]
	ids := make([]string, len(items))
	order := make([]int, len(items))
	for i, item := range items {
		order[i] = i
		if ids[i] = read(item.Raw, referenceMembers)["id"].String(); ids[i] == "" {
			ids[i] = fmt.Sprintf("item_%s_%d", strings.TrimPrefix(id, "resp_"), i)
		}
	}
	if !p.Ascending {
		slices.Reverse(order)
	}
	if p.After != "" {
		at := slices.IndexFunc(order, func(i int) bool { return ids[i] == p.After })
		if at < 0 {
			return nil, false, nil
		}
		order = order[at+1:]
	}
	out := itemList{Object: "list", Data: []json.RawMessage{}, More: len(order) > p.Limit}
	for _, i := range order[:min(len(order), p.Limit)] {
		item, err := listed(items[i].Raw, ids[i])
		if err != nil {
			return nil, false, err
		}
		if out.Data = append(out.Data, item); out.First == nil {
			out.First = &ids[i]
		}
		out.Last = &ids[i]
	}
	return encode(out), true, nil
}

// listed writes out what clients may leave out of an item.
func listed(raw []byte, id string) (item []byte, err error) {
	i := read(raw, itemMembers)
	item, err = jsonscan.SetString(raw, "id", id)
	if err == nil && !i["type"].Set() {
		item, err = jsonscan.SetString(item, "type", "message")
	}
	if text := i["content"]; err == nil && text.Kind == jsonscan.String && i["role"].Set() {
		part := `[{"type":"input_text","text":` + string(text.Raw) + `}]`
		if i["role"].String() == "assistant" {
			part = `[{"type":"output_text","text":` + string(text.Raw) + `,"annotations":[],"logprobs":[]}]`
		}
		item, err = jsonscan.Set(item, "content", []byte(part))
	}
	if err == nil && i["role"].Set() && !read(item, statusMember)["status"].Set() {
		item, err = jsonscan.SetString(item, "status", string(completed))
	}
	return item, err
}

var statusMember = set("status")
