package ollama

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"reveille/gateway/api"
	"reveille/gateway/completion"
	"reveille/infra/jsonscan"
)

// Paths of an engine.
const (
	ChatPath       = "/v1/chat/completions"
	CompletionPath = "/v1/completions"
)

// A Request is a request in Ollama's form.
type Request struct {
	Messages []Message                  `json:"messages"` // of chat
	Tools    json.RawMessage            `json:"tools"`
	Prompt   string                     `json:"prompt"` // of generate and embeddings, as are the next ones of generate
	System   string                     `json:"system"`
	Template string                     `json:"template"`
	Suffix   string                     `json:"suffix"`
	Images   []string                   `json:"images"` // base64
	Raw      bool                       `json:"raw"`
	Input    json.RawMessage            `json:"input"` // of embed, as is Dimensions
	Dims     json.RawMessage            `json:"dimensions"`
	Truncate *bool                      `json:"truncate"` // a text that is too long is cut; default true
	Format   json.RawMessage            `json:"format"`   // "json" or a schema
	Think    json.RawMessage            `json:"think"`    // true, false or how much
	Options  map[string]json.RawMessage `json:"options"`
	Keep     json.RawMessage            `json:"keep_alive"`
}

// A Message is one of a chat.
type Message struct {
	Role       string     `json:"role"`
	Content    string     `json:"content"`
	Thinking   string     `json:"thinking,omitempty"`
	Images     []string   `json:"images,omitempty"`
	ToolCalls  []ToolCall `json:"tool_calls,omitempty"`
	ToolName   string     `json:"tool_name,omitempty"`
	ToolCallID string     `json:"tool_call_id,omitempty"`
}

// A ToolCall is a call that a model asks for.
type ToolCall struct {
	ID       string   `json:"id,omitempty"`
	Function Function `json:"function"`
}

// A Function is a function with its arguments, an object.
type Function struct {
	Index     int             `json:"index"`
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments"`
}

// Parse reads a body. Its error is one for the client.
func Parse(body []byte) (*Request, error) {
	var q Request
	if err := json.Unmarshal(body, &q); err != nil {
		if wrong, is := errors.AsType[*json.UnmarshalTypeError](err); is {
			return nil, api.Newf(api.InvalidType, "'%s' must not be of type %s.", wrong.Field, wrong.Value).WithParam(wrong.Field)
		}
		return nil, api.New(api.InvalidJSON, "Invalid JSON body.").WithCause(err)
	}
	for name, value := range map[string]string{"template": q.Template, "suffix": q.Suffix} {
		if value != "" {
			return nil, api.Newf(api.UnsupportedParameter, "'%s' is not supported: the model's own template is used.", name).WithParam(name)
		}
	}
	return &q, nil
}

// forever is a keep_alive without an end.
const forever = -1

// KeepAlive is how long the model is to stay without use after this request: 0 not at all, below 0 for ever. set is
// false where the request leaves it as it is.
func (q *Request) KeepAlive() (d time.Duration, set bool, err error) {
	if isAbsent(q.Keep) {
		return 0, false, nil
	}
	var text string
	var seconds float64
	if n, ok := parseInteger(q.Keep); ok {
		seconds = float64(n)
	} else if json.Unmarshal(q.Keep, &text) == nil {
		d, err = time.ParseDuration(text)
	} else {
		err = json.Unmarshal(q.Keep, &seconds)
	}
	const maxSeconds = math.MaxInt64 / 2e9
	d += time.Duration(max(-maxSeconds, min(seconds, maxSeconds)) * float64(time.Second))
	if err != nil {
		return 0, false, api.New(api.InvalidType, "'keep_alive' must be a number of seconds or a duration such as \"5m\".").WithParam("keep_alive")
	}
	if d < 0 {
		d = forever
	}
	return d, true, nil
}

// Context is the context size with which to load the model, 0 if the request sets none.
func (q *Request) Context() (tokens int64, err error) {
	raw := q.Options["num_ctx"]
	if isAbsent(raw) {
		return 0, nil
	}
	tokens, ok := parseInteger(raw)
	if !ok || tokens < 0 {
		return 0, api.New(api.InvalidType, "'num_ctx' must be a whole number.").WithParam("options.num_ctx")
	}
	return tokens, nil
}

