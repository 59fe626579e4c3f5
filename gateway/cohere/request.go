package cohere

import (
	"encoding/json"
	"errors"

	"reveille/gateway/api"
	"reveille/infra/jsonscan"
)

// ChatPath is the engine's path for what Translate writes.
const ChatPath = "/v1/chat/completions"

// request is a request in Cohere's form.
type request struct {
	Messages   []message       `json:"messages"`
	Tools      json.RawMessage `json:"tools"`
	ToolChoice string          `json:"tool_choice"`
	Format     *format         `json:"response_format"`
	Logprobs   bool            `json:"logprobs"`
	P          json.RawMessage `json:"p"`
	K          json.RawMessage `json:"k"`
	MaxTokens  json.RawMessage `json:"max_tokens"`
	Heat       json.RawMessage `json:"temperature"`
	Seed       json.RawMessage `json:"seed"`
	Stop       json.RawMessage `json:"stop_sequences"`
	Frequency  json.RawMessage `json:"frequency_penalty"`
	Presence   json.RawMessage `json:"presence_penalty"`
}

type message struct {
	Role       string          `json:"role"`
	Content    json.RawMessage `json:"content"`
	Plan       string          `json:"tool_plan"`
	ToolCalls  json.RawMessage `json:"tool_calls"`
	ToolCallID string          `json:"tool_call_id"`
}

type format struct {
	Type   string          `json:"type"`
	Schema json.RawMessage `json:"json_schema"`
	Older  json.RawMessage `json:"schema"`
}

// part is a part of a message's content.
type part struct {
	Type     string          `json:"type"`
	Text     string          `json:"text"`
	Thinking string          `json:"thinking"`
	Image    json.RawMessage `json:"image_url"`
	Document json.RawMessage `json:"document"` // of a tool's result: an object or a text
}

// chat is a request as engines take it.
type chat struct {
	Model      string          `json:"model"`
	Stream     bool            `json:"stream"`
	Options    *streamOptions  `json:"stream_options,omitempty"`
	Messages   []chatMessage   `json:"messages"`
	Tools      json.RawMessage `json:"tools,omitempty"`
	ToolChoice string          `json:"tool_choice,omitempty"`
	Format     any             `json:"response_format,omitempty"`
	TopP       json.RawMessage `json:"top_p,omitempty"`
	TopK       json.RawMessage `json:"top_k,omitempty"`
	MaxTokens  json.RawMessage `json:"max_tokens,omitempty"`
	Heat       json.RawMessage `json:"temperature,omitempty"`
	Seed       json.RawMessage `json:"seed,omitempty"`
	Stop       json.RawMessage `json:"stop,omitempty"`
	Frequency  json.RawMessage `json:"frequency_penalty,omitempty"`
	Presence   json.RawMessage `json:"presence_penalty,omitempty"`
}

type streamOptions struct {
	Usage bool `json:"include_usage"`
}

type chatMessage struct {
	Role       string          `json:"role"`
	Content    any             `json:"content"` // a text or []chatPart
	Reasoning  string          `json:"reasoning_content,omitempty"`
	ToolCalls  json.RawMessage `json:"tool_calls,omitempty"`
	ToolCallID string          `json:"tool_call_id,omitempty"`
}

type chatPart struct {
	Type  string          `json:"type"`
	Text  *string         `json:"text,omitempty"`
	Image json.RawMessage `json:"image_url,omitempty"`
}

// toolChoices are Cohere's and the engines' names.
var toolChoices = map[string]string{"": "", "REQUIRED": "required", "NONE": "none"}

// Translate writes the chat that a request asks for. An error is one for the client.
func Translate(body []byte, model string, stream bool) ([]byte, error) {
	var q request
	if err := json.Unmarshal(body, &q); err != nil {
		if wrong, is := errors.AsType[*json.UnmarshalTypeError](err); is {
			return nil, api.Newf(api.InvalidType, "'%s' must not be of type %s.", wrong.Field, wrong.Value).With(wrong.Field)
		}
		return nil, api.New(api.InvalidJSON, "Invalid JSON body.").WithCause(err)
	}
	choice, known := toolChoices[q.ToolChoice]
	switch {
	case !known:
		return nil, api.New(api.InvalidType, "'tool_choice' must be REQUIRED or NONE.").With("tool_choice")
	case q.Logprobs:
		return nil, api.New(api.UnsupportedParameter, "'logprobs' is not supported here.").With("logprobs")
	}
	c := chat{
		Model: model, Stream: stream, Tools: given(q.Tools), ToolChoice: choice, TopP: given(q.P), TopK: given(q.K), MaxTokens: given(q.MaxTokens),
		Heat: given(q.Heat), Seed: given(q.Seed), Stop: given(q.Stop), Frequency: given(q.Frequency), Presence: given(q.Presence),
	}
	if stream {
		c.Options = &streamOptions{true}
	}
	var err error
	if c.Format, err = q.Format.translate(); err != nil {
		return nil, err
	}
	c.Messages = make([]chatMessage, len(q.Messages))
	for i, m := range q.Messages {
		if c.Messages[i], err = m.translate(); err != nil {
			return nil, err
		}
	}
	return jsonscan.Marshal(c)
}

// given returns nil for null, which counts as absent.
func given(raw json.RawMessage) json.RawMessage {
	if string(raw) == "null" {
		return nil
	}
	return raw
}

func (f *format) translate() (any, error) {
	switch {
	case f == nil || f.Type == "text":
		return nil, nil
	case f.Type != "json_object":
		return nil, api.New(api.InvalidType, "The type of 'response_format' must be text or json_object.").With("response_format")
	}
	schema := given(f.Schema)
	if schema == nil {
		schema = given(f.Older)
	}
	if schema == nil {
		return map[string]string{"type": "json_object"}, nil
	}
	return map[string]any{"type": "json_schema", "json_schema": map[string]any{"name": "answer", "strict": true, "schema": schema}}, nil
}

func (m message) translate() (chatMessage, error) {
	out := chatMessage{Role: m.Role, Content: "", Reasoning: m.Plan, ToolCalls: given(m.ToolCalls), ToolCallID: m.ToolCallID}
	content := given(m.Content)
	var text string
	var parts []part
	switch {
	case m.Role != "user" && m.Role != "assistant" && m.Role != "system" && m.Role != "tool":
		return out, refuse("A message's 'role' must be user, assistant, system or tool.")
	case content == nil:
		return out, nil
	case json.Unmarshal(content, &text) == nil:
		out.Content = text
		return out, nil
	case json.Unmarshal(content, &parts) != nil:
		return out, refuse("A message's 'content' must be a text or a list of parts.")
	}
	list := []chatPart{}
	for _, p := range parts {
		switch p.Type {
		case "text":
			list = append(list, chatPart{Type: "text", Text: &p.Text})
		case "thinking":
			out.Reasoning += p.Thinking
		case "image_url":
			list = append(list, chatPart{Type: "image_url", Image: p.Image})
		case "document":
			text := string(p.Document)
			list = append(list, chatPart{Type: "text", Text: &text})
		default:
			return out, refuse("A content part's type must be text, thinking, image_url or document.")
		}
	}
	switch {
	case len(list) == 1 && list[0].Text != nil:
		out.Content = *list[0].Text
	case len(list) > 0:
		out.Content = list
	}
	return out, nil
}

func refuse(message string) error { return api.New(api.InvalidType, message).With("messages") }
