package bodycheck

import (
	"bytes"

	"reveille/gateway/api"
	"reveille/gateway/media"
	"reveille/infra/jsonscan"
)

// maxOptions is the most options of an Ollama request. It knows some thirty.
const maxOptions = 256

// Ollama refuses a JSON body in Ollama's form whose lists are longer than a chat's may be, before it is decoded: decoded, an item
// of two bytes takes a hundred times as many. Names count in any case, as encoding/json takes them. The error of a body that is
// not valid JSON is left to its decoder.
func Ollama(body []byte) *api.Error {
	p := parts{param: "messages"}
	pictures, options := 0, 0
	images := func(v jsonscan.Value) *api.Error {
		if pictures += length(v, media.MaxPictures); pictures > media.MaxPictures {
			return api.Newf(api.InvalidType, "A request may have at most %d pictures.", media.MaxPictures).WithParam("images")
		}
		return nil
	}
	members, err := jsonscan.Open(body)
	if err != nil {
		return nil
	}
	for members.Next() {
		name, v := members.Name(), members.Value()
		var e *api.Error
		switch {
		case is(name, "images"):
			e = images(v)
		case is(name, "options"): // encoding/json joins several
			if options += v.Len(); options > maxOptions {
				e = api.Newf(api.InvalidType, "A request may have at most %d options.", maxOptions).WithParam("options")
			}
		case is(name, "messages") && v.Kind == jsonscan.Array:
			if e = p.count(v.Len(), 0); e == nil {
				e = p.eachMember(v, func(w *jsonscan.Walk, name []byte) *api.Error {
					switch v := w.Raw(); {
					case is(name, "images"):
						return images(v)
					case is(name, "tool_calls"):
						return p.count(0, length(v, maxCalls))
					}
					return nil
				})
			}
		}
		if e != nil {
			return e
		}
	}
	return nil
}

// is compares a member's name as encoding/json does.
func is(name []byte, field string) bool { return bytes.EqualFold(name, []byte(field)) }
