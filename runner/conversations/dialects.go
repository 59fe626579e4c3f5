package conversations

import (
	"bytes"
	"encoding/json"

	"reveille/infra/jsonscan"
)

// part is a part of a message in Anthropic's dialect, or an item of /v1/responses.
type part struct {
	Type, Text      string
	Role            string
	ID, Name        string
	CallID          string `json:"call_id"`
	ToolUseID       string `json:"tool_use_id"`
	Arguments       string
	Input           json.RawMessage
	Content, Output json.RawMessage
}

// chatOf translates a request on /v1/messages or /v1/responses to one on /v1/chat/completions, as llama-server does.
// Where it differs, the engine finds other tokens and computes them. It returns nil for what it cannot translate.
func chatOf(path string, body []byte) []byte {
	var q struct {
		System, Instructions, Input json.RawMessage
		Messages                    []part
		Tools                       []json.RawMessage
	}
	if json.Unmarshal(body, &q) != nil {
		return nil
	}
	var list []message
	if q.Input != nil {
		if q.Messages = partsOf(q.Input); q.Messages == nil {
			q.Messages = []part{{Role: "user", Content: q.Input}}
		}
	}
	if system := textOf(q.System) + textOf(q.Instructions); system != "" {
		list = append(list, message{Role: "system", Content: quote(system)})
	}
	for _, m := range q.Messages {
		switch m.Type {
		case "reasoning":
		case "function_call":
			list = append(list, message{Role: "assistant", Content: quote(""), Calls: []toolCall{m.call(m.CallID, m.Arguments)}})
		case "function_call_output":
			list = append(list, message{Role: "tool", Content: quote(textOf(m.Output)), CallID: m.CallID})
		default:
			messages, ok := m.messages()
			if !ok {
				return nil
			}
			list = append(list, messages...)
		}
	}
	out := map[string]any{"messages": list}
	if len(q.Tools) > 0 {
		tools := make([]any, len(q.Tools))
		for i, t := range q.Tools {
			tools[i] = map[string]any{"type": "function", "function": functionOf(path, t)}
		}
		out["tools"] = tools
	}
	return quote(out)
}

// messages returns the messages that one with parts stands for; false if it has other parts than text and tool calls.
func (m *part) messages() (out []message, ok bool) {
	parts := partsOf(m.Content)
	if parts == nil {
		return []message{{Role: m.Role, Content: quote(textOf(m.Content))}}, len(m.Content) > 0
	}
	var texts []map[string]string
	var results []message
	msg := message{Role: m.Role, Content: quote("")}
	for _, p := range parts {
		switch p.Type {
		case "text", "input_text", "output_text":
			texts = append(texts, map[string]string{"type": "text", "text": p.Text})
			msg.Content = quote(texts)
		case "tool_use":
			msg.Calls = append(msg.Calls, p.call(p.ID, compact(string(p.Input))))
		case "tool_result":
			results = append(results, message{Role: "tool", Content: quote(textOf(p.Content)), CallID: p.ToolUseID})
		case "thinking", "redacted_thinking":
		default:
			return nil, false
		}
	}
	if len(texts)+len(msg.Calls) > 0 {
		out = append(out, msg)
	}
	return append(out, results...), true
}

func (m *part) call(id, arguments string) (c toolCall) {
	c.ID, c.Type, c.Function.Name, c.Function.Arguments = id, "function", m.Name, arguments
	return c
}

// functionOf returns a tool as /v1/chat/completions has it.
func functionOf(path string, tool json.RawMessage) any {
	if path == "/responses" {
		f, _ := jsonscan.Remove(bytes.Clone(tool), "type") // a valid object
		return json.RawMessage(f)
	}
	var t struct {
		Name        string          `json:"name"`
		Description string          `json:"description"`
		InputSchema json.RawMessage `json:"input_schema"`
	}
	t.InputSchema = json.RawMessage("{}")
	_ = json.Unmarshal(tool, &t) // what is missing stays empty
	return struct {
		Name        string          `json:"name"`
		Description string          `json:"description"`
		Parameters  json.RawMessage `json:"parameters"`
	}{t.Name, t.Description, t.InputSchema}
}

// partsOf returns a list of parts, nil if it is none.
func partsOf(text json.RawMessage) (parts []part) {
	_ = json.Unmarshal(text, &parts)
	return parts
}

// textOf returns a text, or those of a list of parts.
func textOf(text json.RawMessage) (out string) {
	if json.Unmarshal(text, &out) == nil {
		return out
	}
	for _, p := range partsOf(text) {
		out += p.Text
	}
	return out
}

// quote returns the JSON of what always marshals.
func quote(v any) json.RawMessage {
	text, _ := jsonscan.Marshal(v)
	return text
}

// compact returns JSON without blanks, "{}" for what is none.
func compact(text string) string {
	var b bytes.Buffer
	if json.Compact(&b, []byte(text)) != nil {
		return "{}"
	}
	return b.String()
}

// addPart adds a part of an answer in Anthropic's dialect, or an item of /v1/responses.
func (a *answer) addPart(p *part) {
	switch p.Type {
	case "text", "output_text":
		a.content = append(a.content, p.Text...)
	case "function_call":
		a.addCall(p.call(p.CallID, p.Arguments))
	case "tool_use":
		arguments := compact(string(p.Input))
		if a.events && arguments == "{}" { // they follow
			arguments = ""
		}
		a.addCall(p.call(p.ID, arguments))
	case "message":
		for _, inner := range partsOf(p.Content) {
			a.addPart(&inner)
		}
	}
}
