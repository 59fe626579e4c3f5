package cohere

import (
	"encoding/json"
	"fmt"
	"slices"

	"reveille/gateway/api"
	"reveille/gateway/completion"
	"reveille/infra/jsonscan"
)

// finishReasons are Cohere's names for why an engine ended.
var finishReasons = map[string]string{"length": "MAX_TOKENS", "tool_calls": "TOOL_CALL"}

func finishReason(engine string, calls bool) string {
	switch reason := finishReasons[engine]; {
	case reason != "":
		return reason
	case calls:
		return "TOOL_CALL"
	}
	return "COMPLETE"
}

type answer struct {
	ID     string        `json:"id"`
	Reason string        `json:"finish_reason"`
	Said   answerMessage `json:"message"`
	Usage  usage         `json:"usage"`
}

type answerMessage struct {
	Role      string     `json:"role"`
	Content   []content  `json:"content"`
	ToolCalls []toolCall `json:"tool_calls,omitempty"`
}

type toolCall struct {
	ID       string              `json:"id"`
	Type     string              `json:"type"`
	Function completion.Function `json:"function"`
}

// callOf is a call of an answer, the nth of its items.
func callOf(c completion.Call, answer string, n int) toolCall {
	if c.ID == "" {
		c.ID = fmt.Sprintf("call_%s%d", answer, n)
	}
	return toolCall{c.ID, "function", c.Function}
}

// content is an item of an answer; of its texts it has the one that its type names.
type content struct {
	Type     string  `json:"type,omitempty"`
	Text     *string `json:"text,omitempty"`
	Thinking *string `json:"thinking,omitempty"`
}

// item makes content: a whole item, or a piece of one, which has no type.
func item(thought, whole bool, text string) content {
	c := content{Type: "text", Text: &text}
	if thought {
		c = content{Type: "thinking", Thinking: &text}
	}
	if !whole {
		c.Type = ""
	}
	return c
}

type usage struct {
	Billed tokens `json:"billed_units"`
	Tokens tokens `json:"tokens"`
}

type tokens struct {
	Input  int64 `json:"input_tokens"`
	Output int64 `json:"output_tokens"`
}

func usageOf(u *completion.Usage) usage {
	if u == nil {
		return usage{}
	}
	t := tokens{u.Prompt, u.Output}
	return usage{t, t}
}

// Answer turns an engine's whole answer into the one with an id. The error is completion.ErrAnswer.
func Answer(engine []byte, id string) ([]byte, error) {
	c, err := completion.Parse(engine)
	if err != nil {
		return nil, err
	}
	choice := c.Choices[0]
	said := choice.Message
	a := answer{ID: id, Reason: finishReason(choice.Reason, len(said.ToolCalls) > 0), Said: answerMessage{Role: "assistant", Content: []content{}}, Usage: usageOf(c.Usage)}
	if text := said.Thought(); text != "" {
		a.Said.Content = append(a.Said.Content, item(true, true, text))
	}
	if said.Content != "" {
		a.Said.Content = append(a.Said.Content, item(false, true, said.Content))
	}
	for i, call := range said.ToolCalls {
		a.Said.ToolCalls = append(a.Said.ToolCalls, callOf(call, id, i))
	}
	return jsonscan.Marshal(a)
}

// events writes a stream. One item of text or thoughts is open at a time; calls stay open to the end, for an engine may write
// several side by side.
type events struct {
	id     string
	begun  bool
	open   string // type of the item that has not ended: thinking or text; "" for none
	items  int    // begun so far; an open item of text or thoughts is the last of them
	calls  []call // in the order of their items
	reason string
	usage  *completion.Usage
}

// call is an open call: the engine's index, and that of its item.
type call struct{ engine, item int }

// NewStream makes a stream that answers with the events of a chat.
func NewStream(id string) *completion.Stream { return completion.NewStream(&events{id: id}) }

type object = map[string]any

const noIndex = -1