// parseInteger reads a whole number, which may be written as a fraction or in quotes.
func parseInteger(raw json.RawMessage) (n int64, ok bool) {
	w := jsonscan.WalkOf(raw)
	v := w.Raw()
	if v.Kind == jsonscan.String {
		v = jsonscan.Value{Kind: jsonscan.Number, Raw: v.Bytes()}
		if bytes.ContainsAny(v.Raw, "+_eExX") { // which Go's parsers take
			return 0, false
		}
	}
	return v.Int()
}

// Chat is the engine's body for a chat with a model.
func (q *Request) Chat(model string, stream bool) ([]byte, error) {
	messages, err := engineMessages(q.Messages)
	if err != nil {
		return nil, err
	}
	return q.engineBody(model, stream, map[string]any{"messages": messages})
}

// Generate is the engine's body for a prompt, and the path it is for: the prompt is a chat's only message, or with raw
// what the model sees.
func (q *Request) Generate(model string, stream bool) (body []byte, path string, err error) {
	if q.Raw {
		if len(q.Images) > 0 {
			return nil, "", api.New(api.UnsupportedParameter, "'images' cannot be used with 'raw'.").WithParam("images")
		}
		body, err = q.engineBody(model, stream, map[string]any{"prompt": q.Prompt})
		return body, CompletionPath, err
	}
	var chat []Message
	if q.System != "" {
		chat = append(chat, Message{Role: "system", Content: q.System})
	}
	messages, err := engineMessages(append(chat, Message{Role: "user", Content: q.Prompt, Images: q.Images}))
	if err != nil {
		return nil, "", err
	}
	body, err = q.engineBody(model, stream, map[string]any{"messages": messages})
	return body, ChatPath, err
}

// sampling are the options that engines take under the same name.
var sampling = [...]string{
	"temperature", "top_k", "top_p", "min_p", "typical_p", "seed", "stop", "repeat_penalty", "repeat_last_n", "presence_penalty",
	"frequency_penalty", "mirostat", "mirostat_tau", "mirostat_eta",
}

// engineBody adds what chats and prompts share.
func (q *Request) engineBody(model string, stream bool, body map[string]any) ([]byte, error) {
	body["model"], body["stream"] = model, stream
	if stream {
		body["stream_options"] = map[string]bool{"include_usage": true}
	}
	if !isAbsent(q.Tools) {
		body["tools"] = q.Tools
	}
	for _, name := range sampling {
		raw := q.Options[name]
		if isAbsent(raw) {
			continue
		}
		if raw[0] == '"' && name != "stop" { // Ollama takes no number in quotes either
			return nil, api.Newf(api.InvalidType, "'%s' must be a number.", name).WithParam("options." + name)
		}
		body[name] = raw
	}
	if raw := q.Options["num_keep"]; !isAbsent(raw) {
		body["n_keep"] = raw
	}
	if raw := q.Options["num_predict"]; !isAbsent(raw) {
		n, ok := parseInteger(raw)
		if !ok {
			return nil, api.New(api.InvalidType, "'num_predict' must be a whole number.").WithParam("options.num_predict")
		}
		if n >= 0 { // -1 and -2 mean no limit except the context
			body["max_tokens"] = n
		}
	}
	if err := q.format(body); err != nil {
		return nil, err
	}
	if err := q.think(body); err != nil {
		return nil, err
	}
	return jsonscan.Marshal(body)
}

// format asks for JSON.
func (q *Request) format(body map[string]any) error {
	if isAbsent(q.Format) || string(q.Format) == `""` {
		return nil
	}
	switch {
	case string(q.Format) == `"json"`:
		body["response_format"] = map[string]string{"type": "json_object"}
	case q.Format[0] == '{':
		body["response_format"] = map[string]any{"type": "json_schema", "json_schema": map[string]any{"name": "format", "schema": q.Format}}
	default:
		return api.New(api.InvalidType, "'format' must be \"json\" or a JSON schema.").WithParam("format")
	}
	return nil
}

