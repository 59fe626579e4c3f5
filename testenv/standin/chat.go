package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// generateRequest holds the fields of chat and completion requests that matter here.
type generateRequest struct {
	Messages            json.RawMessage `json:"messages"`
	Tools               json.RawMessage `json:"tools"`
	Prompt              json.RawMessage `json:"prompt"`
	Stream              bool            `json:"stream"`
	MaxTokens           *int            `json:"max_tokens"`
	MaxCompletionTokens *int            `json:"max_completion_tokens"`
	StreamOptions       struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
}

// length is how many tokens to generate, and why generation ends there.
func (q generateRequest) length(natural int) (n int, finish string) {
	for _, limit := range []*int{q.MaxCompletionTokens, q.MaxTokens} {
		if limit != nil && *limit >= 0 && *limit < natural {
			return *limit, "length"
		}
	}
	return natural, "stop"
}

// chat is POST /v1/chat/completions.
func (c *call) chat() {
	var q generateRequest
	if !c.decode(&q) {
		return
	}
	var messages []json.RawMessage
	if json.Unmarshal(q.Messages, &messages) != nil || len(messages) == 0 {
		c.fail(http.StatusBadRequest, "invalid_request_error", "'messages' is required")
		return
	}
	n, finish := q.length(c.s.cfg.Tokens)
	tokens, f := words(string(q.Messages), n), chatForm
	if d, ok := readDictated(messages, q.Tools); ok {
		if tokens, finish = []string{d.text}, "stop"; d.tool != "" {
			f, finish = callForm(d.tool), "tool_calls"
		}
	}
	c.answer(q, string(q.Messages), f, tokens, finish)
}

// complete is POST /v1/completions.
func (c *call) complete() {
	var q generateRequest
	if !c.decode(&q) {
		return
	}
	var text string
	if json.Unmarshal(q.Prompt, &text) != nil {
		text = string(q.Prompt) // tokens or a list: its spelling is as good a seed
	}
	if text == "" {
		c.fail(http.StatusBadRequest, "invalid_request_error", "'prompt' is required")
		return
	}
	n, finish := q.length(c.s.cfg.Tokens)
	c.answer(q, text, textForm, words(text, n), finish)
}

// form is how one of the two dialects wraps generated text.
type form struct {
	prefix, object, chunkObject string

	whole func(text string) map[string]any // the choice of a plain answer
	first func() map[string]any            // the choice before any text; nil: none is sent
	delta func(text string) map[string]any // the choice that carries one token
	last  func() map[string]any            // the choice with the finish reason
}

var chatForm = form{
	prefix: "chatcmpl", object: "chat.completion", chunkObject: "chat.completion.chunk",
	whole: func(t string) map[string]any {
		return map[string]any{"message": map[string]any{"role": "assistant", "content": t}}
	},
	first: func() map[string]any {
		return map[string]any{"delta": map[string]any{"role": "assistant", "content": nil}}
	},
	delta: func(t string) map[string]any { return map[string]any{"delta": map[string]any{"content": t}} },
	last:  func() map[string]any { return map[string]any{"delta": map[string]any{}} },
}

var textForm = form{
	prefix: "cmpl", object: "text_completion", chunkObject: "text_completion",
	whole: func(t string) map[string]any { return map[string]any{"text": t} },
	delta: func(t string) map[string]any { return map[string]any{"text": t} },
	last:  func() map[string]any { return map[string]any{"text": ""} },
}

// answer generates tokens from prompt, as a stream or in one piece.
func (c *call) answer(q generateRequest, prompt string, f form, tokens []string, finish string) {
	n, in := len(tokens), countTokens(prompt)
	if !c.admit(in) {
		return
	}
	base := map[string]any{
		"id":      fmt.Sprintf("%s-%d", f.prefix, c.s.seq.Add(1)),
		"created": time.Now().Unix(),
		"model":   c.s.cfg.Alias,
	}
	usage := map[string]any{"prompt_tokens": in, "completion_tokens": n, "total_tokens": in + n}
	if q.Stream {
		c.streamAnswer(q, f, base, usage, tokens, finish)
		return
	}
	if !c.generate(n) {
		return
	}
	choice := f.whole(strings.Join(tokens, ""))
	c.reply(with(base, f.object, map[string]any{
		"choices": []any{finished(choice, finish)}, "usage": usage, "timings": c.timings(in, n),
	}))
}

// streamAnswer sends one event a token, then the finish reason, then the usage if asked.
func (c *call) streamAnswer(q generateRequest, f form, base, usage map[string]any, tokens []string, finish string) {
	st := &stream{c: c}
	send := func(choice map[string]any, reason any) bool {
		return st.send(with(base, f.chunkObject, map[string]any{"choices": []any{finished(choice, reason)}}))
	}
	if f.first != nil && !send(f.first(), nil) {
		return
	}
	for _, t := range tokens {
		if !c.generate(1) || !send(f.delta(t), nil) {
			return
		}
	}
	if !send(f.last(), finish) {
		return
	}
	if q.StreamOptions.IncludeUsage && !st.send(with(base, f.chunkObject, map[string]any{
		"choices": []any{}, "usage": usage, "timings": c.timings(usage["prompt_tokens"].(int), len(tokens)),
	})) {
		return
	}
	st.done()
}

// timings are llama-server's, in ms.
func (c *call) timings(in, out int) map[string]any {
	ms := float64(time.Since(c.begun).Microseconds()) / 1000
	return map[string]any{
		"prompt_n": in, "prompt_ms": 0, "predicted_n": out, "predicted_ms": ms,
		"predicted_per_second": float64(out) * 1000 / max(ms, 0.001),
	}
}

// finished adds what every choice has.
func finished(choice map[string]any, reason any) map[string]any {
	choice["index"], choice["finish_reason"] = 0, reason
	return choice
}

// with joins the common fields of a response and those of one of its objects.
func with(base map[string]any, object string, more map[string]any) map[string]any {
	out := map[string]any{"object": object}
	for _, m := range []map[string]any{base, more} {
		for k, v := range m {
			out[k] = v
		}
	}
	return out
}
