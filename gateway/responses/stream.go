package responses

import (
	"encoding/json"
	"fmt"

	"reveille/gateway/api"
	"reveille/gateway/completion"
)

// NewStream makes a stream that responds with the events of a response.
func NewStream(f *ResponseWriter) *completion.Stream {
	return completion.NewStream(&streamWriter{form: f})
}

// streamWriter is a response that is being made from the events of a completion: texts, thoughts and calls become items
// of the output. One item of text or thoughts is open at a time; calls stay open to the end, for an engine may write
// several side by side.
type streamWriter struct {
	form     *ResponseWriter
	sequence int
	started  bool
	items    []*item
	open     *item                       // of text or thoughts; nil for none
	calls    map[completion.Number]*item // by the engine's index
	reason   string                      // why the engine ended
	usage    *completion.Usage
	failure  failure
}

// event is an event of a stream. Which members it has depends on its type.
type event struct {
	Type      string          `json:"type"`
	Sequence  int             `json:"sequence_number"`
	Response  json.RawMessage `json:"response,omitempty"`
	Output    *int            `json:"output_index,omitempty"`
	ItemID    string          `json:"item_id,omitempty"`
	Content   *int            `json:"content_index,omitempty"`
	Item      *item           `json:"item,omitempty"`
	Part      *part           `json:"part,omitempty"`
	Delta     *string         `json:"delta,omitempty"`
	Text      *string         `json:"text,omitempty"`
	Name      string          `json:"name,omitempty"`
	Arguments *string         `json:"arguments,omitempty"`
	Logprobs  []struct{}      `json:"logprobs,omitzero"`
}

// send appends an event.
func (s *streamWriter) send(dst []byte, e event) []byte {
	e.Sequence = s.sequence
	return s.frame(dst, e.Type, encode(e))
}

func (s *streamWriter) frame(dst []byte, kind string, data []byte) []byte {
	s.sequence++
	return api.AppendEvent(dst, kind, data)
}

// Comment passes a comment on.
func (s *streamWriter) Comment(dst, text []byte) []byte {
	return append(append(dst, text...), "\n\n"...)
}

// Event appends what an event of the completion adds to the response.
func (s *streamWriter) Event(dst []byte, c *completion.Completion) []byte {
	if !s.started {
		s.started = true
		for _, kind := range [...]string{"response.created", "response.in_progress"} {
			dst = s.send(dst, event{Type: kind, Response: s.response(inProgress)})
		}
	}
	if c.Usage != nil {
		s.usage = c.Usage
	}
	if len(c.Choices) == 0 {
		return dst
	}
	choice := &c.Choices[0]
	message := choice.MessageOrDelta()
	dst = s.addText(dst, "reasoning", message.ReasoningContent())
	dst = s.addText(dst, "message", message.Content+choice.Text)
	for _, c := range message.ToolCalls {
		dst = s.addCall(dst, c)
	}
	if choice.Reason != "" {
		s.reason = choice.Reason
	}
	return dst
}

// addText adds to the open item, which is one of that type afterwards.
func (s *streamWriter) addText(dst []byte, kind, text string) []byte {
	if text == "" {
		return dst
	}
	if s.open != nil && s.open.Type != kind {
		dst = s.close(dst, s.open, completed)
	}
	if s.open == nil {
		it := &item{Type: kind, Content: []part{}}
		if kind == "message" {
			it.Role = "assistant"
		} else {
			it.Summary = []part{}
		}
		dst = s.openItem(dst, it)
		s.open = it
		dst = s.send(dst, event{Type: "response.content_part.added", Output: &it.index, ItemID: it.ID, Content: new(int), Part: it.part("")})
	}
	it := s.open
	it.text = append(it.text, text...)
	e := event{Type: it.textEvent() + ".delta", Output: &it.index, ItemID: it.ID, Content: new(int), Delta: &text}
	if kind == "message" {
		e.Logprobs = []struct{}{}
	}
	return s.send(dst, e)
}

// addCall adds a piece of a call.
func (s *streamWriter) addCall(dst []byte, c completion.Call) []byte {
	it := s.calls[c.Index]
	if it == nil {
		if s.open != nil {
			dst = s.close(dst, s.open, completed)
		}
		if c.ID == "" {
			c.ID = fmt.Sprintf("call_%s%d", s.form.ID, len(s.items))
		}
		it = &item{Type: "function_call", call: &call{ID: c.ID, Name: c.Function.Name}}
		if s.calls == nil {
			s.calls = map[completion.Number]*item{}
		}
		s.calls[c.Index] = it
		dst = s.openItem(dst, it)
	} else {
		it.Name += c.Function.Name
	}
	return s.addArguments(dst, it, c.Function.Arguments)
}

