package bodycheck

import (
	"bytes"
	"encoding/json"

	"reveille/gateway/api"
	"reveille/infra/jsonscan"
)

// maxSteps is how many levels the arguments and the results of calls may have. Chat templates write them out by macros that
// call themselves, and copy what they have so far at each level.
const maxSteps = 100

// steep refuses a value with more levels, or one of whose texts is JSON with more levels.
func (p *parts) steep(v jsonscan.Value) *api.Error {
	if len(v.Raw) <= 2*maxSteps {
		return nil
	}
	deep := false
	w := jsonscan.WalkOf(v.Raw)
	var look func(level int) bool
	look = func(level int) bool {
		if deep = deep || level > maxSteps; deep {
			return false
		}
		switch w.Kind() {
		case jsonscan.Array:
			return w.Array(func() bool { return look(level + 1) })
		case jsonscan.Object:
			return w.Object(func([]byte) bool { return look(level + 1) })
		case jsonscan.String:
			text := w.Raw()
			deep = opens(text.Raw) && isSteep(text.Bytes())
		default:
			w.Raw()
		}
		return !deep
	}
	if look(0); deep {
		return api.Newf(api.InvalidType, "The arguments and the results of tools may have at most %d levels.", maxSteps).WithParam(p.param)
	}
	return nil
}

// opens reports whether a JSON string may begin like an object or a list.
func opens(raw []byte) bool {
	for i := 1; i < len(raw); i++ {
		switch raw[i] {
		case ' ':
		case '\\':
			if i++; bytes.IndexByte([]byte("ntr"), raw[i]) < 0 {
				return raw[i] == 'u'
			}
		default:
			return raw[i] == '[' || raw[i] == '{'
		}
	}
	return false
}

// isSteep reports whether a text is JSON of more than maxSteps levels.
func isSteep(text []byte) bool {
	text = bytes.TrimLeft(text, " \t\r\n")
	if len(text) <= 2*maxSteps || text[0] != '[' && text[0] != '{' {
		return false
	}
	level := 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '[', '{':
			if level++; level > maxSteps {
				return json.Valid(text)
			}
		case ']', '}':
			level--
		case '"':
			for i++; i < len(text) && text[i] != '"'; i++ {
				if text[i] == '\\' {
					i++
				}
			}
		}
	}
	return false
}
