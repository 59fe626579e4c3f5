package ollama

import (
	"cmp"
	"encoding/json"
	"time"

	"reveille/gateway/completion"
)

// streamWriter turns an engine's completion into Ollama's lines.
type streamWriter struct {
	form   *ResponseWriter
	calls  []completion.Call
	reason string
	first  time.Time // of the first words
	usage  counts
}

// NewStream makes a stream in a form.
func NewStream(f *ResponseWriter) *completion.Stream {
	return completion.NewStream(&streamWriter{form: f})
}

// Comment appends an object without words.
func (s *streamWriter) Comment(dst, _ []byte) []byte { return appendLine(dst, s.form.line(part{})) }

// End appends the final object.
func (s *streamWriter) End(dst []byte) []byte {
	if len(s.calls) > 0 {
		dst = appendLine(dst, s.form.line(part{calls: toolCalls(s.calls)}))
	}
	l := s.form.line(part{})
	s.finishLine(&l)
	return appendLine(dst, l)
}

// Event appends the words of an event.
func (s *streamWriter) Event(dst []byte, c *completion.Completion) []byte {
	s.recordMetadata(c)
	if len(c.Choices) == 0 {
		return dst
	}
	choice := c.Choices[0]
	message := choice.MessageOrDelta()
	s.calls = c.Calls
	w := part{content: message.Content + choice.Text, thinking: message.ReasoningContent()}
	if w.content == "" && w.thinking == "" {
		return dst
	}
	if s.first.IsZero() {
		s.first = s.form.Now()
	}
	return appendLine(dst, s.form.line(w))
}

// recordMetadata records the metadata of a response or event.
func (s *streamWriter) recordMetadata(c *completion.Completion) {
	if len(c.Choices) > 0 && c.Choices[0].Reason != "" {
		s.reason = c.Choices[0].Reason
	}
	if u := c.Usage; u != nil {
		s.usage.PromptCount, s.usage.OutputCount = int64(u.Prompt), int64(u.Output)
	}
	if t := c.Timings; t != nil {
		s.usage.PromptTime, s.usage.OutputTime = milliseconds(t.PromptMS), milliseconds(t.OutputMS)
	}
}

func milliseconds(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }

// finishLine makes a line the final one. Times that an engine does not report are measured here.
func (s *streamWriter) finishLine(l *line) {
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

// Fail appends an error.
func (s *streamWriter) Fail(dst, data []byte) []byte {
	var e struct {
		Error struct{ Message string }
	}
	_ = json.Unmarshal(data, &e)
	text, _ := json.Marshal(map[string]string{"error": cmp.Or(e.Error.Message, "The engine's response is invalid.")})
	return append(append(dst, text...), '\n')
}
