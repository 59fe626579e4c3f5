package bodycheck

import (
	"bytes"
	"slices"

	"reveille/gateway/api"
	"reveille/infra/jsonscan"
	"reveille/infra/recipe"
)

// content checks the content of one request and counts its media.
type content struct {
	param string // the parameter that is being checked
	media media
}

// part is a type of content part.
type part struct {
	member string // that holds its content
	needed bool
	check  func(*content, jsonscan.Value) error // of that member; nil: engines fetch and decode nothing in it
	parts  map[string]part                      // of that member, if it holds parts itself
	asText bool                                 // engines do not know it: its texts stand for it, or nothing
	plain  bool                                 // engines do not know it: that member is its text
	closed bool                                 // it may hold no media
}

// otherType is any type of part that has no entry.
const otherType = "*"

// The parts by type.
var (
	openAIParts = map[string]part{
		"text": {member: "text"}, "refusal": {member: "refusal", needed: true, plain: true},
		"input_text":  {member: "text", needed: true, plain: true}, // of /v1/responses, as the next one
		"output_text": {member: "text", needed: true, plain: true},
		"thinking":    {plain: true}, "reasoning": {plain: true}, // what the model thought in earlier turns
		"image_url":   {member: "image_url", needed: true, check: (*content).imageURL},
		"input_audio": {member: "input_audio", needed: true, check: func(c *content, v jsonscan.Value) error { return c.object(v, "data", c.audio) }},
		"input_video": {member: "input_video", needed: true, check: func(c *content, v jsonscan.Value) error { return c.object(v, "data", c.video) }},
	}
	systemParts = map[string]part{"text": {member: "text"}}
	resultParts = map[string]part{
		"text":          {member: "text"},
		"image":         {member: "source", needed: true, check: (*content).imageSource},
		"document":      {member: "source", needed: true, check: (*content).textSource, asText: true},
		"search_result": {member: "content", asText: true},
		otherType:       {asText: true, closed: true}, // also references of tools, and what Anthropic's server tools returned
	}
	anthropicParts = map[string]part{
		"text": resultParts["text"], "image": resultParts["image"], "document": resultParts["document"],
		"search_result": resultParts["search_result"], otherType: resultParts[otherType],
		"tool_use": {member: "input"}, "thinking": {member: "thinking"}, "redacted_thinking": {member: "data"},
		"tool_result": {member: "content", parts: resultParts},
	}
)

// plainMembers are the other members of parts that are kept: engines fetch and decode nothing in them. vLLM's uuid is
// not among them, since it names an image of another request.
var plainMembers = map[string]bool{
	"annotations": true, "cache_control": true, "caller": true, "citations": true, "context": true, "detail": true, "id": true,
	"index": true, "is_error": true, "logprobs": true, "name": true, "signature": true, "status": true, "title": true,
	"tool_use_id": true,
}

// messages checks a dialogue in OpenAI's or Anthropic's format. What it returns stands for it, unless it is nil.
func (c *content) messages(v jsonscan.Value, parts map[string]part) ([]byte, error) {
	c.param = "messages"
	if v.Kind != jsonscan.Array {
		return nil, c.invalid("'messages' must be a list.")
	}
	if err := dropNulls(v); err != nil {
		return nil, err
	}
	return mapItems(v, func(message jsonscan.Value) ([]byte, error) { return c.message(message, parts) })
}

// message checks a message, and returns it with what engines need and clients leave out.
func (c *content) message(v jsonscan.Value, parts map[string]part) (out []byte, err error) {
	if v.Kind != jsonscan.Object {
		return nil, c.invalid("Each message must be an object.")
	}
	var rewritten, calls []byte
	isResult, hasContent := false, false
	w := jsonscan.WalkOf(v.Raw)
	w.Object(func(name []byte) bool {
		switch {
		case string(name) == "content":
			hasContent = true
			rewritten, err = c.value("messages", w.Raw(), parts)
		case string(name) == "role":
			isResult = string(w.Raw().Bytes()) == "tool"
		case string(name) == "tool_calls":
			calls, err = mapItems(w.Raw(), func(call jsonscan.Value) ([]byte, error) { return typed(call, true) })
		case isMediaName(name):
			if v := w.Raw(); v.Kind > jsonscan.Number && len(v.Raw) > len(`""`) {
				err = c.refuse("A message may hold media only in its content parts.")
			}
		}
		return err == nil
	})
	if isResult && !hasContent {
		rewritten = []byte(`""`)
	}
	if calls != nil && err == nil {
		out, err = jsonscan.Set(v.Raw, "tool_calls", calls)
		v.Raw = out
	}
	if rewritten != nil && err == nil {
		out, err = jsonscan.Set(v.Raw, "content", rewritten)
	}
	return out, err
}

