package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// messagesRequest holds the fields of Anthropic's requests that matter here.
type messagesRequest struct {
	Messages  []json.RawMessage `json:"messages"`
	Tools     json.RawMessage   `json:"tools"`
	MaxTokens *int              `json:"max_tokens"`
	Stream    bool              `json:"stream"`
}

// messages is POST /v1/messages, as llama-server has it.
func (c *call) messages() {
	var q messagesRequest
	if !c.decode(&q) {
		return
	}
	if len(q.Messages) == 0 {
		c.fail(http.StatusBadRequest, "invalid_request_error", "'messages' is required")
		return
	}
	in := countTokens(string(c.body))
	if !c.admit(in) {
		return
	}
	n, finish := generateRequest{MaxTokens: q.MaxTokens}.length(c.s.cfg.Tokens)
	tokens := words(string(c.body), n)
	reason := map[string]string{"stop": "end_turn", "length": "max_tokens"}[finish]
	block, delta := map[string]any{"type": "text", "text": ""}, func(t string) any { return map[string]any{"type": "text_delta", "text": t} }
	if d, ok := readDictated(q.Messages, q.Tools); ok {
		tokens = []string{d.text}
		if reason = "end_turn"; d.tool != "" {
			reason, block = "tool_use", map[string]any{"type": "tool_use", "id": "toolu_standin", "name": d.tool, "input": map[string]any{}}
			delta = func(t string) any { return map[string]any{"type": "input_json_delta", "partial_json": t} }
		}
	}
	message := map[string]any{
		"id": fmt.Sprintf("msg_%d", c.s.seq.Add(1)), "type": "message", "role": "assistant", "model": c.s.cfg.Alias,
		"content": []any{}, "stop_reason": nil, "stop_sequence": nil, "usage": map[string]any{"input_tokens": in, "output_tokens": 0},
	}
	if q.Stream {
		c.streamMessage(message, block, tokens, delta, reason)
		return
	}
	if !c.generate(len(tokens)) {
		return
	}
	if text := strings.Join(tokens, ""); block["type"] == "text" {
		block["text"] = text
	} else {
		block["input"] = json.RawMessage(text)
	}
	message["content"], message["stop_reason"] = []any{block}, reason
	message["usage"] = map[string]any{"input_tokens": in, "output_tokens": len(tokens)}
	c.reply(message)
}

// streamMessage sends the message with one block.
func (c *call) streamMessage(message, block map[string]any, tokens []string, delta func(string) any, reason string) {
	st := &stream{c: c, named: true}
	if !st.send(map[string]any{"type": "message_start", "message": message}) ||
		!st.send(map[string]any{"type": "content_block_start", "index": 0, "content_block": block}) {
		return
	}
	for _, t := range tokens {
		if !c.generate(1) || !st.send(map[string]any{"type": "content_block_delta", "index": 0, "delta": delta(t)}) {
			return
		}
	}
	_ = st.send(map[string]any{"type": "content_block_stop", "index": 0}) &&
		st.send(map[string]any{
			"type": "message_delta", "delta": map[string]any{"stop_reason": reason, "stop_sequence": nil},
			"usage": map[string]any{"output_tokens": len(tokens)},
		}) &&
		st.send(map[string]any{"type": "message_stop"})
}

// countMessages is POST /v1/messages/count_tokens.
func (c *call) countMessages() {
	c.reply(map[string]any{"input_tokens": countTokens(string(c.body))})
}
