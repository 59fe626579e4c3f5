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
	loose []loosePart
}

// loosePart is a part whose image is a text, and the part with the object that engines want there.
type loosePart struct{ raw, object []byte }

// part is a type of content part.
type part struct {
	member string // that holds its content
	needed bool
	check  func(*content, jsonscan.Value) error // of that member; nil: engines fetch and decode nothing in it
	asText bool                                 // engines do not know it: its texts stand for it
}

// The parts by type.
var (
	openAIParts = map[string]part{
		"text": {member: "text"}, "refusal": {member: "refusal"},
		"image_url":   {member: "image_url", needed: true, check: (*content).imageURL},
		"input_audio": {member: "input_audio", needed: true, check: func(c *content, v jsonscan.Value) error { return c.object(v, "data", c.sound) }},
		"input_video": {member: "input_video", needed: true, check: func(c *content, v jsonscan.Value) error { return c.object(v, "data", c.video) }},
	}
	systemParts = map[string]part{"text": {member: "text"}}
	resultParts = map[string]part{
		"text":           {member: "text"},
		"image":          {member: "source", needed: true, check: (*content).imageSource},
		"document":       {member: "source", needed: true, check: (*content).textSource, asText: true},
		"search_result":  {member: "content", asText: true},
		"tool_reference": {asText: true},
	}
	anthropicParts = map[string]part{
		"text": resultParts["text"], "image": resultParts["image"], "document": resultParts["document"],
		"search_result": resultParts["search_result"],
		// What Anthropic's own tools did, in a history that began there.
		"server_tool_use": {asText: true}, "web_search_tool_result": {asText: true}, "web_fetch_tool_result": {asText: true},
		"code_execution_tool_result": {asText: true}, "bash_code_execution_tool_result": {asText: true},
		"text_editor_code_execution_tool_result": {asText: true}, "mcp_tool_use": {asText: true}, "mcp_tool_result": {asText: true},
		"container_upload": {asText: true},
		"tool_use":         {member: "input"}, "thinking": {member: "thinking"}, "redacted_thinking": {member: "data"},
		"tool_result": {member: "content", check: func(c *content, v jsonscan.Value) error {
			w := jsonscan.WalkOf(v.Raw)
			return c.value(c.param, &w, resultParts)
		}},
	}
)

// plainMembers are the other members of parts that are kept: engines fetch and decode nothing in them. vLLM's uuid is not
// among them, since it names a picture of another request.
var plainMembers = map[string]bool{
	"annotations": true, "cache_control": true, "caller": true, "citations": true, "context": true, "detail": true, "id": true,
	"index": true, "is_error": true, "logprobs": true, "name": true, "signature": true, "status": true, "title": true,
	"tool_use_id": true,
}

// messages checks a dialogue in OpenAI's or Anthropic's format.
func (c *content) messages(v jsonscan.Value, parts map[string]part) (err error) {
	c.param = "messages"
	if v.Kind != jsonscan.Array {
		return c.invalid("'messages' must be a list.")
	}
	if err := dropNulls(v); err != nil {
		return err
	}
	w := jsonscan.WalkOf(v.Raw)
	w.Array(func() bool {
		if w.Kind() != jsonscan.Object {
			err = c.invalid("Each message must be an object.")
			return false
		}
		return w.Object(func(name []byte) bool {
			switch {
			case string(name) == "content":
				err = c.value("messages", &w, parts)
			case isMediaName(name):
				if v := w.Raw(); v.Kind > jsonscan.Number && len(v.Raw) > len(`""`) {
					err = c.refuse("A message may hold media only in its content parts.")
				}
			}
			return err == nil
		})
	})
	return err
}

// value checks a content: a text, a list of parts, or none.
func (c *content) value(param string, w *jsonscan.Walk, parts map[string]part) (err error) {
	c.param = param
	switch w.Kind() {
	case jsonscan.String, jsonscan.Null:
		w.Raw()
		return nil
	case jsonscan.Array:
		w.Array(func() bool {
			err = c.part(w.Raw(), parts)
			return err == nil
		})
		return err
	}
	return c.invalid("A content must be a text or a list of parts.")
}