// event appends an event with its change, nil for none.
func (s *events) event(dst []byte, kind string, index int, change object) []byte {
	e := object{"type": kind}
	if index != noIndex {
		e["index"] = index
	}
	if change != nil {
		e["delta"] = change
	}
	if kind == "message-start" {
		e["id"] = s.id
	}
	data, err := jsonscan.Marshal(e)
	if err != nil {
		return dst // never: texts and numbers
	}
	return api.AppendEvent(dst, kind, data)
}

// delta is a change of one member of the message.
func delta(member string, value any) object { return object{"message": object{member: value}} }

// Comment passes a comment on.
func (s *events) Comment(dst, text []byte) []byte { return append(append(dst, text...), "\n\n"...) }

// Event appends what an event of the completion adds.
func (s *events) Event(dst []byte, c *completion.Completion) []byte {
	dst = s.begin(dst)
	if c.Usage != nil {
		s.usage = c.Usage
	}
	if len(c.Choices) == 0 {
		return dst
	}
	choice := &c.Choices[0]
	dst = s.say(dst, "thinking", choice.Delta.Thought())
	dst = s.say(dst, "text", choice.Delta.Content)
	for _, c := range choice.Delta.ToolCalls {
		dst = s.call(dst, c)
	}
	if choice.Reason != "" {
		s.reason = choice.Reason
	}
	return dst
}

func (s *events) begin(dst []byte) []byte {
	if s.begun {
		return dst
	}
	s.begun = true
	return s.event(dst, "message-start", noIndex, object{"message": object{"role": "assistant", "content": []string{}, "tool_plan": "", "tool_calls": []string{}, "citations": []string{}}})
}

// say adds text to an item of a type.
func (s *events) say(dst []byte, kind, text string) []byte {
	if text == "" {
		return dst
	}
	if s.open != kind {
		dst = s.close(dst)
		s.open = kind
		s.items++
		dst = s.event(dst, "content-start", s.items-1, delta("content", item(kind == "thinking", true, "")))
	}
	return s.event(dst, "content-delta", s.items-1, delta("content", item(kind == "thinking", false, text)))
}

// close ends the open item of text or thoughts.
func (s *events) close(dst []byte) []byte {
	if s.open == "" {
		return dst
	}
	s.open = ""
	return s.event(dst, "content-end", s.items-1, nil)
}

// call takes in a piece of a call.
func (s *events) call(dst []byte, c completion.Call) []byte {
	at := slices.IndexFunc(s.calls, func(o call) bool { return o.engine == c.Index })
	if at < 0 {
		dst = s.close(dst)
		at = len(s.calls)
		s.calls = append(s.calls, call{c.Index, s.items})
		start := callOf(c, s.id, s.items)
		start.Function.Arguments = ""
		dst = s.event(dst, "tool-call-start", s.items, delta("tool_calls", start))
		s.items++
	}
	if c.Function.Arguments == "" {
		return dst
	}
	return s.event(dst, "tool-call-delta", s.calls[at].item, delta("tool_calls", object{"function": object{"arguments": c.Function.Arguments}}))
}

// finish ends all items.
func (s *events) finish(dst []byte) []byte {
	dst = s.close(dst)
	for _, c := range s.calls {
		dst = s.event(dst, "tool-call-end", c.item, nil)
	}
	return dst
}

// End appends the end of the answer.
func (s *events) End(dst []byte) []byte {
	if !s.begun {
		return s.Fail(dst, nil)
	}
	dst = s.finish(dst)
	return s.event(dst, "message-end", noIndex, object{"finish_reason": finishReason(s.reason, len(s.calls) > 0), "usage": usageOf(s.usage)})
}

// Fail appends the end of an answer that broke off.
func (s *events) Fail(dst, data []byte) []byte {
	var told struct{ Error struct{ Message string } }
	if json.Unmarshal(data, &told) != nil || told.Error.Message == "" {
		told.Error.Message = "The model's answer could not be understood."
	}
	dst = s.finish(s.begin(dst))
	return s.event(dst, "message-end", noIndex, object{"finish_reason": "ERROR", "error": told.Error.Message, "usage": usageOf(s.usage)})
}
