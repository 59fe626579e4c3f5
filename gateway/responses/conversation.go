package responses

import (
	"encoding/json"
	"slices"

	"reveille/gateway/api"
	"reveille/infra/jsonscan"
)

// Store is the part of a request that concerns the storing of responses.
type Store struct {
	Previous string // id of the response that it continues, "" for none
	Wanted   bool   // its response can be stored; true unless the request says otherwise, as OpenAI has it
	input    json.RawMessage
	items    []json.RawMessage // of the input, once References has read it
}

// StoreOf reads the part of a request, a valid JSON object, that concerns the storing of responses.
func StoreOf(body []byte) (Store, error) {
	var v [3]jsonscan.Value
	if err := jsonscan.Scan(body, []string{"previous_response_id", "store", "input"}, v[:]); err != nil {
		return Store{}, api.BadJSON(err)
	}
	previous, store, input := v[0], v[1], v[2]
	if previous.Set() && previous.Kind != jsonscan.String {
		return Store{}, api.New(api.InvalidType, "'previous_response_id' must be a text.").WithParam("previous_response_id")
	}
	if store.Set() && store.Kind != jsonscan.Bool {
		return Store{}, api.New(api.InvalidType, "'store' must be true or false.").WithParam("store")
	}
	return Store{Previous: previous.String(), Wanted: !store.Set() || store.Bool(), input: input.Raw}, nil
}

// References reads the input and returns the ids of the items that it refers to, at most api.MaxItems.
func (s *Store) References() (ids []string, err error) {
	if len(s.input) > 0 && s.input[0] == '"' {
		s.items = []json.RawMessage{slices.Concat([]byte(`{"role":"user","content":`), s.input, []byte("}"))}
	} else if json.Unmarshal(s.input, &s.items) != nil {
		return nil, errUnsupported("'input' must be a text or a list of items.")
	}
	for _, item := range s.items {
		if id := referenceOf(item); id != "" {
			ids = append(ids, id)
		}
	}
	if len(ids) > api.MaxItems {
		return nil, errUnsupported("'input' has more than %d items.", api.MaxItems)
	}
	return ids, nil
}

// Resolve puts items in place of the references to them. Each must be there. An item can be referred to often: hold is
// called with the size of the result, and may refuse it.
func (s *Store) Resolve(items map[string]json.RawMessage, hold func(size int) error) error {
	resolved, size := make([]json.RawMessage, len(s.items)), 0
	for i, item := range s.items {
		if id := referenceOf(item); id != "" {
			item = items[id]
		}
		resolved[i] = item
		size += len(item) + len(",")
	}
	s.items = resolved
	return hold(size)
}

// referenceOf returns the id of the item that a reference names, "" for another item. Its type may be left out.
func referenceOf(item json.RawMessage) string {
	var i struct{ Type, Role, ID string }
	if json.Unmarshal(item, &i) == nil && (i.Type == "item_reference" || i.Type == "" && i.Role == "") {
		return i.ID
	}
	return ""
}

// Items returns the items of a conversation, a JSON list, that continues with the request's input. before are the items
// before it, nil for none.
func (s Store) Items(before []json.RawMessage) []byte {
	return encode(append(before[:len(before):len(before)], s.items...))
}

// Stored is a stored response.
type Stored struct {
	Response json.RawMessage   `json:"response"`
	Items    []json.RawMessage `json:"items"` // of the whole conversation, the response's output included
}

// NewStored returns the text of a stored response; items, a JSON list, are the conversation before its output.
func NewStored(response, items, output []byte) []byte {
	s := Stored{Response: response}
	var more []json.RawMessage
	if json.Unmarshal(items, &s.Items) != nil || json.Unmarshal(output, &more) != nil {
		return nil // never: both were made here
	}
	s.Items = append(s.Items, more...)
	return encode(s)
}
