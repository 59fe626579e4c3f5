package main

import (
	"encoding/json"
	"regexp"
	"strings"
)

// dictated is a response that a user's message spells out, so that clients which act on a model's responses (agents,
// editors) can be tried: "<<say TEXT>>" is answered with TEXT, and "<<call NAME {ARGUMENTS}>>" with a call of that tool
// if the request offers it. A tool's result that follows ends it.
type dictated struct {
	tool string // name; empty: it is text
	text string // or the tool's arguments, as JSON
}

var dictation = regexp.MustCompile(`(?s)<<(?:say (.*?)|call ([\w.-]+) (\{.*?\}))>>`)

// readDictated reads the messages of a chat in OpenAI's or Anthropic's form, and its tools in either.
func readDictated(messages []json.RawMessage, tools json.RawMessage) (d dictated, ok bool) {
	for _, raw := range messages {
		role, text, result := readMessage(raw)
		if m := dictation.FindStringSubmatch(text); m != nil && role == "user" {
			d, ok = dictated{tool: m[2], text: m[1] + m[3]}, true
		} else if result && d.tool != "" {
			d, ok = dictated{text: "Done."}, true
		}
	}
	if d.tool != "" && !offered(tools, d.tool) {
		return dictated{}, false
	}
	return d, ok
}

// readMessage is a message's role, its text, and whether it holds a tool's result.
func readMessage(raw json.RawMessage) (role, text string, result bool) {
	var m struct {
		Role    string          `json:"role"`
		Content json.RawMessage `json:"content"`
	}
	if json.Unmarshal(raw, &m) != nil {
		return "", "", false
	}
	if json.Unmarshal(m.Content, &text) == nil {
		return m.Role, text, m.Role == "tool"
	}
	var parts []struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	_ = json.Unmarshal(m.Content, &parts) // of another form, it has no text
	var b strings.Builder
	result = m.Role == "tool"
	for _, p := range parts {
		b.WriteString(p.Text)
		result = result || p.Type == "tool_result"
	}
	return m.Role, b.String(), result
}

func offered(tools json.RawMessage, name string) bool {
	var list []struct {
		Name     string `json:"name"`
		Function struct {
			Name string `json:"name"`
		} `json:"function"`
	}
	_ = json.Unmarshal(tools, &list) // of another form, it offers none
	for _, t := range list {
		if t.Name == name || t.Function.Name == name {
			return true
		}
	}
	return false
}

// callForm is chatForm for the call of a tool, whose arguments are the one token.
func callForm(tool string) form {
	calls := func(arguments string) []any {
		return []any{map[string]any{
			"index": 0, "id": "call_standin", "type": "function",
			"function": map[string]any{"name": tool, "arguments": arguments},
		}}
	}
	f := chatForm
	f.whole = func(t string) map[string]any {
		return map[string]any{"message": map[string]any{"role": "assistant", "content": nil, "tool_calls": calls(t)}}
	}
	f.delta = func(t string) map[string]any { return map[string]any{"delta": map[string]any{"tool_calls": calls(t)}} }
	return f
}