// typed returns a tool, or a call of one, with its type and its arguments; nil where it has them.
func typed(v jsonscan.Value, isCall bool) (out []byte, err error) {
	function := member(v, "function")
	if function.Kind != jsonscan.Object {
		return nil, nil
	}
	if isCall && !member(function, "arguments").Set() {
		out, _ = jsonscan.Set(function.Raw, "arguments", []byte(`"{}"`)) // no error: the document is valid
		out, _ = jsonscan.Set(v.Raw, "function", out)
		v.Raw = out
	}
	if !member(v, "type").Set() {
		out, err = jsonscan.Set(v.Raw, "type", []byte(`"function"`))
	}
	return out, err
}

// mapItems returns a list with what fix makes of its items: nil leaves an item as it is, an empty text leaves it out.
// It returns nil where all stay.
func mapItems(list jsonscan.Value, fix func(item jsonscan.Value) ([]byte, error)) (out []byte, err error) {
	if list.Kind != jsonscan.Array {
		return nil, nil
	}
	var few [8][]byte
	items, changed := few[:0], false
	w := jsonscan.WalkOf(list.Raw)
	w.Array(func() bool {
		var fixed []byte
		item := w.Raw()
		if fixed, err = fix(item); fixed == nil {
			fixed = item.Raw
		} else {
			changed = true
		}
		if len(fixed) > 0 {
			items = append(items, fixed)
		}
		return err == nil
	})
	if !changed || err != nil {
		return nil, err
	}
	return slices.Concat([]byte("["), bytes.Join(items, []byte(",")), []byte("]")), nil
}

// value checks a content: a text, a list of parts, or none. What it returns stands for it, unless it is nil.
func (c *content) value(param string, v jsonscan.Value, parts map[string]part) (out []byte, err error) {
	c.param = param
	switch v.Kind {
	case jsonscan.String, jsonscan.Null:
		return nil, nil
	case jsonscan.Array:
		out, err = mapItems(v, func(item jsonscan.Value) ([]byte, error) { return c.part(item, parts) })
		if string(out) == "[]" {
			out = []byte(`""`)
		}
		return out, err
	}
	return nil, c.invalid("A content must be a text or a list of parts.")
}

// part checks a part and blanks the members that its type does not have. What it returns stands for it, unless it is
// nil.
func (c *content) part(v jsonscan.Value, parts map[string]part) (out []byte, err error) {
	if v.Kind == jsonscan.String {
		return nil, nil
	}
	if v.Kind != jsonscan.Object {
		return nil, c.invalid("A content part must be an object.")
	}
	kind := member(v, "type")
	p, known := parts[kind.String()]
	if !known && kind.Kind == jsonscan.String {
		p, known = parts[otherType]
	}
	if !known {
		return nil, c.refuse("A content part's type is not accepted here.")
	}
	var found jsonscan.Value
	var inner []byte
	err = filter(v, func(name []byte, v jsonscan.Value) (keep bool, err error) {
		switch {
		case string(name) == "type": // parsers may differ in which one of several they take
			if !bytes.Equal(v.Raw, kind.Raw) {
				err = c.refuse("A content part has two types.")
			}
			return true, err
		case p.member != "" && string(name) == p.member:
			found = v
			if p.check != nil && (p.needed || v.Set()) {
				err = p.check(c, v)
			}
			if p.parts != nil {
				inner, err = c.value(c.param, v, p.parts)
			}
			return true, err
		case p.closed && isMediaName(name) && v.Set():
			return true, c.refuse("A content part's type is not accepted here.")
		}
		return plainMembers[string(name)] || p.asText, nil
	})
	switch {
	case err != nil:
		return nil, err
	case p.needed && (found.Kind == jsonscan.Absent || p.plain && found.Kind != jsonscan.String):
		return nil, c.missing(p.member)
	case p.plain:
		return textPart(found.Raw), nil
	case p.asText:
		return textPart(textsOf(v)), nil
	case inner != nil:
		return jsonscan.Set(v.Raw, p.member, inner)
	case p.member == "image_url" && found.Kind == jsonscan.String:
		return slices.Concat([]byte(`{"type":"image_url","image_url":{"url":`), found.Raw, []byte(`}}`)), nil
	}
	return nil, nil
}

// textPart is a part of a text, quoted, and empty where that is.
func textPart(text []byte) []byte {
	if len(text) <= len(`""`) {
		return []byte{}
	}
	return slices.Concat([]byte(`{"type":"text","text":`), text, []byte(`}`))
}

// textMembers hold the texts of such parts.
var textMembers = []string{"text", "data", "content", "tool_name"}

// textsOf joins the texts of a part that engines do not know: those of its text blocks, and of a document's source.
func textsOf(v jsonscan.Value) []byte {
	var texts [][]byte
	var look func(w *jsonscan.Walk, name string)
	look = func(w *jsonscan.Walk, name string) {
		switch w.Kind() {
		case jsonscan.Object:
			w.Object(func(name []byte) bool { look(w, string(name)); return true })
		case jsonscan.Array:
			w.Array(func() bool { look(w, ""); return true })
		case jsonscan.String:
			if raw := w.Raw().Raw; slices.Contains(textMembers, name) {
				texts = append(texts, raw[1:len(raw)-1])
			}
		default:
			w.Raw()
		}
	}
	w := jsonscan.WalkOf(v.Raw)
	look(&w, "")
	return slices.Concat([]byte(`"`), bytes.Join(texts, []byte(`\n`)), []byte(`"`))
}

