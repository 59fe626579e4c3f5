package bodycheck

import (
	"bytes"

	"reveille/gateway/api"
	"reveille/infra/jsonscan"
	"reveille/infra/recipe"
)

// pictured reports whether v is a list that holds an object: inputs of an embedding with pictures.
func pictured(v jsonscan.Value) bool {
	return v.Kind == jsonscan.Array && v.HasObject() && !isList(v, func(item jsonscan.Value) bool { return item.Kind != jsonscan.Object })
}

// inputs checks a list of texts, lists of tokens and inputs with pictures.
func (p *parts) inputs(v jsonscan.Value) (e *api.Error) {
	w := jsonscan.WalkOf(v.Raw)
	w.Array(func() bool {
		if w.Kind() == jsonscan.Object {
			e = p.pictured(&w)
		} else if item := w.Raw(); !isText(item) && !isMixed(item) {
			e = wrong([]byte(p.param), "a list of texts, lists of tokens and inputs with pictures")
		} else {
			e = unbroken(p.param, item)
		}
		return e == nil
	})
	return e
}

// pictured checks an input with pictures: a prompt_string with one marker for each picture of its multimodal_data, which are
// base64, and nothing else.
func (p *parts) pictured(w *jsonscan.Walk) (e *api.Error) {
	var prompt, data jsonscan.Value
	members := 0
	w.Object(func(name []byte) bool {
		members++
		switch v := w.Raw(); string(name) {
		case "prompt_string":
			prompt = v
		case "multimodal_data":
			data = v
		}
		return members <= 2
	})
	if members != 2 || prompt.Kind != jsonscan.String || data.Kind != jsonscan.Array {
		return api.New(api.UnsupportedParameter, "An input with pictures is an object with a text 'prompt_string' and a list 'multimodal_data' and nothing else.").WithParam(p.param)
	}
	if e := unbroken(p.param, prompt); e != nil {
		return e
	}
	pictures := 0
	items := jsonscan.WalkOf(data.Raw)
	items.Array(func() bool {
		pictures++
		e = p.bareBase64(items.Raw())
		return e == nil
	})
	if e != nil {
		return e
	}
	if n := bytes.Count(prompt.Bytes(), []byte(recipe.MediaMarker)); n != pictures || n == 0 {
		return api.Newf(api.InvalidType, "A 'prompt_string' has %d times '%s' for %d pictures; each picture needs one where it stands.", n, recipe.MediaMarker, pictures).WithParam(p.param)
	}
	return nil
}

// bareBase64 checks a picture in base64 without a data: URL before it, which the engine would not take off.
func (p *parts) bareBase64(v jsonscan.Value) *api.Error {
	if v.Kind != jsonscan.String {
		return p.refuse("Media must be base64.")
	}
	if mime, ok := dataHead(v.TextReader()); ok || bytes.IndexByte(mime, ':') >= 0 {
		return api.New(api.UnsupportedParameter, "A picture in 'multimodal_data' must be base64 and nothing before it; it is not fetched from elsewhere.").WithParam(p.param)
	}
	return p.media.Picture(p.param, v.TextReader(), len(v.Raw))
}
