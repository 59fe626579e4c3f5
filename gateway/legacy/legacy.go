// Package legacy gives llama-server's text completions the log-probabilities of OpenAI's: a number in the request, and
// lists by token in the response. It does no I/O.
package legacy

import (
	"encoding/json"
	"errors"
	"strconv"
	"unicode/utf8"

	"reveille/gateway/api"
	"reveille/gateway/completion"
	"reveille/infra/jsonscan"
)

// Request is a request with log-probabilities, translated.
type Request struct {
	Body []byte // for the engine

	alternatives int         // of each token
	offsets      map[int]int // characters of each choice so far
}

// Translate reads a request. It returns nil for one whose response needs no translation.
func Translate(body []byte) (*Request, error) {
	var v [3]jsonscan.Value
	if err := jsonscan.Scan(body, []string{"logprobs", "echo", "suffix"}, v[:]); err != nil {
		return nil, err
	}
	logprobs, echo, suffix := v[0], v[1], v[2]
	switch {
	case echo.Bool():
		return nil, api.New(api.UnsupportedParameter, "The model's engine does not repeat prompts; leave 'echo' out.").WithParam("echo")
	case !suffix.Empty():
		return nil, api.New(api.UnsupportedParameter, "The model's engine takes no suffix here; leave 'suffix' out.").WithParam("suffix")
	case logprobs.Kind != jsonscan.Number:
		return nil, nil
	}
	n, ok := logprobs.Int()
	if !ok || n < 0 {
		return nil, api.New(api.InvalidType, "'logprobs' must be a whole number of at least 0.").WithParam("logprobs")
	}
	// The engine gives none for 0, where the chosen tokens' are meant.
	body, err := jsonscan.Set(body, "logprobs", strconv.AppendInt(nil, max(1, n), 10))
	return &Request{Body: body, alternatives: int(n), offsets: map[int]int{}}, err
}

type object = map[string]json.RawMessage

// Response returns the client's response for the engine's, which may be an event of a stream. Its error is
// [completion.ErrInvalidResponse].
func (r *Request) Response(engine []byte) ([]byte, error) {
	var doc object
	var choices []object
	if json.Unmarshal(engine, &doc) != nil || json.Unmarshal(doc["choices"], &choices) != nil {
		return nil, completion.ErrInvalidResponse
	}
	for _, c := range choices {
		var index int
		var engine *struct {
			Content []token `json:"content"`
		}
		if errors.Join(json.Unmarshal(c["index"], &index), json.Unmarshal(c["logprobs"], &engine)) != nil || engine == nil {
			continue // the last event of a stream has none
		}
		c["logprobs"], _ = jsonscan.Marshal(r.logprobs(index, engine.Content))
	}
	doc["choices"], _ = jsonscan.Marshal(choices)
	return jsonscan.Marshal(doc)
}

// token is a token of a response as llama-server reports it.
type token struct {
	Token   string  `json:"token"`
	Logprob float64 `json:"logprob"`
	Top     []token `json:"top_logprobs,omitempty"`
}

// logprobs is the legacy form.
type logprobs struct {
	Tokens   []string             `json:"tokens"`
	Logprobs []float64            `json:"token_logprobs"`
	Top      []map[string]float64 `json:"top_logprobs"` // null where no alternatives are asked for
	Offsets  []int                `json:"text_offset"`  // in the response, in characters
}

func (r *Request) logprobs(index int, tokens []token) logprobs {
	out := logprobs{Tokens: []string{}, Logprobs: []float64{}, Offsets: []int{}}
	if r.alternatives > 0 {
		out.Top = []map[string]float64{}
	}
	for _, t := range tokens {
		out.Tokens, out.Logprobs = append(out.Tokens, t.Token), append(out.Logprobs, t.Logprob)
		out.Offsets = append(out.Offsets, r.offsets[index])
		r.offsets[index] += utf8.RuneCountInString(t.Token)
		if r.alternatives == 0 {
			continue
		}
		top := map[string]float64{}
		for _, alternative := range t.Top {
			if _, known := top[alternative.Token]; !known { // the likeliest comes first
				top[alternative.Token] = alternative.Logprob
			}
		}
		out.Top = append(out.Top, top)
	}
	return out
}

// NewStream makes the stream of a request's response.
func NewStream(r *Request) *completion.Stream { return completion.NewStream(eventTranslator{r}) }

// eventTranslator writes the client's events.
type eventTranslator struct{ *Request }

// Comment passes a comment on.
func (e eventTranslator) Comment(dst, text []byte) []byte {
	return append(append(dst, text...), "\n\n"...)
}

// Event appends an event. One without a response, as llama-server sends before those to several prompts, says nothing.
func (e eventTranslator) Event(dst []byte, c *completion.Completion) []byte {
	text, err := e.Response(c.Raw)
	if err != nil {
		return dst
	}
	return api.AppendEvent(dst, "", text)
}

// End appends the mark of a complete response.
func (e eventTranslator) End(dst []byte) []byte { return api.AppendEvent(dst, "", []byte("[DONE]")) }

// Fail appends an error.
func (e eventTranslator) Fail(dst, data []byte) []byte {
	if data == nil {
		data = api.OpenAI.Body(api.InvalidEngineResponse(), "")
	}
	return api.AppendEvent(dst, "", data)
}