// object checks an object of media, whose member holds them, and blanks what else it has except their format.
func (c *content) object(v jsonscan.Value, member string, check func(jsonscan.Value) error) error {
	if v.Kind != jsonscan.Object {
		return c.invalid("A part's media must be in an object with the member '" + member + "'.")
	}
	found := false
	err := filter(v, func(name []byte, v jsonscan.Value) (bool, error) {
		if string(name) == member {
			found = true
			return true, check(v)
		}
		return string(name) == "detail" || string(name) == "format", nil
	})
	if err == nil && !found {
		return c.missing(member)
	}
	return err
}

// imageURL checks an image: an object with a data: URL, or the URL alone, which llama-server would take for base64.
func (c *content) imageURL(v jsonscan.Value) error {
	if v.Kind == jsonscan.String {
		return c.dataURLImage(v)
	}
	return c.object(v, "url", c.dataURLImage)
}

// imageSource checks Anthropic's source of an image.
func (c *content) imageSource(v jsonscan.Value) error { return c.source(v, "base64", c.base64Image) }

// textSource checks the source of a document, which may only be text.
func (c *content) textSource(v jsonscan.Value) error {
	if member(v, "type").String() == "content" {
		_, err := c.value(c.param, member(v, "content"), systemParts)
		return err
	}
	return c.source(v, "text", func(jsonscan.Value) error { return nil })
}

// source checks an object of the given type with its data, and blanks what else it has except the data's media type.
func (c *content) source(v jsonscan.Value, kind string, check func(jsonscan.Value) error) error {
	if v.Kind != jsonscan.Object {
		return c.refuse("A source must be an object.")
	}
	found := false
	err := filter(v, func(name []byte, v jsonscan.Value) (bool, error) {
		switch string(name) {
		case "type":
			switch v.String() {
			case kind:
				return true, nil
			case "url":
				return true, c.remote()
			}
			return true, c.refuse("A source's type is not accepted here.")
		case "data":
			found = true
			return true, check(v)
		case "url":
			return true, c.remote()
		}
		return string(name) == "media_type", nil
	})
	if err == nil && !found {
		return c.missing("data")
	}
	return err
}

// embeddingInputs checks a list of texts, tokens, and objects with images: a prompt_string with a marker for each image
// of its multimodal_data.
func (c *content) embeddingInputs(v jsonscan.Value) (err error) {
	c.param = "input"
	if v.Kind != jsonscan.Array {
		return c.refuse("An input with images must be in a list.")
	}
	w := jsonscan.WalkOf(v.Raw)
	w.Array(func() bool {
		item := w.Raw()
		switch {
		case item.Kind == jsonscan.Object && member(item, "prompt_string").Kind == jsonscan.String && member(item, "multimodal_data").Kind == jsonscan.Array:
			before := c.media.images
			markers := bytes.Count(member(item, "prompt_string").Bytes(), []byte(recipe.MediaMarker))
			err = filter(item, func(name []byte, v jsonscan.Value) (bool, error) {
				if string(name) == "multimodal_data" {
					return true, c.base64Images(v)
				}
				return string(name) == "prompt_string", nil
			})
			if err == nil && c.media.images-before != markers { // llama-server says only that it failed
				err = c.invalid("A 'prompt_string' needs one '" + recipe.MediaMarker + "' for each image.")
			}
		case fixTokens(item):
			err = c.refuse("An input with images must be an object with a string 'prompt_string' and a list 'multimodal_data'.")
		}
		return err == nil
	})
	return err
}

// base64Images checks a list of images in base64.
func (c *content) base64Images(v jsonscan.Value) (err error) {
	if v.Kind != jsonscan.Array {
		return c.invalid("'multimodal_data' must be a list.")
	}
	w := jsonscan.WalkOf(v.Raw)
	w.Array(func() bool {
		err = c.base64Image(w.Raw())
		return err == nil
	})
	return err
}

// isMediaName reports whether engines look for media under a name.
func isMediaName(name []byte) bool {
	if bytes.HasSuffix(name, []byte("_url")) || bytes.HasPrefix(name, []byte("input_")) {
		return true
	}
	switch string(name) {
	case "images", "image", "videos", "video", "audios", "url", "source", "media", "multimodal_data", "file", "file_data":
		return true
	}
	return false
}

func (c *content) invalid(message string) error {
	return api.New(api.InvalidType, message).WithParam(c.param)
}

func (c *content) missing(member string) error {
	return api.Newf(api.MissingRequiredParameter, "A content part has no '%s'.", member).WithParam(c.param)
}

func (c *content) refuse(message string) error {
	return api.New(api.UnsupportedParameter, message+" Content is text, images, audio or video, as data: or base64.").WithParam(c.param)
}

func (c *content) remote() error {
	return api.New(api.RemoteMediaDisabled, "Media must be sent as a data: URL; the gateway does not fetch URLs.").WithParam(c.param)
}
