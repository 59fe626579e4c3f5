package completion

import (
	"bytes"
	"encoding/json"
	"slices"

	"reveille/infra/jsonscan"
)

// A Sink writes what a stream says in another dialect. Each method appends to dst and returns it.
type Sink interface {
	// Comment takes a comment, which says that there is nothing yet, from its colon to the end of its line.
	Comment(dst, text []byte) []byte
	// Event takes an event of the completion.
	Event(dst []byte, c *Completion) []byte
	// End ends a complete response. Nothing follows it.
	End(dst []byte) []byte
	// Fail ends a response that broke off: data is {"error": {"message": ...}}, nil where the stream could not be
	// understood. Nothing follows it.
	Fail(dst, data []byte) []byte
}

// Stream reads an engine's event stream into a sink. It is not safe for concurrent use.
type Stream struct {
	sink      Sink
	part      []byte // of a line that has not ended
	data      []byte // of an event that is not complete: where the stream breaks off in it, an error follows
	cut       bool   // an empty line followed data
	calls     calls
	begun     bool // there was a line
	hasObject bool // there was an event of the completion
	ended     bool // End or Fail of the sink was called
	failed    bool // the name of the event is error
}

// maxEvent bounds an event, in bytes.
const maxEvent = 16 << 20

// NewStream makes a stream into a sink.
func NewStream(s Sink) *Stream { return &Stream{sink: s} }

// Append appends what the sink makes of bytes of the event stream.
func (s *Stream) Append(dst, events []byte) []byte {
	for {
		text, rest, hasNewline := bytes.Cut(events, []byte("\n"))
		if !hasNewline {
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

// End appends the end of the response where the stream did not have one. The stream came to its proper end.
func (s *Stream) End(dst []byte) []byte {
	text := s.part
	s.part = nil
	return s.end(s.line(dst, bytes.TrimSuffix(text, []byte("\r"))))
}

func (s *Stream) end(dst []byte) []byte {
	switch {
	case s.ended:
		return dst
	case !s.hasObject || len(s.data) > 0:
		return s.fail(dst, nil)
	}
	s.ended = true
	return s.sink.End(dst)
}

func (s *Stream) fail(dst, data []byte) []byte {
	s.ended = true
	return s.sink.Fail(dst, failure(data))
}

// failure returns an error of an engine as {"error": {"message": ...}}. It may also be {"error": "text"}, {"message":
// "text"}, {"detail": "text"} or a text. It returns nil for anything else.
func failure(data []byte) []byte {
	var e struct {
		Message string          `json:"message"`
		Detail  json.RawMessage `json:"detail"`
		Error   json.RawMessage `json:"error"`
	}
	if json.Unmarshal(data, &e.Message) != nil && json.Unmarshal(data, &e) != nil {
		return nil
	}
	if bytes.HasPrefix(e.Error, []byte("{")) {
		return data
	}
	for _, text := range [][]byte{e.Detail, e.Error} {
		_ = json.Unmarshal(text, &e.Message)
	}
	data, _ = json.Marshal(map[string]any{"error": map[string]string{"message": e.Message}})
	return data
}

// line takes a line. Events of engines end with an empty line or at the end of their JSON, which may be spread over
// several lines of data.
func (s *Stream) line(dst, text []byte) []byte {
	if !s.begun {
		text, s.begun = jsonscan.TrimMark(text), true
	}
	switch {
	case s.ended:
		return dst
	case len(text) == 0:
		s.cut, s.failed = len(s.data) > 0, false
		return dst
	case text[0] == ':':
		return s.sink.Comment(dst, text)
	case text[0] == '{': // an error of the gateway in a dialect of lines
		return s.fail(dst, text)
	}
	name, data, _ := bytes.Cut(text, []byte(":"))
	data = bytes.TrimLeft(data, " ")
	switch {
	case string(name) == "event":
		s.failed = string(data) == "error"
		return dst
	case string(name) == "error", string(name) == "data" && s.failed:
		return s.fail(dst, data)
	case string(name) != "data":
		return dst
	case string(data) == "[DONE]":
		return s.end(dst)
	case len(data) == 0:
		return dst
	}
	if len(s.data) > 0 && !s.cut {
		s.data = append(append(s.data, '\n'), data...)
		data = s.data
	}
	var c Completion
	err := json.Unmarshal(data, &c)
	switch {
	case err == nil && IsError(data):
		return s.fail(dst, data)
	case s.cut:
		return s.fail(dst, nil)
	case err != nil && (json.Valid(data) || len(data) > maxEvent):
		return s.fail(dst, nil)
	case err != nil && len(s.data) == 0:
		s.data = append(s.data, data...)
		return dst
	case err != nil:
		return dst
	}
	c.Raw, s.hasObject = data, true
	c.Choices = slices.DeleteFunc(c.Choices, func(c Choice) bool { return c.Index != 0 })
	c.Choices = c.Choices[:min(1, len(c.Choices))] // some engines do not say which one it is
	for i := range c.Choices {
		if failure := c.Choices[i].failure(); failure != nil {
			return s.fail(dst, failure)
		}
		s.calls.assignIndexes(c.Choices[i].MessageOrDelta().ToolCalls)
	}
	c.Calls = s.calls
	dst = s.sink.Event(dst, &c)
	s.data = s.data[:0]
	return dst
}
