package responses

import (
	"bytes"
	"encoding/json"
	"strconv"

	"reveille/gateway/api"
	"reveille/infra/jsonscan"
)

// Paths of an engine for what Translate writes.
const (
	ChatPath        = "/v1/chat/completions"
	InputTokensPath = "/v1/chat/completions/input_tokens"
)

// object holds members of an object by name; of several of one name the last counts.
type object map[string]jsonscan.Value

// read returns the members of a valid object that names name.
func read(raw []byte, names map[string]bool) object {
	o := object{}
	w := jsonscan.WalkOf(raw)
	w.Object(func(name []byte) bool {
		if names[string(name)] {
			o[string(name)] = w.Raw()
		}
		return true
	})
	return o
}

func set(names ...string) map[string]bool {
	m := make(map[string]bool, len(names))
	for _, name := range names {
		m[name] = true
	}
	return m
}

// echoed are the members that answers repeat, their kinds, and what answers have in place of an absent one.
var echoed = []struct {
	name   string
	kind   jsonscan.Kind
	absent string
}{
	{"instructions", jsonscan.String, "null"},
	{"max_output_tokens", jsonscan.Number, "null"},
	{"max_tool_calls", jsonscan.Number, "null"},
	{"metadata", jsonscan.Object, "{}"},
	{"parallel_tool_calls", jsonscan.Bool, "true"},
	{"prompt_cache_key", jsonscan.String, "null"},
	{"reasoning", jsonscan.Object, `{"effort":null,"summary":null}`},
	{"safety_identifier", jsonscan.String, "null"},
	{"temperature", jsonscan.Number, "null"},
	{"text", jsonscan.Object, `{"format":{"type":"text"}}`},
	{"tool_choice", jsonscan.Absent, `"auto"`}, // a text or an object
	{"tools", jsonscan.Array, "[]"},
	{"top_p", jsonscan.Number, "null"},
	{"truncation", jsonscan.String, `"disabled"`},
	{"user", jsonscan.String, "null"},
}

// same are the members that a chat has under the same name.
var same = [...]string{
	"temperature", "top_p", "top_k", "min_p", "seed", "stop", "presence_penalty", "frequency_penalty", "repeat_penalty", "parallel_tool_calls",
	"metadata", "chat_template_kwargs",
}

// refused are the members that ask for what is not done here, and the reason.
var refused = [...]struct{ name, why string }{
	{"conversation", "conversations are not stored; send the whole conversation in 'input'"},
	{"prompt", "prompts are not stored; send the text in 'instructions' or 'input'"},
	{"background", "responses are not made in the background; send the request without it"},
}

var members = func() map[string]bool {
	names := set(same[:]...)
	for _, e := range echoed {
		names[e.name] = true
	}
	for _, r := range refused {
		names[r.name] = true
	}
	names["input"] = true
	return names
}()

// maxEcho is the longest member that answers repeat, in bytes: they do so three times in a stream. A longer one counts as absent.
const maxEcho = 64 << 10

// Echo is the part of a request that its answers repeat: members of an object, as JSON in one line.
type Echo []byte

// Translate writes the chat that a request asks for. body is a valid JSON object, of which echo keeps nothing. An error is one
// for the client.
func Translate(body []byte, model string, stream bool) (chat []byte, echo Echo, err error) {
	q := read(body, members)
	for _, r := range refused {
		if v := q[r.name]; v.Set() && (v.Kind != jsonscan.Bool || v.Bool()) {
			return nil, nil, api.Newf(api.UnsupportedParameter, "'%s' is not supported: %s.", r.name, r.why).WithParam(r.name)
		}
	}
	for _, e := range echoed {
		if v := q[e.name]; v.Set() && v.Kind != e.kind && e.kind != jsonscan.Absent {
			return nil, nil, wrong(e.name, e.kind)
		}
	}
	chat = append(make([]byte, 0, len(body)+len(body)/8+512), `{"model":`...)
	chat = jsonscan.AppendQuote(chat, model)
	chat = append(chat, `,"stream":`...)
	chat = strconv.AppendBool(chat, stream)
	if stream {
		chat = append(chat, `,"stream_options":{"include_usage":true}`...)
	}
	if v := q["max_output_tokens"]; v.Set() {
		chat = append(append(chat, `,"max_tokens":`...), v.Raw...)
	}
	for _, name := range same {
		if v := q[name]; v.Set() {
			chat = member(chat, name, v)
		}
	}
	if chat, err = appendMessages(chat, q); err != nil {
		return nil, nil, err
	}
	if chat, err = appendTools(chat, q); err != nil {
		return nil, nil, err
	}
	if chat, err = appendFormat(chat, q["text"]); err != nil {
		return nil, nil, err
	}
	if echo, err = echoOf(q); err != nil {
		return nil, nil, err
	}
	return append(chat, '}'), echo, nil
}

// member appends a member after another one; its name must need no escapes.
func member(dst []byte, name string, v jsonscan.Value) []byte {
	dst = append(append(append(dst, `,"`...), name...), `":`...)
	return append(dst, v.Raw...)
}

func echoOf(q object) (Echo, error) {
	var b bytes.Buffer
	for i, e := range echoed {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(`"` + e.name + `":`)
		if v := q[e.name]; !v.Set() || len(v.Raw) > maxEcho {
			b.WriteString(e.absent)
		} else if err := json.Compact(&b, v.Raw); err != nil {
			return nil, api.New(api.InvalidJSON, "Invalid JSON body.").WithCause(err)
		}
	}
	return b.Bytes(), nil
}

func wrong(name string, kind jsonscan.Kind) error {
	return api.Newf(api.InvalidType, "'%s' must be a JSON %s.", name, kind).WithParam(name)
}

// Asked names members of the request in an error about its chat. nil stays nil.
func Asked(err error) error {
	if err == nil {
		return nil
	}
	e := api.As(err)
	for chat, own := range map[string]string{"messages": "input", "response_format": "text", "max_tokens": "max_output_tokens"} {
		if e.Param == chat {
			e.Param = own
			e.Message = string(bytes.ReplaceAll([]byte(e.Message), []byte("'"+chat+"'"), []byte("'"+own+"'")))
			return e
		}
	}
	return e
}
