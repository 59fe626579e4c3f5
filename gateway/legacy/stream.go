package legacy

import (
	"reveille/gateway/api"
	"reveille/gateway/completion"
)

// events writes the client's events.
type events struct{ *Request }

// NewStream makes the stream of a request's answer.
func NewStream(r *Request) *completion.Stream { return completion.NewStream(events{r}) }

// Comment passes a comment on.
func (e events) Comment(dst, text []byte) []byte { return append(append(dst, text...), "\n\n"...) }

// Event appends an event. One without an answer, as llama-server sends before those to several prompts, says nothing.
func (e events) Event(dst []byte, c *completion.Completion) []byte {
	text, err := e.Answer(c.Raw)
	if err != nil {
		return dst
	}
	return api.AppendEvent(dst, "", text)
}

// End appends the mark of a complete answer.
func (e events) End(dst []byte) []byte { return api.AppendEvent(dst, "", []byte("[DONE]")) }

// Fail appends an error.
func (e events) Fail(dst, data []byte) []byte {
	if data == nil {
		data = api.OpenAI.Body(api.NotUnderstood(), e.ID)
	}
	return api.AppendEvent(dst, "", data)
}
