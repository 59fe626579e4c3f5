package completion

import (
	"bytes"
	"encoding/json"
)

// A Sink writes what a stream says in another dialect. Each method appends to dst and returns it.
type Sink interface {
	// Comment takes a comment, which says that there is nothing yet, from its colon to the end of its line.
	Comment(dst, text []byte) []byte
	// Event takes an event of the completion.
	Event(dst []byte, c *Completion) []byte
	// End ends a complete answer. Nothing follows it.
	End(dst []byte) []byte
	// Fail ends an answer that broke off: data is an object that holds the error, nil where the stream could not be
	// understood. Nothing follows it.
	Fail(dst, data []byte) []byte
}

// Stream reads an engine's event stream into a sink. It is not safe for concurrent use.
type Stream struct {
	sink  Sink
	part  []byte // of a line that has not ended
	cut   bool   // the last event could not be understood: where the stream broke off in it, an error follows
	ended bool   // End or Fail of the sink was called
}

// NewStream makes a stream into a sink.
func NewStream(s Sink) *Stream { return &Stream{sink: s} }

// Append appends what the sink makes of bytes of the event stream.
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

// End appends the end of the answer where the stream did not have one. The stream came to its proper end.
func (s *Stream) End(dst []byte) []byte {
	switch {
	case s.ended:
		return dst
	case s.cut:
		return s.fail(dst, nil)
	}
	s.ended = true
	return s.sink.End(dst)
}

func (s *Stream) fail(dst, data []byte) []byte {
	s.ended = true
	return s.sink.Fail(dst, data)
}

func (s *Stream) line(dst, text []byte) []byte {
	switch {
	case s.ended || len(text) == 0:
		return dst
	case text[0] == ':':
		return s.sink.Comment(dst, text)
	case text[0] == '{': // an error of the gateway in a dialect of lines
		return s.fail(dst, text)
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
	var c Completion
	err := json.Unmarshal(data, &c)
	switch {
	case err == nil && len(c.Error) > 0 && string(c.Error) != "null":
		return s.fail(dst, data)
	case s.cut:
		return s.fail(dst, nil)
	case err != nil:
		s.cut = true
		return dst
	}
	c.Raw = data
	return s.sink.Event(dst, &c)
}
