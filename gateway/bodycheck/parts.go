package bodycheck

import (
	"bytes"
	"io"
	"maps"
	"slices"

	"reveille/gateway/api"
	"reveille/gateway/media"
	"reveille/infra/jsonscan"
)

// parts checks the content of one request and counts its media.
type parts struct {
	dialect dialect
	param   string
	media   media.Check
	calls   int  // tool calls in messages
	turns   int  // messages, as engines count them
	last    bool // no text follows the last media file
	ended   bool // the last message is the assistant's
	long    bool // the value is long enough to hold a run that is too long
	run     run  // across the texts of one content: templates may join its parts
}

// begin starts the check of a parameter's value.
func (p *parts) begin(param string, v jsonscan.Value) {
	p.param, p.long, p.run = param, len(v.Raw) > maxRun, run{}
}

// maxMessages and maxCalls bound a dialogue: chat templates take time that grows with the square of its length, or with its
// length times its calls. That of Gemma 4 takes 24 s for 1,000 messages, one of Cohere's 12 s for 200 calls in 400.
const (
	maxMessages = api.MaxMessages
	maxCalls    = 512
)

// messages checks a dialogue in OpenAI's or Anthropic's format.
func (p *parts) messages(v jsonscan.Value) *api.Error {
	if v.Kind != jsonscan.Array {
		return wrong([]byte(p.param), "a list")
	}
	if e := p.count(v.Len(), 0); e != nil {
		return e
	}
	if v.Depth() == 2 && v.HasObject() && !bytes.Contains(v.Raw, []byte(`_url"`)) {
		if e := p.steep(v); e != nil {
			return e
		}
		return unbroken(p.param, v) // the messages hold only scalars
	}
	return p.eachMember(v, func(w *jsonscan.Walk, name []byte) *api.Error {
		switch {
		case string(name) == "content":
			return p.contents(w, p.allowed())
		case string(name) == "role":
			v := w.Raw()
			p.ended = oneOf(v, []string{"assistant"})
			return unbroken(p.param, v)
		case mediaName(name):
			return p.refuse("A message may hold media only in its content parts.")
		case string(name) == "tool_calls":
			v := w.Raw()
			if e := p.count(0, length(v, maxCalls)); e != nil {
				return e
			}
			if e := p.steep(v); e != nil {
				return e
			}
			return unbroken(p.param, v)
		}
		return p.anything(w)
	})
}

// count adds messages and tool calls.
func (p *parts) count(turns, calls int) *api.Error {
	p.turns += turns
	p.calls += calls
	if p.turns > maxMessages {
		return api.Newf(api.InvalidType, "A request may have at most %d messages; results of tools count as such.", maxMessages).WithParam(p.param)
	}
	if p.calls > maxCalls {
		return api.Newf(api.InvalidType, "The messages of a request may hold at most %d tool calls.", maxCalls).WithParam(p.param)
	}
	return nil
}

// length returns the number of items of a list, at most most+1; 0 for anything else.
func length(v jsonscan.Value, most int) (n int) {
	isList(v, func(jsonscan.Value) bool { n++; return n <= most })
	return n
}

// eachMember calls check for each member of each object in the list v until it returns an error. It refuses items that are not
// objects.
func (p *parts) eachMember(v jsonscan.Value, check func(w *jsonscan.Walk, name []byte) *api.Error) (e *api.Error) {
	w := jsonscan.WalkOf(v.Raw)
	w.Array(func() bool {
		if w.Kind() != jsonscan.Object {
			e = api.Newf(api.InvalidType, "Each item of '%s' must be an object.", p.param).WithParam(p.param)
			return false
		}
		return w.Object(func(name []byte) bool {
			e = check(&w, name)
			return e == nil
		})
	})
	return e
}

// contents checks a message's content: a text, a list of parts, or none.
func (p *parts) contents(w *jsonscan.Walk, allowed map[string]part) *api.Error {
	p.run = run{}
	switch w.Kind() {
	case jsonscan.String, jsonscan.Null:
		v := w.Raw()
		if p.last {
			p.follows(v)
		}
		if e := p.steep(v); e != nil {
			return e
		}
		return unbroken(p.param, v)
	case jsonscan.Array:
		return p.list(w, allowed)
	}
	return api.New(api.InvalidType, "A content must be a text or a list of parts.").WithParam(p.param)
}

