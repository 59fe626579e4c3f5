// Package legacy adds to llama-server's text completions what OpenAI's have: log-probabilities in their own form, the prompt
// before the answer (echo), and a suffix, for which llama-server has a path of its own. It does no I/O.
package legacy

import (
	"cmp"
	"encoding/json"
	"errors"

	"reveille/gateway/api"
	"reveille/gateway/completion"
	"reveille/infra/jsonscan"
)

// Paths of the engine.
const (
	Path       = "/v1/completions"
	InfillPath = "/infill"
)

// Request is a request for a completion, translated.
type Request struct {
	Body []byte // for the engine
	Path string // at the engine
	// Plain says that the engine's answer is the client's: the fields below do not matter.
	Plain bool

	ID      string // of the answer to a suffix, as Model and Created, set by the caller
	Model   string
	Created int64

	prompts []string // before the answers; nil without echo
	each    int      // answers to each prompt
	probs   bool
	most    int // alternatives of each token
	offsets map[int]int
	echoed  map[int]bool
}

var keys = []string{"prompt", "suffix", "echo", "logprobs", "n", "max_tokens", "n_cmpl"}

// Translate reads a request whose fields were checked (gateway/bodycheck). body is changed in place.
func Translate(body []byte) (*Request, error) {
	var v [7]jsonscan.Value
	if err := jsonscan.Scan(body, keys, v[:]); err != nil {
		return nil, err
	}
	prompt, suffix, echo, logprobs, n, limit := v[0], v[1], v[2], v[3], v[4], v[5]
	if !n.Set() {
		n = v[6] // llama-server's name
	}
	fills := suffix.Set() && !suffix.Empty()
	r := &Request{Body: body, Path: Path, probs: logprobs.Kind == jsonscan.Number, each: 1, offsets: map[int]int{}, echoed: map[int]bool{}}
	if r.Plain = !fills && !echo.Bool() && !r.probs; r.Plain {
		return r, nil
	}
	if n.Set() && json.Unmarshal(n.Raw, &r.each) != nil {
		return nil, api.New(api.InvalidType, "'n' must be a whole number.").WithParam("n")
	}
	if echo.Bool() {
		if r.probs {
			return nil, api.New(api.UnsupportedParameter, "The model's engine gives no log-probabilities of a prompt; leave 'echo' or 'logprobs' out.").WithParam("echo")
		}
		var one string
		switch {
		case json.Unmarshal(prompt.Raw, &one) == nil:
			r.prompts = []string{one}
		case json.Unmarshal(prompt.Raw, &r.prompts) != nil:
			return nil, api.New(api.UnsupportedParameter, "'echo' needs prompts that are texts.").WithParam("echo")
		}
	}
	edits := []edit{}
	if r.probs {
		if json.Unmarshal(logprobs.Raw, &r.most) != nil {
			return nil, api.New(api.InvalidType, "'logprobs' must be a whole number.").WithParam("logprobs")
		}
		// The engine gives none for 0, where the chosen tokens' are meant.
		asked, _ := json.Marshal(max(1, r.most))
		edits = append(edits, edit{"logprobs", asked})
		if fills {
			edits = append(edits, edit{"n_probs", asked})
		}
	}
	if fills {
		if prompt.Kind != jsonscan.String || r.each != 1 {
			return nil, api.New(api.UnsupportedParameter, "'suffix' needs one prompt that is a text, and one answer.").WithParam("suffix")
		}
		r.Path = InfillPath
		edits = append(edits, edit{"input_prefix", prompt.Raw}, edit{"input_suffix", suffix.Raw}, edit{"prompt", nil}, edit{"suffix", nil})
		if limit.Set() {
			edits = append(edits, edit{"n_predict", limit.Raw})
		}
	}
	var err error
	for _, e := range edits {
		if r.Body, err = e.apply(r.Body); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// An edit sets a member of a body, or removes it where value is nil.
type edit struct {
	key   string
	value []byte
}

func (e edit) apply(body []byte) ([]byte, error) {
	if e.value == nil {
		return jsonscan.Remove(body, e.key)
	}
	return jsonscan.Set(body, e.key, append([]byte(nil), e.value...))
}

type object = map[string]json.RawMessage

// Answer is the client's answer for the engine's, which may be an event of a stream. Its error is [completion.ErrAnswer].
func (r *Request) Answer(engine []byte) ([]byte, error) {
	var doc object
	if err := json.Unmarshal(engine, &doc); err != nil || doc == nil {
		return nil, errors.Join(completion.ErrAnswer, err)
	}
	if r.Path == InfillPath {
		var err error
		if doc, err = r.filled(engine); err != nil {
			return nil, err
		}
	}
	var choices []object
	if json.Unmarshal(doc["choices"], &choices) != nil {
		return nil, completion.ErrAnswer
	}
	for _, c := range choices {
		if err := r.choice(c); err != nil {
			return nil, errors.Join(completion.ErrAnswer, err)
		}
	}
	doc["choices"] = raw(choices)
	return jsonscan.Marshal(doc)
}

// choice turns a choice of the engine into the client's.
func (r *Request) choice(c object) error {
	var index int
	var text string
	if err := errors.Join(json.Unmarshal(c["index"], &index), json.Unmarshal(c["text"], &text)); err != nil {
		return err
	}
	if at := index / max(1, r.each); at >= 0 && at < len(r.prompts) && !r.echoed[index] {
		r.echoed[index] = true
		c["text"] = raw(r.prompts[at] + text)
	}
	if !r.probs {
		return nil
	}
	var in *struct {
		Content []token `json:"content"`
	}
	if p := c["logprobs"]; p == nil || json.Unmarshal(p, &in) != nil || in == nil {
		return nil
	}
	c["logprobs"] = raw(r.logprobs(index, in.Content))
	return nil
}

// token is a token of an answer as llama-server reports it.
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
	Offsets  []int                `json:"text_offset"`  // in the answer, in characters
}

func (r *Request) logprobs(index int, tokens []token) logprobs {
	out := logprobs{Tokens: []string{}, Logprobs: []float64{}, Offsets: []int{}}
	if r.most > 0 {
		out.Top = []map[string]float64{}
	}
	for _, t := range tokens {
		out.Tokens, out.Logprobs = append(out.Tokens, t.Token), append(out.Logprobs, t.Logprob)
		out.Offsets = append(out.Offsets, r.offsets[index])
		r.offsets[index] += len([]rune(t.Token))
		if r.most == 0 {
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

// filled is the completion for an answer to a suffix.
func (r *Request) filled(engine []byte) (object, error) {
	var in struct {
		Content *string         `json:"content"`
		Stop    bool            `json:"stop"`
		Why     string          `json:"stop_type"`
		Read    int             `json:"tokens_evaluated"`
		Wrote   int             `json:"tokens_predicted"`
		Timings json.RawMessage `json:"timings"`
		Probs   []token         `json:"completion_probabilities"`
	}
	if err := json.Unmarshal(engine, &in); err != nil || in.Content == nil {
		return nil, errors.Join(completion.ErrAnswer, err)
	}
	choice := map[string]any{"index": 0, "text": *in.Content, "logprobs": nil, "finish_reason": nil}
	if len(in.Probs) > 0 {
		choice["logprobs"] = map[string]any{"content": in.Probs}
	}
	doc := object{"id": raw("cmpl-" + r.ID), "object": raw("text_completion"), "created": raw(r.Created), "model": raw(r.Model)}
	if in.Stop {
		choice["finish_reason"] = cmp.Or(map[string]string{"limit": "length"}[in.Why], "stop")
		doc["usage"] = raw(map[string]int{"prompt_tokens": in.Read, "completion_tokens": in.Wrote, "total_tokens": in.Read + in.Wrote})
		if in.Timings != nil {
			doc["timings"] = in.Timings
		}
	}
	doc["choices"] = raw([]any{choice})
	return doc, nil
}

// raw is the JSON of a value that always has one.
func raw(v any) json.RawMessage {
	text, _ := jsonscan.Marshal(v)
	return text
}
