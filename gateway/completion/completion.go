// Package completion has the messages of chats in OpenAI's form, and reads engines' responses to chats and prompts,
// whole and as event streams. The translators to other dialects (gateway/ollama, gateway/responses) build on it. It
// does no I/O.
package completion

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"strconv"
	"strings"

	"reveille/infra/jsonscan"
	"reveille/infra/relay"
)

// ErrInvalidResponse: an engine's response is not one of OpenAI's.
var ErrInvalidResponse = errors.New("the response is not a completion")

// Completion is a whole response, or one event of a stream.
type Completion struct {
	Choices []Choice `json:"choices"`
	Usage   *Usage   `json:"usage"`
	Timings *struct {
		PromptMS float64 `json:"prompt_ms"`
		OutputMS float64 `json:"predicted_ms"`
	} `json:"timings"`
	Error json.RawMessage `json:"error"`

	Raw   []byte `json:"-"` // of an event; valid while a sink has it
	Calls []Call `json:"-"` // of the stream so far
}

// Choice is the model's output: Message in a whole response, Delta or Message in a stream, Text in either for a prompt.
type Choice struct {
	Index   Number   `json:"index"` // streams with several responses: translators take the first
	Message *Message `json:"message"`
	Delta   *Message `json:"delta"`
	Text    string   `json:"text"`
	Reason  string   `json:"finish_reason"`

	Error json.RawMessage `json:"error"`
}

// failure returns the error with which the engine ended the choice, nil if it did not fail.
func (c *Choice) failure() []byte {
	hasError := len(c.Error) > 0 && string(c.Error) != "null"
	if hasError {
		if data := failure(c.Error); data != nil {
			return data
		}
	}
	if hasError || c.Reason == "error" || c.Reason == "abort" {
		return failure([]byte(`"The engine aborted the response."`))
	}
	return nil
}

// IsError reports whether a response, or an event of a stream, is an error of the engine.
func IsError(data []byte) bool {
	if !MayHaveError(data) {
		return false
	}
	var v [8]jsonscan.Value
	if jsonscan.Scan(data, errorMembers, v[:]) != nil {
		return false
	}
	for _, result := range v[3:] {
		if result.Kind != jsonscan.Absent {
			return v[0].Set()
		}
	}
	return v[0].Set() || v[1].Kind == jsonscan.String || v[2].Set()
}

// MayHaveError reports whether data can hold an error. It is faster than IsError, and false for most events.
func MayHaveError(data []byte) bool {
	return bytes.Contains(data, []byte("error")) || bytes.Contains(data, []byte(`"message"`)) || bytes.Contains(data, []byte(`"detail"`))
}

// errorMembers are members of errors, and behind them those that only other responses have.
var errorMembers = []string{"error", "message", "detail", "choices", "usage", "timings", "prompt_progress", "data"}

// MessageOrDelta is the choice's message, or a part of one.
func (c *Choice) MessageOrDelta() *Message { return cmp.Or(c.Delta, c.Message, &Message{}) }

