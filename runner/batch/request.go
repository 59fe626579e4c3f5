package batch

import (
	"bytes"
	"encoding/json"
	"slices"
	"unicode/utf8"
)

// parsed is a parsed embedding request. It shares no memory with the caller.
type parsed struct {
	body       []byte          // nil once an input was truncated: it can no longer be sent as it is
	model      json.RawMessage // nil without one
	dimensions json.RawMessage // nil without
	inputs     []input
	base64     bool
	truncate   bool // inputs that are too long are truncated
}

// An input is one sequence to embed.
type input struct {
	raw   json.RawMessage // a string or a list of whole numbers
	text  string          // of a string
	ids   []int64         // of a list
	isIDs bool            // it is a list
}

// parse parses a request. ok is false if the request cannot be joined with others: it is invalid, has an input of
// another form, or a member that parse does not know, which can change the meaning of a call or its response.
func parse(body []byte) (p parsed, ok bool) {
	var members map[string]json.RawMessage
	if !utf8.Valid(body) || json.Unmarshal(body, &members) != nil {
		return p, false
	}
	p.body = bytes.Clone(body)
	for name, value := range members {
		switch name {
		case "model":
			p.model = value
		case "dimensions":
			p.dimensions = value
		case "encoding_format":
			p.base64 = string(value) == `"base64"`
			if !p.base64 && string(value) != `"float"` && string(value) != "null" {
				return p, false
			}
		case "input":
			if !p.parseInput(value) {
				return p, false
			}
		case "truncate":
			if json.Unmarshal(value, &p.truncate) != nil {
				return p, false
			}
		case "user": // engines ignore it
		default:
			return p, false
		}
	}
	return p, len(p.inputs) > 0
}

// parseInput reads the value of input: a string, a list of tokens, or a list of those.
func (p *parsed) parseInput(raw json.RawMessage) bool {
	if in, ok := parseOne(raw); ok {
		p.inputs = []input{in}
		return true
	}
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil {
		return false
	}
	p.inputs = make([]input, len(list))
	for i, raw := range list {
		var ok bool
		if p.inputs[i], ok = parseOne(raw); !ok {
			return false
		}
	}
	return true
}

// parseOne reads a text or a list of tokens.
func parseOne(raw json.RawMessage) (in input, ok bool) {
	in.raw = raw
	switch {
	case raw[0] == '"':
		return in, json.Unmarshal(raw, &in.text) == nil
	case raw[0] != '[' || bytes.ContainsAny(raw[1:], `"[n`): // a list of strings, lists or null
		return in, false
	}
	err := json.Unmarshal(raw, &in.ids)
	in.isIDs = true
	return in, err == nil && len(in.ids) > 0 && slices.Min(in.ids) >= 0
}

// callKey returns equal strings for requests that can share an engine call.
func (p *parsed) callKey() string { return string(p.dimensions) }

// callBody writes an engine call for sequences of one call key. It asks for base64, which is much cheaper for an engine
// to write than numbers; writeResponse turns it into numbers for clients that want them.
func callBody(model, dimensions json.RawMessage, sequences []sequence) []byte {
	size := len(model) + len(dimensions) + 100
	for _, s := range sequences {
		size += len(s.raw) + 1
	}
	b := slices.Grow([]byte{'{'}, size)
	if model != nil {
		b = append(append(append(b, `"model":`...), model...), ',')
	}
	b = append(b, `"input":[`...)
	for i, s := range sequences {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, s.raw...)
	}
	b = append(b, `],"encoding_format":"base64"`...)
	if dimensions != nil {
		b = append(append(b, `,"dimensions":`...), dimensions...)
	}
	return append(b, '}')
}