// addArguments adds to the arguments of a call.
func (s *streamWriter) addArguments(dst []byte, it *item, text string) []byte {
	if text == "" {
		return dst
	}
	it.text = append(it.text, text...)
	return s.send(dst, event{Type: "response.function_call_arguments.delta", Output: &it.index, ItemID: it.ID, Delta: &text})
}

// idPrefixes start the ids of items.
var idPrefixes = map[string]string{"message": "msg_", "reasoning": "rs_", "function_call": "fc_"}

// openItem starts an item.
func (s *streamWriter) openItem(dst []byte, it *item) []byte {
	it.index = len(s.items)
	it.ID = fmt.Sprintf("%s%s%d", idPrefixes[it.Type], s.form.ID, it.index)
	it.Status = inProgress
	s.items = append(s.items, it)
	return s.send(dst, event{Type: "response.output_item.added", Output: &it.index, Item: it})
}

// close ends an item.
func (s *streamWriter) close(dst []byte, it *item, is status) []byte {
	if it.call != nil {
		if len(it.text) == 0 && is == completed {
			dst = s.addArguments(dst, it, "{}")
		}
		it.Arguments = string(it.text)
		dst = s.send(dst, event{Type: "response.function_call_arguments.done", Output: &it.index, ItemID: it.ID, Name: it.Name, Arguments: &it.Arguments})
	} else {
		p := it.part(string(it.text))
		it.Content = append(it.Content, *p)
		dst = s.send(dst, event{Type: it.textEvent() + ".done", Output: &it.index, ItemID: it.ID, Content: new(int), Text: &p.Text, Logprobs: p.Logprobs})
		dst = s.send(dst, event{Type: "response.content_part.done", Output: &it.index, ItemID: it.ID, Content: new(int), Part: p})
		s.open = nil
	}
	it.Status, it.text = is, nil
	return s.send(dst, event{Type: "response.output_item.done", Output: &it.index, Item: it})
}

// part is the only part of an item.
func (it *item) part(text string) *part {
	if it.Type == "reasoning" {
		return &part{Type: "reasoning_text", Text: text}
	}
	return &part{Type: "output_text", Text: text, Annotations: []struct{}{}, Logprobs: []struct{}{}}
}

func (it *item) textEvent() string {
	if it.Type == "reasoning" {
		return "response.reasoning_text"
	}
	return "response.output_text"
}

// incompleteReason says why the response is incomplete, "" for one that is not.
func (s *streamWriter) incompleteReason() string {
	switch s.reason {
	case "length":
		return "max_output_tokens"
	case "content_filter":
		return s.reason
	}
	return ""
}

// status is the status of the response when the engine has ended.
func (s *streamWriter) status() status {
	if s.incompleteReason() != "" {
		return incomplete
	}
	return completed
}

// finish ends all items.
func (s *streamWriter) finish(dst []byte) []byte {
	for _, it := range s.items {
		if it.Status == inProgress {
			dst = s.close(dst, it, s.status())
		}
	}
	return dst
}

// End appends the end of the response.
func (s *streamWriter) End(dst []byte) []byte {
	if !s.started {
		return s.Fail(dst, nil)
	}
	dst = s.finish(dst)
	return s.send(dst, event{Type: "response." + string(s.status()), Response: s.final()})
}

// Fail appends an error event, at which most clients stop, and the end of the response for the others.
func (s *streamWriter) Fail(dst, data []byte) []byte {
	var told struct {
		Error struct {
			Message, Type string
			Param, Code   any // texts, or null
		}
	}
	e := api.InvalidEngineResponse()
	if json.Unmarshal(data, &told) == nil && told.Error.Message != "" {
		e = &api.Error{Message: told.Error.Message, Type: told.Error.Type}
		e.Param, _ = told.Error.Param.(string)
		e.Code, _ = told.Error.Code.(string)
	}
	for _, it := range s.items {
		if it.Status == inProgress {
			it.Status = incomplete
		}
	}
	s.failure = failure{Code: e.Code, Message: e.Message}
	dst = s.frame(dst, "error", e.Event(s.sequence))
	return s.send(dst, event{Type: "response.failed", Response: s.response(failed)})
}