// part is a type of content part: the members that it may have, and the check of the one that holds media or parts.
type part struct {
	member string
	check  func(*parts, *jsonscan.Walk) *api.Error
}

var (
	textPart = part{}

	openAIParts = map[string]part{
		"text": textPart, "refusal": textPart,
		"image_url":   {"image_url", (*parts).imageURL},
		"input_audio": {"input_audio", (*parts).audio},
		"input_video": {"input_video", (*parts).video},
	}
	systemParts = map[string]part{"text": textPart}
	resultParts = map[string]part{
		"text":     textPart,
		"image":    {"source", (*parts).source},
		"document": {"source", (*parts).textSource},
	}

	sourceTypes = []string{"image/png", "image/jpeg", "image/jpg", "image/webp", "image/gif", "image/bmp", "text/plain"}

	// plainMembers are further members of parts; engines fetch and decode nothing in them.
	plainMembers = map[string]bool{
		"type": true, "text": true, "refusal": true, "detail": true, "cache_control": true, "annotations": true, "citations": true, "logprobs": true,
		"id": true, "name": true, "title": true, "context": true, "index": true, "status": true, "signature": true, "uuid": true,
	}
)

// anthropicParts are the parts of a message; its tool results hold resultParts.
var anthropicParts = func() map[string]part {
	all := maps.Clone(resultParts)
	all["tool_use"] = part{"input", func(p *parts, w *jsonscan.Walk) *api.Error {
		v := w.Raw()
		if e := p.steep(v); e != nil {
			return e
		}
		return unbroken(p.param, v)
	}}
	all["tool_result"] = part{"content", func(p *parts, w *jsonscan.Walk) *api.Error { return p.contents(w, resultParts) }}
	all["thinking"] = part{"thinking", (*parts).justText}
	all["redacted_thinking"] = part{"data", (*parts).justText}
	return all
}()

// allowed returns the parts that a message's content may have.
func (p *parts) allowed() map[string]part {
	if p.dialect == anthropic {
		return anthropicParts
	}
	return openAIParts
}

// list checks a list of parts.
func (p *parts) list(w *jsonscan.Walk, allowed map[string]part) (e *api.Error) {
	w.Array(func() bool {
		e = p.one(w, allowed)
		return e == nil
	})
	return e
}

// one checks a part: its type is allowed, and it has each of its members once and no others, so that all parsers see the same
// part.
func (p *parts) one(w *jsonscan.Walk, allowed map[string]part) *api.Error {
	if w.Kind() != jsonscan.Object {
		return api.New(api.InvalidType, "A content part must be an object.").WithParam(p.param)
	}
	raw := w.Raw()
	var form part
	var kind string
	known := false
	types := 0
	scan := jsonscan.WalkOf(raw.Raw)
	scan.Object(func(name []byte) bool {
		if string(name) == "type" {
			types++
			if t := scan.Raw(); t.Kind == jsonscan.String {
				kind = string(t.Bytes())
				form, known = allowed[kind]
			}
		}
		return true
	})
	if !known || types != 1 {
		return p.refuse("A content part's type is not accepted here.")
	}
	var e *api.Error
	switch kind { // engines turn them into messages
	case "tool_use":
		e = p.count(0, 1)
	case "tool_result":
		e = p.count(1, 0)
	}
	if e != nil {
		return e
	}
	var seen [maxMembers]string
	members, held := 0, false
	inner := jsonscan.WalkOf(raw.Raw)
	inner.Object(func(name []byte) bool {
		held = held || string(name) == form.member
		if slices.Contains(seen[:members], string(name)) {
			e = p.refuse("A content part has a member twice.")
			return false
		}
		if members == maxMembers {
			e = p.refuse("A content part has too many members.")
			return false
		}
		seen[members] = string(name)
		members++
		switch {
		case form.member != "" && string(name) == form.member:
			before := p.media.Files()
			e = form.check(p, &inner)
			p.last = p.last || p.media.Files() > before && kind != "tool_result"
		case string(name) == "text" || string(name) == "refusal":
			if ahead := inner; p.last && form.member == "" && string(name) == "text" { // engines skip a refusal
				p.follows(ahead.Raw())
			}
			if ahead := inner; e == nil {
				e = p.steep(ahead.Raw())
			}
			if e == nil {
				e = p.justText(&inner)
			}
		case plainMembers[string(name)] || string(name) == "tool_use_id" || string(name) == "is_error" || string(name) == "caller":
			e = p.anything(&inner)
		default:
			e = p.refuse("A content part has a member that is not accepted here.")
		}
		return e == nil
	})
	if e == nil && form.member != "" && !held {
		return api.Newf(api.MissingRequiredParameter, "A content part lacks its '%s'.", form.member).WithParam(p.param)
	}
	return e
}

