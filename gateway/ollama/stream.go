package ollama

import (
	"bytes"
	"encoding/json"
	"time"
)

// A Stream turns an engine's event stream into Ollama's lines. It is not safe for concurrent use.
type Stream struct {
	form   *ResponseWriter
	part   []byte // of a line that has not ended
	calls  []openAICall
	reason string
	first  time.Time // of the first words
	usage  counts
	cut    bool // the last event could not be understood: where the stream broke off in it, an error follows
	ended  bool // a last line was written: the final object, or an error
}

// NewStream makes a translator into a form.
func NewStream(f *ResponseWriter) *Stream { return &Stream{form: f} }

// Append appends the lines that bytes of the event stream give rise to. A comment, which says that there is nothing yet,
// becomes an object without words; a line that is an object already goes through as it is.
func (s *Stream) Append(dst, events []byte) []byte {
	for {
		text, rest, whole := bytes.Cut(events, []byte("\n"))
		if !whole {
			s.part = append(s.part, text...)
			return dst
		}
		if len(s.part) > 0 {
			s.part = append(s.part, text...)
			text = s.part
		}
		dst = s.line(dst, bytes.TrimSuffix(text, []byte("\r")))
		s.part, events = s.part[:0], rest
	}
}

// End appends the final object where the stream did not end with one or an error.
func (s *Stream) End(dst []byte) []byte {
	if s.ended {
		return dst
	}
	if s.cut {
		return s.fail(dst, nil)
	}
	s.ended = true
	if len(s.calls) > 0 {
		dst = appendLine(dst, s.form.line(part{calls: toolCalls(s.calls)}))
	}
	l := s.form.line(part{})
	s.close(&l)
	return appendLine(dst, l)
}

func (s *Stream) line(dst, text []byte) []byte {
	switch {
	case s.ended || len(text) == 0:
		return dst
	case text[0] == ':':
		return appendLine(dst, s.form.line(part{}))
	case text[0] == '{':
		s.ended = true
		return append(append(dst, text...), '\n')
	case s.cut:
		return s.fail(dst, nil)
	}
	name, data, _ := bytes.Cut(text, []byte(":"))
	data = bytes.TrimLeft(data, " ")
	switch {
	case string(name) == "error":
		return s.fail(dst, data)
	case string(name) != "data":
		return dst
	case string(data) == "[DONE]":
		return s.End(dst)
	}
	var c completion
	if json.Unmarshal(data, &c) != nil {
		s.cut = true
		return dst
	}
	if !absent(c.Error) {
		return s.fail(dst, c.Error)
	}
	return s.event(dst, &c)
}

// event takes in one event of a completion.
func (s *Stream) event(dst []byte, c *completion) []byte {
	s.note(c)
	if len(c.Choices) == 0 {
		return dst
	}
	choice := c.Choices[0]
	for _, call := range choice.Delta.ToolCalls {
		s.call(call)
	}
	w := part{content: choice.Delta.Content + choice.Text, thinking: choice.Delta.Reasoning + choice.Delta.Thinking}
	if w.content == "" && w.thinking == "" {
		return dst
	}
	if s.first.IsZero() {
		s.first = s.form.Now()
	}
	return appendLine(dst, s.form.line(w))
}

// note keeps what an answer or event tells of itself.
func (s *Stream) note(c *completion) {
	if len(c.Choices) > 0 && c.Choices[0].Reason != "" {
		s.reason = c.Choices[0].Reason
	}
	if u := c.Usage; u != nil {
		s.usage.PromptCount, s.usage.OutputCount = u.Prompt, u.Completion
	}
	if t := c.Timings; t != nil {
		s.usage.PromptTime, s.usage.OutputTime = milliseconds(t.PromptMS), milliseconds(t.OutputMS)
	}
}

func milliseconds(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }

// call takes in a part of a tool call: its name comes first, its arguments in pieces.
func (s *Stream) call(c openAICall) {
	for i := range s.calls {
		if s.calls[i].Index == c.Index {
			s.calls[i].Function.Name += c.Function.Name
			s.calls[i].Function.Arguments += c.Function.Arguments
			return
		}
	}
	s.calls = append(s.calls, c)
}

// close makes a line the final one. What an engine does not tell of its times is taken from when its words came.
func (s *Stream) close(l *line) {
	now := s.form.Now()
	u := s.usage
	u.Total, u.Load = now.Sub(s.form.Began), s.form.Load()
	if u.PromptTime == 0 && u.OutputTime == 0 {
		first := s.first
		if first.IsZero() {
			first = now
		}
		u.PromptTime, u.OutputTime = max(0, first.Sub(s.form.Began)-u.Load), now.Sub(first)
	}
	l.Done, l.Reason, l.counts = true, "stop", &u
	if s.reason == "length" {
		l.Reason = s.reason
	}
}

// fail ends the stream with an error, which is an object with a message, or a text.
func (s *Stream) fail(dst, why []byte) []byte {
	s.ended = true
	var e struct {
		Message string          `json:"message"`
		Error   json.RawMessage `json:"error"`
	}
	message := ""
	if json.Unmarshal(why, &message) != nil && json.Unmarshal(why, &e) == nil {
		if message = e.Message; message == "" && !absent(e.Error) {
			return s.fail(dst, e.Error)
		}
	}
	if message == "" {
		message = "The model's answer could not be understood."
	}
	text, _ := json.Marshal(map[string]string{"error": message})
	return append(append(dst, text...), '\n')
}