// part checks a part and blanks the members that its type does not have.
func (c *content) part(v jsonscan.Value, parts map[string]part) error {
	if v.Kind == jsonscan.String {
		return nil
	}
	if v.Kind != jsonscan.Object {
		return c.invalid("A content part must be an object.")
	}
	kind := member(v, "type")
	p, known := parts[kind.String()]
	if !known {
		return c.refuse("A content part's type is not accepted here.")
	}
	found := false
	var image []byte
	err := filter(v, func(name []byte, v jsonscan.Value) (keep bool, err error) {
		switch string(name) {
		case "type": // parsers may differ in which one of several they take
			if !bytes.Equal(v.Raw, kind.Raw) {
				err = c.refuse("A content part has two types.")
			}
			return true, err
		case p.member:
			found = true
			if p.check != nil && (p.needed || v.Set()) {
				err = p.check(c, v)
			}
			if p.member == "image_url" && v.Kind == jsonscan.String {
				image = v.Raw
			}
			return true, err
		}
		return plainMembers[string(name)] || p.asText, nil
	})
	switch {
	case err != nil:
		return err
	case p.needed && !found:
		return c.missing(p.member)
	case p.asText:
		replace(v, textsOf(v))
	case image != nil:
		c.loose = append(c.loose, loosePart{v.Raw, slices.Concat([]byte(`{"type":"image_url","image_url":{"url":`), image, []byte(`}}`))})
	}
	return nil
}

// replace puts a part of a text, quoted, in place of the part v. All that v has but its texts is longer than what the new part
// has but its text.
func replace(v jsonscan.Value, text []byte) {
	part := slices.Concat([]byte(`{"type":"text","text":`), text, []byte(`}`))
	if len(part) > len(v.Raw) {
		part = []byte(`{"type":"text","text":""}`)
	}
	for i := copy(v.Raw, part); i < len(v.Raw); i++ {
		v.Raw[i] = ' '
	}
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
		return c.image(v)
	}
	return c.object(v, "url", c.image)
}

// imageSource checks Anthropic's source of an image.
func (c *content) imageSource(v jsonscan.Value) error { return c.source(v, "base64", c.bareImage) }

// textSource checks the source of a document, which may only be text.
func (c *content) textSource(v jsonscan.Value) error {
	if member(v, "type").String() == "content" {
		w := jsonscan.WalkOf(member(v, "content").Raw)
		return c.value(c.param, &w, systemParts)
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

// embeddingInputs checks a list of texts, tokens, and objects with pictures: a prompt_string with a marker for each picture of
// its multimodal_data.
func (c *content) embeddingInputs(v jsonscan.Value) (err error) {
	c.param = "input"
	if v.Kind != jsonscan.Array {
		return c.refuse("An input with pictures must be in a list.")
	}
	w := jsonscan.WalkOf(v.Raw)
	w.Array(func() bool {
		item := w.Raw()
		switch {
		case item.Kind == jsonscan.Object && member(item, "prompt_string").Kind == jsonscan.String && member(item, "multimodal_data").Kind == jsonscan.Array:
			before := c.media.pictures
			markers := bytes.Count(member(item, "prompt_string").Bytes(), []byte(recipe.MediaMarker))
			err = filter(item, func(name []byte, v jsonscan.Value) (bool, error) {
				if string(name) == "multimodal_data" {
					return true, c.bareImages(v)
				}
				return string(name) == "prompt_string", nil
			})
			if err == nil && c.media.pictures-before != markers { // llama-server says only that it failed
				err = c.invalid("A 'prompt_string' needs one '" + recipe.MediaMarker + "' for each picture.")
			}
		case holdsObject(item):
			err = c.refuse("An input with pictures is an object with a text 'prompt_string' and a list 'multimodal_data'.")
		}
		return err == nil
	})
	return err
}

// bareImages checks a list of images in base64.
func (c *content) bareImages(v jsonscan.Value) (err error) {
	if v.Kind != jsonscan.Array {
		return c.invalid("'multimodal_data' must be a list.")
	}
	w := jsonscan.WalkOf(v.Raw)
	w.Array(func() bool {
		err = c.bareImage(w.Raw())
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
	return api.Newf(api.MissingRequiredParameter, "A content part lacks its '%s'.", member).WithParam(c.param)
}

func (c *content) refuse(message string) error {
	return api.New(api.UnsupportedParameter, message+" Content is text, images, audio or video, as data: or base64.").WithParam(c.param)
}

func (c *content) remote() error {
	return api.New(api.RemoteMediaDisabled, "Media must be sent as a data: URL; fetching it from elsewhere is not allowed here.").WithParam(c.param)
}
