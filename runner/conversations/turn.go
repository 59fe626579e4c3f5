package conversations

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"strings"
	"time"

	"reveille/infra/jsonscan"
	"reveille/runner/engineslots"
)

// maxTurn limits the bytes of a request, and of its answer, that are kept until the conversation is saved.
const maxTurn = 1 << 20

// Key identifies the messages that a conversation starts with. It only finds conversations: whether the tokens are the
// same, the engine finds out.
type Key [sha256.Size]byte

// place is where the store finds a conversation.
type place struct {
	id     Identity
	tenant engineslots.Tenant
	key    Key
}

// Turn is a chat request and its answer. It lives until the conversation is saved or goes on. Its methods do nothing on
// nil, and are called by one goroutine at a time.
type Turn struct {
	e      *Engine
	tenant engineslots.Tenant
	slot   int // where the request runs; engineslots.Any: the engine chooses
	prompt engineslots.Prompt
	body   []byte
	list   []byte // the messages in body
	keys   []Key  // of the messages up to each of them
	answer answer
	key    Key // of the messages and the answer
	ended  time.Time
	goesOn bool // a later turn continues the conversation; guarded by chats.mu
}

// message is what counts of a message for its Key.
type message struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
	Calls   []toolCall      `json:"tool_calls"`
	CallID  string          `json:"tool_call_id"`
}

type toolCall struct {
	Index    int    `json:"index"`
	ID       string `json:"id"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

// next returns the key of the messages with this key and one more.
func (k Key) next(m *message) (out Key) {
	var text string
	var parts []struct {
		Text *string `json:"text"`
	}
	switch {
	case len(m.Content) == 0 || json.Unmarshal(m.Content, &text) == nil: // null leaves it empty
	case json.Unmarshal(m.Content, &parts) == nil:
		for _, p := range parts {
			if p.Text == nil {
				text = string(m.Content)
				break
			}
			text += *p.Text
		}
	default:
		text = string(m.Content)
	}
	b, _ := json.Marshal([]any{m.Role, strings.TrimSpace(text), m.CallID}) // strings always marshal
	h := sha256.New()
	h.Write(k[:])
	h.Write(b)
	for _, c := range m.Calls {
		b, _ = json.Marshal([]string{c.ID, c.Function.Name, c.Function.Arguments})
		h.Write(b)
	}
	h.Sum(out[:0])
	return out
}

// newTurn reads the body of a chat request. It returns nil if the conversation cannot be found again.
func newTurn(body []byte) *Turn {
	if len(body) > maxTurn {
		return nil
	}
	t := &Turn{body: bytes.Clone(body)} // the caller's goes with its request
	var v [6]jsonscan.Value
	names := []string{"messages", "tools", "chat_template_kwargs", "n", "cache_prompt", "add_generation_prompt"}
	if jsonscan.Scan(t.body, names, v[:]) != nil {
		return nil
	}
	isDefault := func(v jsonscan.Value, text string) bool { return !v.Set() || string(v.Raw) == text }
	if !isDefault(v[3], "1") || !isDefault(v[4], "true") || !isDefault(v[5], "true") {
		return nil
	}
	var messages []message
	if json.Unmarshal(v[0].Raw, &messages) != nil || len(messages) == 0 {
		return nil
	}
	t.list = v[0].Raw
	key := Key(sha256.Sum256(bytes.Join([][]byte{v[1].Raw, v[2].Raw}, []byte{0})))
	for i := range messages {
		key = key.next(&messages[i])
		t.keys = append(t.keys, key)
	}
	return t
}

// continued returns the body of a request that goes on with text after the answer.
func (t *Turn) continued(text string) ([]byte, error) {
	m := t.answer.message()
	answer := map[string]any{"role": m.Role, "content": m.Content}
	next := map[string]any{"role": "user", "content": text}
	if len(m.Calls) > 0 {
		calls := make([]any, len(m.Calls))
		for i, c := range m.Calls {
			calls[i] = map[string]any{"id": c.ID, "type": "function", "function": c.Function}
		}
		answer["tool_calls"] = calls
		next = map[string]any{"role": "tool", "tool_call_id": m.Calls[0].ID, "content": text}
	}
	list := bytes.TrimRight(bytes.TrimSuffix(bytes.TrimSpace(t.list), []byte("]")), " \t\r\n")
	for _, m := range []map[string]any{answer, next} {
		b, err := jsonscan.Marshal(m)
		if err != nil {
			return nil, err
		}
		list = append(append(bytes.Clone(list), ','), b...)
	}
	return jsonscan.Set(t.body, "messages", append(list, ']'))
}

// Feed reads the next bytes of the response with status 200; events means that it is an event stream.
func (t *Turn) Feed(b []byte, events bool) {
	if t != nil {
		t.answer.feed(b, events)
	}
}

// answer is the message that a response contains, without its reasoning, which clients do not send back.
type answer struct {
	unread  []byte // an event's line so far, or the response so far
	content []byte
	calls   []toolCall
	events  bool
	void    bool // it has no or several answers, or a too long one
}

func (a *answer) feed(b []byte, events bool) {
	if a.events = events; a.void {
		return
	}
	a.unread = append(a.unread, b...)
	for events {
		line, rest, found := bytes.Cut(a.unread, []byte("\n"))
		if !found {
			break
		}
		if data, ok := bytes.CutPrefix(line, []byte("data:")); ok && bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")) {
			a.read(data)
		}
		a.unread = rest
	}
	if len(a.unread)+len(a.content) > maxTurn {
		*a = answer{void: true}
	}
}

// read reads an event or a whole response.
func (a *answer) read(data []byte) {
	type piece struct {
		Content *string    `json:"content"`
		Calls   []toolCall `json:"tool_calls"`
	}
	var v struct {
		Error   json.RawMessage `json:"error"`
		Choices []struct {
			Index          int
			Delta, Message piece
		} `json:"choices"`
	}
	if json.Unmarshal(data, &v) != nil || v.Error != nil || len(v.Choices) > 1 {
		a.void = true
		return
	}
	for _, c := range v.Choices { // none in the event with the usage
		p := c.Delta
		if !a.events {
			p = c.Message
		}
		if p.Content != nil {
			a.content = append(a.content, *p.Content...)
		}
		for i, call := range p.Calls {
			if !a.events {
				call.Index = i
			}
			if a.void = a.void || c.Index != 0 || call.Index < 0 || call.Index > len(a.calls); a.void {
				return
			}
			if call.Index == len(a.calls) {
				a.calls = append(a.calls, call)
				continue
			}
			at := &a.calls[call.Index].Function
			at.Name, at.Arguments = at.Name+call.Function.Name, at.Arguments+call.Function.Arguments
		}
	}
}

// end ends the response, and reports whether it had an answer.
func (a *answer) end() bool {
	if !a.events && !a.void {
		a.read(a.unread)
	}
	a.unread = nil
	return !a.void && len(a.content)+len(a.calls) > 0
}

func (a *answer) message() *message {
	text, _ := json.Marshal(string(a.content))
	return &message{Role: "assistant", Content: text, Calls: a.calls}
}