// follows records that a text follows the media so far.
func (p *parts) follows(v jsonscan.Value) {
	p.last = len(bytes.TrimSpace(v.Bytes())) == 0
}

// maxMembers bounds the members of a part.
const maxMembers = 16

func (p *parts) refuse(message string) *api.Error {
	return api.New(api.UnsupportedParameter, message+" Content is text, images, audio or video, as data: or base64.").WithParam(p.param)
}

func (p *parts) remote() *api.Error {
	return api.New(api.RemoteMediaDisabled, "Media must be sent as a data: URL; fetching it from elsewhere is not allowed here.").WithParam(p.param)
}

func (p *parts) justText(w *jsonscan.Walk) *api.Error {
	if k := w.Kind(); k != jsonscan.String && k != jsonscan.Null {
		return api.New(api.InvalidType, "A content part's text must be a text.").WithParam(p.param)
	}
	v := w.Raw()
	if !p.long || v.Kind != jsonscan.String {
		return nil
	}
	return p.run.add(p.param, v.Raw[1:len(v.Raw)-1])
}

func (p *parts) anything(w *jsonscan.Walk) *api.Error { return unbroken(p.param, w.Raw()) }

// imageURL checks an image: an object with a data: URL.
func (p *parts) imageURL(w *jsonscan.Walk) *api.Error {
	if w.Kind() != jsonscan.Object {
		if e := p.dataURL(w.Raw()); e != nil {
			return e
		}
		return p.refuse("'image_url' must be an object with a 'url'.")
	}
	return p.object(w, "url", []string{"detail"}, (*parts).dataURL)
}

// audio checks a sound: an object whose data is base64.
func (p *parts) audio(w *jsonscan.Walk) *api.Error {
	if w.Kind() != jsonscan.Object {
		return wrong([]byte(p.param), "a dialogue whose input_audio parts are objects")
	}
	return p.object(w, "data", []string{"format"}, func(p *parts, v jsonscan.Value) *api.Error { return p.bare(v, p.media.Sound) })
}

func (p *parts) video(w *jsonscan.Walk) *api.Error {
	if w.Kind() != jsonscan.Object {
		return wrong([]byte(p.param), "a dialogue whose input_video parts are objects")
	}
	return p.object(w, "data", []string{"format"}, func(p *parts, v jsonscan.Value) *api.Error { return p.bare(v, p.media.Video) })
}

// source checks Anthropic's source of an image.
func (p *parts) source(w *jsonscan.Walk) *api.Error {
	if w.Kind() != jsonscan.Object {
		return p.refuse("A source must be an object.")
	}
	return p.typed(w, "base64", func(v jsonscan.Value) *api.Error {
		if v.Kind == jsonscan.String {
			if _, isURL := dataHead(v.TextReader()); isURL {
				return p.refuse("The data of a source is base64 without a data: URL before it.")
			}
		}
		return p.bare(v, p.media.Picture)
	})
}

// textSource checks the source of a document, which may only be text.
func (p *parts) textSource(w *jsonscan.Walk) *api.Error {
	if w.Kind() != jsonscan.Object {
		return p.refuse("A source must be an object.")
	}
	return p.typed(w, "text", func(v jsonscan.Value) *api.Error {
		if v.Kind != jsonscan.String {
			return p.refuse("A document must be a text.")
		}
		return unbroken(p.param, v)
	})
}

