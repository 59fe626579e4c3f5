package responses

import (
	"encoding/json"
	"errors"
	"time"

	"reveille/gateway/completion"
	"reveille/infra/jsonscan"
)

// A ResponseWriter encodes the response to a request.
type ResponseWriter struct {
	ID    string // unlike that of any other response
	Model string
	Began time.Time
	Now   func() time.Time
	Echo  Echo // of the request

	Previous string // id of the response that the request continues, "" for none
	// Keep stores the response, given with its output, when the engine has ended; false: it is not stored. Nil: it is
	// not to be stored.
	Keep func(response, output []byte) bool
}

// ResponseID is the id of the response.
func (f *ResponseWriter) ResponseID() string { return "resp_" + f.ID }

// Response turns an engine's whole response into a response. The error is completion.ErrInvalidResponse.
func (f *ResponseWriter) Response(engine []byte) ([]byte, error) {
	c, err := completion.Parse(engine)
	if err != nil {
		return nil, err
	}
	for i, calls := 0, c.Choices[0].MessageOrDelta().ToolCalls; i < len(calls); i++ {
		calls[i].Index = completion.Number(i)
	}
	s := streamWriter{form: f}
	s.Event(nil, c)
	s.finish(nil)
	return s.final(), nil
}

// InputTokens turns an engine's count of a chat's tokens into that of a request. The error is
// completion.ErrInvalidResponse.
func InputTokens(engine []byte) ([]byte, error) {
	var count struct {
		Object string `json:"object"`
		Input  *int64 `json:"input_tokens"`
	}
	if err := json.Unmarshal(engine, &count); err != nil || count.Input == nil {
		return nil, errors.Join(completion.ErrInvalidResponse, err)
	}
	count.Object = "response.input_tokens"
	return encode(count), nil
}

// status is the outcome of a response or an item.
type status string

const (
	inProgress status = "in_progress"
	completed  status = "completed"
	incomplete status = "incomplete"
	failed     status = "failed"
)

type response struct {
	ID         string        `json:"id"`
	Object     string        `json:"object"`
	CreatedAt  int64         `json:"created_at"`
	Completed  *int64        `json:"completed_at"`
	Status     status        `json:"status"`
	Background bool          `json:"background"`
	Error      *failure      `json:"error"`
	Incomplete *incompletion `json:"incomplete_details"`
	Model      string        `json:"model"`
	Output     []*item       `json:"output"`
	Previous   *string       `json:"previous_response_id"`
	Store      bool          `json:"store"`
	Tier       string        `json:"service_tier"`
	Usage      *usage        `json:"usage"`
}

type failure struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

type incompletion struct {
	Reason string `json:"reason"`
}

type usage struct {
	Input        int64 `json:"input_tokens"`
	InputDetails struct {
		Cached  int64 `json:"cached_tokens"`
		Written int64 `json:"cache_write_tokens"` // what engines keep is not counted
	} `json:"input_tokens_details"`
	Output        int64 `json:"output_tokens"`
	OutputDetails struct {
		Reasoning int64 `json:"reasoning_tokens"`
	} `json:"output_tokens_details"`
	Total int64 `json:"total_tokens"`
}

// item is an item of the output.
type item struct {
	ID      string `json:"id"`
	Type    string `json:"type"`
	Status  status `json:"status"`
	Role    string `json:"role,omitempty"`
	Content []part `json:"content,omitzero"`
	Summary []part `json:"summary,omitzero"`
	*call

	index int    // in the output
	text  []byte // content or arguments so far
}

// call is the part of an item that calls a function.
type call struct {
	ID        string `json:"call_id"`
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

type part struct {
	Type        string     `json:"type"`
	Text        string     `json:"text"`
	Annotations []struct{} `json:"annotations,omitzero"`
	Logprobs    []struct{} `json:"logprobs,omitzero"`
}

// final returns the response at its end. It is stored first, if required, so that the next request of a client that has
// read it can continue it.
func (s *streamWriter) final() []byte {
	body := s.response(s.status())
	if keep := s.form.Keep; keep != nil && !keep(body, encode(append([]*item{}, s.items...))) {
		s.form.Keep = nil
		body = s.response(s.status())
	}
	return body
}

// response is the response so far, in one line.
func (s *streamWriter) response(is status) []byte {
	r := response{
		ID: s.form.ResponseID(), Object: "response", CreatedAt: s.form.Began.Unix(), Status: is, Model: s.form.Model, Output: s.items, Tier: "default",
		Store: s.form.Keep != nil && is != failed,
	}
	if s.form.Previous != "" {
		r.Previous = &s.form.Previous
	}
	if r.Output == nil {
		r.Output = []*item{}
	}
	switch is {
	case completed:
		now := s.form.Now().Unix()
		r.Completed = &now
	case incomplete:
		r.Incomplete = &incompletion{s.incompleteReason()}
	case failed:
		r.Error = &s.failure
	}
	u := s.usage
	if u == nil && (is == completed || is == incomplete) {
		u = &completion.Usage{} // clients want one
	}
	if u != nil {
		r.Usage = &usage{Input: int64(u.Prompt), Output: int64(u.Output), Total: int64(u.Prompt + u.Output)}
		r.Usage.InputDetails.Cached = int64(u.PromptDetails.Cached)
		r.Usage.OutputDetails.Reasoning = int64(u.OutputDetails.Reasoning)
	}
	text := encode(r)
	if len(s.form.Echo) == 0 {
		return text
	}
	return append(append(text[:len(text)-1], ','), encode(s.form.Echo)[1:]...)
}

// encode writes v in one line, without a line end.
func encode(v any) []byte {
	text, err := jsonscan.Marshal(v)
	if err != nil {
		return []byte("{}") // never: texts, numbers and valid JSON
	}
	return text
}
