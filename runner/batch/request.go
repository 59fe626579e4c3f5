package batch

import (
	"bytes"
	"encoding/json"
	"unicode/utf8"
)

// parsed is a parsed embedding request. Its slices are parts of the body.
type parsed struct {
	body       []byte
	model      []byte // the raw value; nil without one
	dimensions []byte // the same
	inputs     []input
	base64     bool
}

// An input is one sequence to embed.
type input struct {
	raw    []byte // JSON: a string or a list of whole numbers
	text   []byte // of a string, decoded; may share raw
	count  int    // length of a list
	tokens bool   // it is a list
}

// parse parses a request. ok is false if the request cannot be joined with others: it is invalid, has an input of
// another form, a duplicate member, or a member outside OpenAI's API, which may change the meaning of a call or its
// answer. Whoever answers such a request decides what that means.
func (p *parsed) parse(body []byte) (ok bool) {
	*p = parsed{body: body, inputs: p.inputs[:0]}
	s := scanner{b: body}
	if s.take('{') != nil {
		return false
	}
	var sawInput, sawEncoding bool
	for first := true; ; first = false {
		more, err := s.more(first, '}')
		if err != nil {
			return false
		}
		if !more {
			return sawInput && s.end()
		}
		key, err := s.key()
		if err != nil {
			return false
		}
		if string(key) == "input" {
			if sawInput || !p.parseInput(&s) {
				return false
			}
			sawInput = true
			continue
		}
		value, err := s.value()
		if err != nil || !json.Valid(value) {
			return false
		}
		switch string(key) {
		case "model":
			if p.model != nil {
				return false
			}
			p.model = value
		case "dimensions":
			if p.dimensions != nil {
				return false
			}
			p.dimensions = value
		case "encoding_format":
			if sawEncoding {
				return false
			}
			sawEncoding = true
			switch string(value) {
			case `"base64"`:
				p.base64 = true
			case `"float"`, "null":
			default:
				return false
			}
		case "user": // engines ignore it
		default:
			return false
		}
	}
}

// parseInput reads the value of input: a text, a list of tokens, or a list of those.
func (p *parsed) parseInput(s *scanner) bool {
	if s.peek() == '"' {
		return p.one(s)
	}
	start := s.i
	if s.take('[') != nil {
		return false
	}
	if c := s.peek(); c >= '0' && c <= '9' {
		s.i = start
		return p.one(s)
	}
	for first := true; ; first = false {
		more, err := s.more(first, ']')
		if err != nil {
			return false
		}
		if !more {
			return len(p.inputs) > 0
		}
		if !p.one(s) {
			return false
		}
	}
}

// one reads a text or a list of tokens.
func (p *parsed) one(s *scanner) bool {
	switch s.peek() {
	case '"':
		raw, err := s.str()
		if err != nil {
			return false
		}
		text, ok := decode(raw)
		p.inputs = append(p.inputs, input{raw: raw, text: text})
		return ok
	case '[':
		start := s.i
		s.i++
		for n := 0; ; n++ {
			more, err := s.more(n == 0, ']')
			if err != nil {
				return false
			}
			if !more {
				p.inputs = append(p.inputs, input{raw: s.b[start:s.i], count: n, tokens: true})
				return n > 0
			}
			if s.peek(); !s.integer() {
				return false
			}
		}
	}
	return false
}

// decode returns the text of a JSON string, without copying if it has no escapes.
func decode(raw []byte) (text []byte, ok bool) {
	inner := raw[1 : len(raw)-1]
	if bytes.IndexByte(inner, '\\') >= 0 {
		var s string
		if json.Unmarshal(raw, &s) != nil {
			return nil, false
		}
		return []byte(s), utf8.Valid(raw)
	}
	for _, c := range inner {
		if c < ' ' {
			return nil, false
		}
	}
	return inner, utf8.Valid(inner)
}

// group returns equal texts for requests that can share an engine call.
func (p *parsed) group() string { return string(p.dimensions) }

// appendBody writes an engine call for inputs, which all belong to requests of p's group. It asks for base64, which is
// much cheaper for an engine to write than numbers; job.write turns it into numbers for clients that want them.
func (p *parsed) appendBody(dst []byte, inputs []input) []byte {
	dst = append(dst, '{')
	if p.model != nil {
		dst = append(append(append(dst, `"model":`...), p.model...), ',')
	}
	dst = append(dst, `"input":[`...)
	for i := range inputs {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, inputs[i].raw...)
	}
	dst = append(dst, `],"encoding_format":"base64"`...)
	if p.dimensions != nil {
		dst = append(append(dst, `,"dimensions":`...), p.dimensions...)
	}
	return append(dst, '}')
}