// typed checks an object with type, media_type and data.
func (p *parts) typed(w *jsonscan.Walk, want string, check func(jsonscan.Value) *api.Error) (e *api.Error) {
	types, datas := 0, 0
	var data jsonscan.Value
	w.Object(func(name []byte) bool {
		v := w.Raw()
		switch string(name) {
		case "type":
			if types++; !oneOf(v, []string{want}) {
				e = p.refuse("A source's type is not accepted here.")
				if oneOf(v, []string{"url"}) {
					e = p.remote()
				}
			}
		case "data":
			datas++
			data = v
		case "media_type":
			if !oneOf(v, sourceTypes) {
				e = p.refuse("A source's media_type must be that of a PNG, JPEG, WebP, GIF or BMP picture, or text/plain.")
			}
		case "url":
			e = p.remote()
		default:
			e = p.refuse("A source has a member that is not accepted here.")
		}
		return e == nil
	})
	switch {
	case e != nil:
		return e
	case types != 1 || datas != 1:
		return p.refuse("A source needs one type and one data.")
	}
	return check(data)
}

// object checks a text, or an object that holds it as member. The object may have the members in others, which must be texts.
func (p *parts) object(w *jsonscan.Walk, member string, others []string, check func(*parts, jsonscan.Value) *api.Error) (e *api.Error) {
	if w.Kind() != jsonscan.Object {
		return check(p, w.Raw())
	}
	count := 0
	w.Object(func(name []byte) bool {
		v := w.Raw()
		switch {
		case string(name) == member:
			count++
			e = check(p, v)
		case v.Kind == jsonscan.String && slices.Contains(others, string(name)):
		case v.Kind == jsonscan.Null:
		default:
			e = p.refuse("A media object has a member that is not accepted here.")
		}
		return e == nil && count < 2
	})
	if e == nil && count != 1 {
		return p.refuse("A media object needs its '" + member + "' once.")
	}
	return e
}

// dataURL checks an image in a data: URL.
func (p *parts) dataURL(v jsonscan.Value) *api.Error {
	if v.Kind != jsonscan.String {
		return p.refuse("An image must be a data: URL.")
	}
	r := v.TextReader()
	mime, ok := dataHead(r)
	switch {
	case !ok && !bytes.HasPrefix(mime, []byte("data:")):
		return p.remote()
	case !ok || !bytes.HasPrefix(mime, []byte("data:image/")):
		return p.refuse("An image must be a data: URL such as data:image/png;base64,….")
	}
	return p.media.Picture(p.param, r, len(v.Raw))
}

// bare checks media in base64, with or without a data: URL before it.
func (p *parts) bare(v jsonscan.Value, check func(string, *jsonscan.TextReader, int) *api.Error) *api.Error {
	if v.Kind != jsonscan.String {
		return p.refuse("Media must be base64.")
	}
	r := v.TextReader()
	switch mime, ok := dataHead(r); {
	case ok:
	case bytes.IndexByte(mime, ':') >= 0:
		return p.refuse("Media must be base64; they are not fetched from elsewhere.")
	default:
		r = v.TextReader()
	}
	return check(p.param, r, len(v.Raw))
}

// dataHead reads the head of a data: URL up to its comma. For any other text ok is false and head is its beginning.
func dataHead(r *jsonscan.TextReader) (head []byte, ok bool) {
	const longest = 100
	head = make([]byte, 0, longest)
	for len(head) < longest {
		var c [4]byte
		n, err := r.Read(c[:1])
		if err == io.ErrShortBuffer {
			n, err = r.Read(c[:])
		}
		if err != nil {
			return head, false
		}
		head = append(head, c[:n]...)
		if c[0] == ',' {
			return head, bytes.HasPrefix(head, []byte("data:")) && bytes.HasSuffix(head, []byte(";base64,"))
		}
	}
	return head, false
}

// mediaName reports whether engines look for media under a name.
func mediaName(name []byte) bool {
	if bytes.HasSuffix(name, []byte("_url")) || bytes.HasPrefix(name, []byte("input_")) {
		return true
	}
	switch string(name) {
	case "images", "image", "videos", "video", "audios", "url", "source", "media", "multimodal_data", "file", "file_data":
		return true
	}
	return false
}

// oneOf reports whether v is one of the given texts.
func oneOf(v jsonscan.Value, texts []string) bool {
	if v.Kind != jsonscan.String || len(v.Raw) > 256 {
		return false
	}
	s := v.Bytes()
	return slices.Contains(texts, string(s))
}