// Usage counts tokens.
type Usage struct {
	Prompt        Number `json:"prompt_tokens"`
	Output        Number `json:"completion_tokens"`
	PromptDetails struct {
		Cached Number `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
	OutputDetails struct {
		Reasoning Number `json:"reasoning_tokens"`
	} `json:"completion_tokens_details"`
}

// UnmarshalJSON ignores anything that is not an object.
func (u *Usage) UnmarshalJSON(b []byte) error {
	type plain Usage
	if b[0] != '{' {
		return nil
	}
	return json.Unmarshal(b, (*plain)(u))
}

// Number is a whole number. Engines also write it as a fraction or a text.
type Number int64

// UnmarshalJSON takes all of these.
func (n *Number) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		return nil
	}
	f, err := strconv.ParseFloat(strings.Trim(string(b), `"`), 64)
	*n = Number(f)
	return err
}

// Message is a message, or a part of one.
type Message struct {
	Content   string `json:"content"`
	Reasoning string `json:"reasoning_content"`
	Thinking  string `json:"reasoning"` // vLLM's name for it
	ToolCalls []Call `json:"tool_calls"`
}

// UnmarshalJSON takes a content that is a list of parts.
func (s *Message) UnmarshalJSON(b []byte) error {
	type plain Message
	v := struct {
		*plain
		Content json.RawMessage `json:"content"`
	}{plain: (*plain)(s)}
	if err := json.Unmarshal(b, &v); err != nil || len(v.Content) == 0 {
		return err
	}
	if v.Content[0] != '[' {
		return json.Unmarshal(v.Content, &s.Content)
	}
	var parts []struct{ Text string }
	err := json.Unmarshal(v.Content, &parts)
	for _, p := range parts {
		s.Content += p.Text
	}
	return err
}

// UnmarshalJSON takes arguments that are an object.
func (f *Function) UnmarshalJSON(b []byte) error {
	var v struct {
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	}
	err := json.Unmarshal(b, &v)
	f.Name, f.Arguments = v.Name, string(v.Arguments)
	switch {
	case f.Arguments == "null":
		f.Arguments = ""
	case strings.HasPrefix(f.Arguments, `"`):
		err = errors.Join(err, json.Unmarshal(v.Arguments, &f.Arguments))
	}
	return err
}

// calls are those of a response so far, which pieces of a stream add to.
type calls []Call

// assignIndexes gives pieces of calls the index of their call in the response, and leaves out repeated names. A piece
// adds to the call with its id and index or, without an id, to the last one with its index, which is 0 where it has
// none. A name after complete arguments starts another call.
func (s *calls) assignIndexes(pieces []Call) {
	for i := range pieces {
		p := &pieces[i]
		at := len(*s) - 1
		for at >= 0 && !(*s)[at].continues(p) {
			at--
		}
		if at < 0 {
			*s = append(*s, *p)
			at = len(*s) - 1
		} else {
			c := &(*s)[at]
			if p.Function.Name == c.Function.Name || c.Function.Arguments != "" {
				p.Function.Name = ""
			}
			c.Function.Name += p.Function.Name
			c.Function.Arguments += p.Function.Arguments
		}
		p.Index = Number(at)
	}
}

// continues reports whether a piece belongs to the call c, whose Index is the engine's.
func (c *Call) continues(p *Call) bool {
	switch {
	case p.ID != "" && c.ID != "":
		return p.ID == c.ID && p.Index == c.Index
	case p.Function.Name != "" && json.Valid([]byte(c.Function.Arguments)):
		return false
	}
	return p.Index == c.Index
}

// Call is a call of a tool. In a stream its pieces share an index: the name comes first, the arguments bit by bit.
type Call struct {
	Index    Number   `json:"index,omitempty"` // in a response
	ID       string   `json:"id"`
	Type     string   `json:"type"`
	Function Function `json:"function"`
}

// Function is the function of a call.
type Function struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"` // JSON text
}

// ChatMessage is a message of a request.
type ChatMessage struct {
	Role       string `json:"role"`
	Reasoning  string `json:"reasoning_content,omitempty"`
	Content    any    `json:"content"` // a string or []ChatPart
	ToolCalls  []Call `json:"tool_calls,omitempty"`
	ToolCallID string `json:"tool_call_id,omitempty"`
}

// ChatPart is a part of a message's content.
type ChatPart struct {
	Type       string          `json:"type"`
	Text       *string         `json:"text,omitempty"`
	ImageURL   *ImageURL       `json:"image_url,omitempty"`
	InputAudio json.RawMessage `json:"input_audio,omitempty"`
}

// ImageURL is where an image is.
type ImageURL struct {
	URL    string `json:"url"`
	Detail string `json:"detail,omitempty"`
}

// Parse reads a whole response, which has at least one choice. Its error is ErrInvalidResponse, or a
// *relay.EventError where the engine failed.
func Parse(engine []byte) (*Completion, error) {
	var c Completion
	if err := json.Unmarshal(engine, &c); err != nil || len(c.Choices) == 0 {
		return nil, errors.Join(ErrInvalidResponse, err)
	}
	if data := c.Choices[0].failure(); data != nil {
		return nil, &relay.EventError{Data: data}
	}
	return &c, nil
}

// ReasoningContent is a message's reasoning, which is not part of the response. Some engines send it under both names.
func (s *Message) ReasoningContent() string { return cmp.Or(s.Reasoning, s.Thinking) }

// Vectors reads a response to an embedding request: the embeddings in the order of the inputs, and the tokens of these.
// Its error is ErrInvalidResponse.
func Vectors(engine []byte) ([]json.RawMessage, int64, error) {
	var e struct {
		Data []struct {
			Index     Number          `json:"index"`
			Embedding json.RawMessage `json:"embedding"`
		} `json:"data"`
		Usage Usage `json:"usage"`
	}
	if err := json.Unmarshal(engine, &e); err != nil || len(e.Data) == 0 {
		return nil, 0, errors.Join(ErrInvalidResponse, err)
	}
	list := make([]json.RawMessage, len(e.Data))
	for _, d := range e.Data {
		if d.Index < 0 || int(d.Index) >= len(list) || list[d.Index] != nil || len(d.Embedding) == 0 || d.Embedding[0] == 'n' {
			return nil, 0, ErrInvalidResponse
		}
		list[d.Index] = d.Embedding
	}
	return list, int64(e.Usage.Prompt), nil
}