// think says whether, or how much, the model is to think, which its template knows.
func (q *Request) think(body map[string]any) error {
	if isAbsent(q.Think) {
		return nil
	}
	var on bool
	var level string
	switch {
	case json.Unmarshal(q.Think, &on) == nil:
		body["chat_template_kwargs"] = map[string]any{"enable_thinking": on}
	case json.Unmarshal(q.Think, &level) == nil:
		body["chat_template_kwargs"] = map[string]any{"enable_thinking": true, "reasoning_effort": level}
	default:
		return api.New(api.InvalidType, "'think' must be true, false or a level.").WithParam("think")
	}
	return nil
}

// Texts is the engine's body for embeddings of input, which is a text or a list of texts; nil where there is nothing to
// embed.
func (q *Request) Texts(model string, input json.RawMessage) (body []byte, err error) {
	if isAbsent(input) || string(input) == `""` || string(bytes.Join(bytes.Fields(input), nil)) == "[]" {
		return nil, nil
	}
	m := map[string]json.RawMessage{"input": input}
	if m["model"], err = jsonscan.Marshal(model); err != nil {
		return nil, err
	}
	if !isAbsent(q.Dims) {
		m["dimensions"] = q.Dims
	}
	if q.Truncate == nil || *q.Truncate {
		m["truncate"] = json.RawMessage("true")
	}
	return jsonscan.Marshal(m)
}

// engineMessages turns messages into OpenAI's. Calls get an id each where they have none, and results that of the first
// call which they can be the result of.
func engineMessages(in []Message) ([]completion.ChatMessage, error) {
	out := make([]completion.ChatMessage, 0, len(in))
	var open []completion.Call // without a result yet
	calls := 0
	for _, m := range in {
		o := completion.ChatMessage{Role: m.Role, Content: m.Content, Reasoning: m.Thinking}
		if len(m.Images) > 0 {
			parts := []completion.ChatPart{}
			if m.Content != "" {
				parts = append(parts, completion.ChatPart{Type: "text", Text: &m.Content})
			}
			for i, image := range m.Images {
				url, ok := imageURL(image)
				if !ok {
					return nil, api.Newf(api.InvalidType, "'images[%d]' must be a PNG, JPEG, WebP or GIF image in base64.", i).WithParam("images")
				}
				parts = append(parts, completion.ChatPart{Type: "image_url", ImageURL: &completion.ImageURL{URL: url}})
			}
			o.Content = parts
		}
		for _, c := range m.ToolCalls {
			if c.ID == "" {
				c.ID = fmt.Sprintf("call_%d", calls)
			}
			calls++
			call := completion.Call{ID: c.ID, Type: "function", Function: completion.Function{
				Name: c.Function.Name, Arguments: argumentsText(c.Function.Arguments),
			}}
			o.ToolCalls = append(o.ToolCalls, call)
			open = append(open, call)
		}
		if m.Role == "tool" {
			o.ToolCallID, open = callOf(m, open)
		}
		out = append(out, o)
	}
	return out, nil
}

// callOf is the id of the call that a message is the result of, and the calls that are open without it.
func callOf(m Message, open []completion.Call) (id string, rest []completion.Call) {
	if m.ToolCallID != "" || len(open) == 0 {
		return m.ToolCallID, open
	}
	at := max(0, slices.IndexFunc(open, func(c completion.Call) bool { return c.Function.Name == m.ToolName }))
	return open[at].ID, append(open[:at:at], open[at+1:]...)
}

// argumentsText is the JSON text of arguments; a text is taken to be that already.
func argumentsText(raw json.RawMessage) string {
	var text string
	if isAbsent(raw) {
		return "{}"
	}
	if json.Unmarshal(raw, &text) == nil {
		return text
	}
	return string(raw)
}

// imageTypes are media types by the first bytes of their files in base64.
var imageTypes = map[string]string{"iVBORw0KGgo": "image/png", "/9j/": "image/jpeg", "UklGR": "image/webp", "R0lGOD": "image/gif"}

// imageURL is a data URL of an image in base64, or that is one already.
func imageURL(data string) (url string, ok bool) {
	if strings.HasPrefix(data, "data:image/") {
		return data, true
	}
	for begin, kind := range imageTypes {
		if strings.HasPrefix(data, begin) {
			return "data:" + kind + ";base64," + data, true
		}
	}
	return "", false
}

// isAbsent reports whether a member is not there, or null.
func isAbsent(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }
