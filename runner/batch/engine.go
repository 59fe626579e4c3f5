package batch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"reveille/infra/recipe"
	"reveille/infra/relay"
)

// An Engine computes embeddings. It must be safe for concurrent use, and return soon after ctx ends.
type Engine interface {
	// Embed makes one call with body, an OpenAI embeddings request, and appends the body of the response to dst. An
	// error means that there is no response; a *relay.Error without Sent means that the call did not reach the engine.
	Embed(ctx context.Context, body, dst []byte) (status int, response []byte, err error)
	// Tokens returns the tokens of a text, with or without the special ones that the model adds.
	Tokens(ctx context.Context, text string, special bool) ([]int64, error)
}

// neverSent reports whether a call that failed with err did not reach the engine.
func neverSent(err error) bool {
	var re *relay.Error
	return errors.As(err, &re) && !re.Sent
}

// HTTP is an engine behind its own HTTP interface.
type HTTP struct {
	Client  *relay.Client
	Key     string        // bearer token; empty means none
	Model   string        // the engine's name for the model
	Family  string        // of its recipe
	Timeout time.Duration // for the first byte of a response and between its parts; 0 means no limit
}

var _ Engine = (*HTTP)(nil)

// Tokenizes reports whether the engines of a recipe family have an API for tokenizing text that HTTP knows. Requests to
// others cannot be batched.
func Tokenizes(family string) bool {
	return slices.Contains([]string{recipe.LlamaCpp, recipe.Standin, recipe.VLLM, recipe.TEI}, family)
}

const (
	maxResponse      = 1 << 30  // bytes
	maxSmallResponse = 64 << 20 // bytes
	smallCallTimeout = 30 * time.Second
)

// Embed makes one call.
func (e *HTTP) Embed(ctx context.Context, body, dst []byte) (int, []byte, error) {
	return e.post(ctx, "/v1/embeddings", body, dst, e.Timeout, maxResponse)
}

// Tokens asks the engine's tokenizer.
func (e *HTTP) Tokens(ctx context.Context, text string, special bool) ([]int64, error) {
	var q any
	switch e.Family {
	case recipe.VLLM:
		q = map[string]any{"model": e.Model, "prompt": text, "add_special_tokens": special}
	case recipe.TEI:
		q = map[string]any{"inputs": text, "add_special_tokens": special}
	default:
		q = map[string]any{"content": text, "add_special": special}
	}
	body, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	status, response, err := e.post(ctx, "/tokenize", body, nil, smallCallTimeout, maxSmallResponse)
	if err != nil {
		return nil, err
	}
	if status != 200 {
		return nil, &EngineError{Status: status, Body: response}
	}
	return e.tokens(response)
}

// tokens reads the response of /tokenize.
func (e *HTTP) tokens(response []byte) (out []int64, err error) {
	if e.Family == recipe.TEI {
		var a [][]struct{ ID int64 }
		if err = json.Unmarshal(response, &a); err == nil && len(a) == 1 {
			for _, token := range a[0] {
				out = append(out, token.ID)
			}
		}
	} else {
		var a struct{ Tokens []int64 }
		err = json.Unmarshal(response, &a)
		out = a.Tokens
	}
	if err != nil {
		return nil, fmt.Errorf("tokenize: %w", err)
	}
	return out, nil
}

func (e *HTTP) post(ctx context.Context, path string, body, dst []byte, wait time.Duration, limit int) (int, []byte, error) {
	req := relay.Request{Method: "POST", Path: []byte(path), Body: body, FirstByte: wait, Silence: wait, Fields: make([]relay.Field, 0, 2)}
	return e.Client.Fetch(ctx, &req, e.Key, dst, limit)
}
