package responses

import (
	"bytes"
	"encoding/json"

	"reveille/gateway/api"
	"reveille/infra/jsonscan"
)

// Store is the part of a request that concerns the storing of responses.
type Store struct {
	Previous string // id of the response that it continues, "" for none
	Wanted   bool   // its answer may be stored; true unless the request says otherwise, as OpenAI has it
	input    jsonscan.Value
}

// StoreOf reads the part of a request, a valid JSON object, that concerns the storing of responses.
func StoreOf(body []byte) (Store, error) {
	q := read(body, storeMembers)
	previous, store := q["previous_response_id"], q["store"]
	if previous.Set() && previous.Kind != jsonscan.String {
		return Store{}, wrong("previous_response_id", jsonscan.String)
	}
	if store.Set() && store.Kind != jsonscan.Bool {
		return Store{}, wrong("store", jsonscan.Bool)
	}
	return Store{Previous: previous.String(), Wanted: !store.Set() || store.Bool(), input: q["input"]}, nil
}

var storeMembers = set("previous_response_id", "store", "input")

// References returns the ids of the items that the input refers to, at most api.MaxItems.
func (s Store) References() (ids []string, err error) {
	s.eachItem(func(_ jsonscan.Value, reference string) {
		switch {
		case reference == "":
		case len(ids) == api.MaxItems:
			err = refuse("'input' has more than %d items.", api.MaxItems)
		default:
			ids = append(ids, reference)
		}
	})
	return ids, err
}

// Resolve puts items in place of the references to them. Each must be there. An item may be referred to often: hold is called
// with the size of the result before anything is copied, and may refuse it.
func (s *Store) Resolve(items map[string][]byte, hold func(size int) error) error {
	stored := func(item jsonscan.Value, reference string) []byte {
		if reference != "" {
			return items[reference]
		}
		return item.Raw
	}
	size := len("[]")
	s.eachItem(func(item jsonscan.Value, reference string) { size += len(stored(item, reference)) + len(",") })
	if err := hold(size); err != nil {
		return err
	}
	out := append(make([]byte, 0, size), '[')
	s.eachItem(func(item jsonscan.Value, reference string) {
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(out, stored(item, reference)...)
	})
	s.input.Raw = append(out, ']')
	return nil
}

// eachItem calls fn with each item of the input, and the id that it refers to if it is a reference.
func (s Store) eachItem(fn func(item jsonscan.Value, reference string)) {
	if s.input.Kind == jsonscan.Array {
		eachOf(s.input.Raw, func(item jsonscan.Value) {
			reference := ""
			if item.Kind == jsonscan.Object {
				reference = referenceOf(read(item.Raw, referenceMembers))
			}
			fn(item, reference)
		})
	}
}

var referenceMembers = set("type", "role", "id")

// referenceOf returns the id of a reference, "" for another item. Its type may be left out.
func referenceOf(i object) string {
	if i["type"].String() == "item_reference" || !i["type"].Set() && !i["role"].Set() {
		return i["id"].String()
	}
	return ""
}

// eachOf calls fn with each value of a valid JSON list.
func eachOf(list []byte, fn func(v jsonscan.Value)) {
	w := jsonscan.WalkOf(list)
	w.Array(func() bool { fn(w.Raw()); return true })
}

// Items returns the items of a conversation, a JSON list, that continues with the request's input. before are the items before
// it, nil for none.
func (s Store) Items(before []byte) []byte {
	input := s.input.Raw
	if s.input.Kind == jsonscan.String {
		input = append(append([]byte(`[{"role":"user","content":`), input...), "}]"...)
	}
	return join(before, input)
}

// join joins two JSON lists.
func join(a, b []byte) []byte {
	one, two := bytes.TrimSpace(a), bytes.TrimSpace(b)
	switch {
	case len(one) == 0 || len(bytes.TrimSpace(one[1:len(one)-1])) == 0:
		return two
	case len(two) == 0 || len(bytes.TrimSpace(two[1:len(two)-1])) == 0:
		return one
	}
	out := append(make([]byte, 0, len(one)+len(two)), one[:len(one)-1]...)
	return append(append(out, ','), two[1:]...)
}

// Stored is a stored response.
type Stored struct {
	Response json.RawMessage `json:"response"`
	Items    json.RawMessage `json:"items"` // of the whole conversation, the response's output included
}

// NewStored returns the text of a stored response; items are the conversation before its output.
func NewStored(response, items, output []byte) []byte {
	return encode(Stored{response, join(items, output)})
}
