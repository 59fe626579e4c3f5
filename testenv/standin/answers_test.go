package main

import (
	"net/http"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestTokensRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := string(rapid.SliceOf(rapid.Byte()).Draw(t, "text"))
		tokens := tokenize(text)
		if got := detokenize(tokens); got != text || len(tokens) != countTokens(text) {
			t.Fatalf("%q → %v (%d counted) → %q", text, tokens, countTokens(text), got)
		}
	})
}

// A message dictates a response or a call, which ends with the tool's result; without that tool it means nothing.
func TestDictated(t *testing.T) {
	_, url := startEngine(t, "--tokens 5")
	const call, tool, result = `"<<call write {\"path\":\"a\",\"n\":{}}>>"`, `{"type":"function","function":{"name":"write"}}`, `{"role":"tool","tool_call_id":"call_standin","content":"ok"}`
	for name, c := range map[string]struct{ path, body, want string }{
		"say":         {"chat/completions", `{"messages":[{"role":"user","content":"Do. <<say a\nb>> Now."}]}`, `"content":"a\nb"`},
		"parts":       {"chat/completions", `{"messages":[{"role":"user","content":[{"type":"text","text":"<<say it>>"}]}]}`, `"content":"it"`},
		"call":        {"chat/completions", `{"messages":[{"role":"user","content":` + call + `}],"tools":[` + tool + `]}`, `"function":{"arguments":"{\"path\":\"a\",\"n\":{}}","name":"write"}`},
		"stream":      {"chat/completions", `{"stream":true,"messages":[{"role":"user","content":` + call + `}],"tools":[` + tool + `]}`, `"finish_reason":"tool_calls"`},
		"result":      {"chat/completions", `{"messages":[{"role":"user","content":` + call + `},` + result + `],"tools":[` + tool + `]}`, `"content":"Done."`},
		"not offered": {"chat/completions", `{"messages":[{"role":"user","content":` + call + `}]}`, `"completion_tokens":5`},
		"assistant's": {"chat/completions", `{"messages":[{"role":"assistant","content":"<<say it>>"}]}`, `"completion_tokens":5`},
		"messages":    {"messages", `{"messages":[{"role":"user","content":"<<say it>>"}]}`, `"content":[{"text":"it","type":"text"}]`},
		"tool_use":    {"messages", `{"messages":[{"role":"user","content":` + call + `}],"tools":[{"name":"write"}]}`, `{"id":"toolu_standin","input":{"path":"a","n":{}},"name":"write","type":"tool_use"}`},
		"events":      {"messages", `{"stream":true,"messages":[{"role":"user","content":` + call + `}],"tools":[{"name":"write"}]}`, "event: content_block_delta\ndata: " + `{"delta":{"partial_json":"{\"path\"`},
		"tool_result": {"messages", `{"messages":[{"role":"user","content":` + call + `},{"role":"user","content":[{"type":"tool_result"}]}],"tools":[{"name":"write"}]}`, `"text":"Done."`},
		"words":       {"messages", `{"max_tokens":2,"messages":[{"role":"user","content":"hi"}]}`, `"stop_reason":"max_tokens"`},
		"count":       {"messages/count_tokens", `{"messages":[]}`, `{"input_tokens":`},
	} {
		t.Run(name, func(t *testing.T) {
			if status, _, body := post(t, url+"/v1/"+c.path, c.body); status != http.StatusOK || !strings.Contains(body, c.want) {
				t.Errorf("%d %s\nwant %s", status, body, c.want)
			}
		})
	}
}
