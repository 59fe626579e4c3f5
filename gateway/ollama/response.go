package ollama

import (
	"encoding/json"
	"time"

	"reveille/gateway/completion"
	"reveille/infra/jsonscan"
)

// A ResponseWriter writes responses in Ollama's format.
type ResponseWriter struct {
	Model    string // as the client called it
	Generate bool   // of /api/generate, else of /api/chat
	Began    time.Time
	Now      func() time.Time
	Load     func() time.Duration // time that the request waited for its model, asked for when the response is complete
}

// line is one object of a response.
type line struct {
	Model     string      `json:"model"`
	CreatedAt string      `json:"created_at"`
	Message   *outMessage `json:"message,omitempty"`
	Response  *string     `json:"response,omitempty"`
	Thinking  string      `json:"thinking,omitempty"`
	ToolCalls []ToolCall  `json:"tool_calls,omitempty"`
	Done      bool        `json:"done"`
	Reason    string      `json:"done_reason,omitempty"`
	*counts
}

type outMessage struct {
	Role      string     `json:"role"`
	Content   string     `json:"content"`
	Thinking  string     `json:"thinking,omitempty"`
	ToolCalls []ToolCall `json:"tool_calls,omitempty"`
}

// counts are the last object's; durations are in nanoseconds.
type counts struct {
	Total       time.Duration `json:"total_duration"`
	Load        time.Duration `json:"load_duration"`
	PromptCount int64         `json:"prompt_eval_count"`
	PromptTime  time.Duration `json:"prompt_eval_duration"`
	OutputCount int64         `json:"eval_count"`
	OutputTime  time.Duration `json:"eval_duration"`
}

// part is a model's output, whole or a part of it.
type part struct {
	content, thinking string
	calls             []ToolCall
}

// line puts words into the form.
func (f *ResponseWriter) line(w part) line {
	l := line{Model: f.Model, CreatedAt: f.Now().UTC().Format(time.RFC3339Nano)}
	if f.Generate {
		l.Response, l.Thinking, l.ToolCalls = &w.content, w.thinking, w.calls
	} else {
		l.Message = &outMessage{Role: "assistant", Content: w.content, Thinking: w.thinking, ToolCalls: w.calls}
	}
	return l
}

// EmptyResponse is the response to a request that asked for no words: reason is "load" or "unload".
func (f *ResponseWriter) EmptyResponse(reason string) []byte {
	l := f.line(part{})
	l.Done, l.Reason = true, reason
	return appendLine(nil, l)
}

// Response turns an engine's whole response into Ollama's.
func (f *ResponseWriter) Response(engine []byte) ([]byte, error) {
	c, err := completion.Parse(engine)
	if err != nil {
		return nil, err
	}
	s := streamWriter{form: f}
	choice := c.Choices[0]
	s.recordMetadata(c)
	message := choice.MessageOrDelta()
	l := f.line(part{message.Content + choice.Text, message.ReasoningContent(), toolCalls(message.ToolCalls)})
	s.finishLine(&l)
	return jsonscan.Marshal(l)
}

// toolCalls turns OpenAI's calls into Ollama's, whose arguments are an object.
func toolCalls(in []completion.Call) []ToolCall {
	var out []ToolCall
	for i, c := range in {
		raw := json.RawMessage(c.Function.Arguments)
		if c.Function.Arguments == "" {
			raw = json.RawMessage("{}")
		} else if !json.Valid(raw) {
			raw, _ = json.Marshal(c.Function.Arguments) // what the model wrote, rather than nothing
		}
		out = append(out, ToolCall{ID: c.ID, Function: Function{Index: i, Name: c.Function.Name, Arguments: raw}})
	}
	return out
}

// appendLine appends an object and a line's end.
func appendLine(dst []byte, l line) []byte {
	text, err := jsonscan.Marshal(l)
	if err != nil {
		return dst // never: texts, numbers and valid JSON
	}
	return append(append(dst, text...), '\n')
}

// Embeddings turns an engine's embeddings into those of /api/embed; nil engine is none.
func (f *ResponseWriter) Embeddings(engine []byte) ([]byte, error) {
	list, tokens, err := vectors(engine)
	if err != nil {
		return nil, err
	}
	return json.Marshal(struct {
		Model      string            `json:"model"`
		Embeddings []json.RawMessage `json:"embeddings"`
		Total      time.Duration     `json:"total_duration"`
		Load       time.Duration     `json:"load_duration"`
		Prompt     int64             `json:"prompt_eval_count"`
	}{f.Model, list, f.Now().Sub(f.Began), f.Load(), tokens})
}

// Embedding turns an engine's only embedding into that of /api/embeddings; nil engine is an empty one.
func (f *ResponseWriter) Embedding(engine []byte) ([]byte, error) {
	list, _, err := vectors(engine)
	if err != nil {
		return nil, err
	}
	if len(list) != 1 {
		list = []json.RawMessage{json.RawMessage("[]")}
	}
	return json.Marshal(map[string]json.RawMessage{"embedding": list[0]})
}

// vectors are the embeddings of a response and the tokens that it took; nil engine has none.
func vectors(engine []byte) ([]json.RawMessage, int64, error) {
	if engine == nil {
		return []json.RawMessage{}, 0, nil
	}
	return completion.Vectors(engine)
}
