package conversations

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"reveille/infra/jsonscan"
	"reveille/runner/engineslots"
)

const (
	maxTurn  = 4 << 20 // bytes of a request, and of its answer, that are kept until the conversation is saved
	maxMarks = 32      // of a saved conversation
	block    = 512     // bytes of a message's text between two marks
)

// Key identifies the messages that a conversation starts with. It only finds conversations: whether the tokens are the
// same, the engine finds out.
type Key = engineslots.Key

// mark is a place in a conversation from which another can go on differently.
type mark struct {
	Key   Key
	Bytes uint64 // of the texts before
}

// place is where the store finds a conversation.
type place struct {
	id     Identity
	tenant engineslots.Tenant
	key    Key
}

// Turn is a request and its answer. It lives until the conversation is saved or goes on. Its methods do nothing on nil,
// and are called by one goroutine at a time.
type Turn struct {
	e      *Engine
	tenant engineslots.Tenant
	slot   int // where the request runs; engineslots.Any: the engine chooses

	body  []byte // of a chat request
	list  []byte // the messages in body, nil for a text
	text  string // without messages
	marks []mark // in the request
	// The system prompt: its messages, the marks in it, and its bytes with the tools.
	instructions, system, opening int

	own        int  // index of the mark from which on others are the same conversation
	isFirst    bool // it has no earlier answers
	onMessages bool // it came on /v1/messages
	savable    bool
	isSystem   bool // it is the system prompt alone, which all turns with it continue

	answer   answer
	answered bool
	end      mark // after the answer
	ended    time.Time

	restored *entry // for the request, nil for none
}

// message is what counts of a message for its Key.
type message struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
	Calls   []toolCall      `json:"tool_calls,omitempty"`
	CallID  string          `json:"tool_call_id,omitempty"`
}

type toolCall struct {
	Index    int    `json:"index"`
	ID       string `json:"id"`
	Type     string `json:"type"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

func (m *message) isInstruction() bool { return m.Role == "system" || m.Role == "developer" }

// text returns a message's text; of other content than text, its JSON.
func (m *message) text() string {
	var parts []struct{ Text *string }
	isOther := func(p struct{ Text *string }) bool { return p.Text == nil }
	if json.Unmarshal(m.Content, &parts) == nil && slices.ContainsFunc(parts, isOther) || len(m.Content) > 0 && strings.IndexByte("\"[n", m.Content[0]) < 0 {
		return string(m.Content)
	}
	return textOf(m.Content)
}

// after returns the marks in a message and at its end, after the mark m.
func (m mark) after(next *message) (out []mark) {
	h := sha256.New()
	h.Write(m.Key[:])
	fmt.Fprintf(h, "%q%q", next.Role, next.CallID)
	sum := func(bytes int) {
		m.Bytes += uint64(bytes)
		h.Sum(m.Key[:0])
		out = append(out, m)
	}
	text := strings.TrimSpace(next.text())
	size := len(text)
	for ; len(text) > block; text = text[block:] {
		h.Write([]byte(text[:block]))
		sum(block)
	}
	fmt.Fprintf(h, "%s%d", text, size)
	last := len(text)
	for _, c := range next.Calls {
		fmt.Fprintf(h, "%q%q%q", c.ID, c.Function.Name, compact(c.Function.Arguments))
		last += len(c.Function.Arguments)
	}
	sum(last)
	return out
}

// NewTurn reads a request. What cannot be found again has no marks but those of its bytes, and none above maxTurn.
func NewTurn(path string, body []byte) *Turn {
	t := &Turn{}
	if len(body) > maxTurn {
		return t
	}
	if t.read(strings.TrimPrefix(path, "/v1"), bytes.Clone(body)) { // the caller's goes with its request
		t.savable = true
		return t
	}
	t.marks = mark{}.after(&message{Content: body})
	t.own = len(t.marks) / 2 // as much in common as with another request for the same document
	return t
}

// read reads a request. It reports whether its conversation can be found again.
func (t *Turn) read(path string, body []byte) bool {
	t.body, t.isFirst, t.onMessages = body, true, path == "/messages"
	if t.onMessages || path == "/responses" {
		if t.body = chatOf(path, body); t.body == nil {
			return false
		}
	}
	var v [6]jsonscan.Value
	names := []string{"messages", "tools", "chat_template_kwargs", "cache_prompt", "add_generation_prompt", "prompt"}
	if jsonscan.Scan(t.body, names, v[:]) != nil {
		return false
	}
	isDefault := func(v jsonscan.Value, text string) bool { return !v.Set() || string(v.Raw) == text }
	if !isDefault(v[3], "true") || !isDefault(v[4], "true") {
		return false
	}
	switch path {
	case "/chat/completions", "/messages", "/responses":
		var messages []message
		if json.Unmarshal(v[0].Raw, &messages) != nil {
			return false
		}
		t.list = v[0].Raw
		last := mark{Key: sha256.Sum256(bytes.Join([][]byte{v[1].Raw, v[2].Raw}, []byte{0}))}
		inSystem := true // so far only instructions
		for i := range messages {
			t.marks = append(t.marks, last.after(&messages[i])...)
			last = t.marks[len(t.marks)-1]
			t.isFirst = t.isFirst && messages[i].Role != "assistant"
			if !inSystem {
				continue
			}
			if t.own = len(t.marks) - 1; messages[i].isInstruction() {
				t.instructions, t.system, t.opening = i+1, len(t.marks), len(v[1].Raw)+int(last.Bytes)
			} else {
				inSystem = false
			}
		}
	case "/completions", "/completion":
		if json.Unmarshal(v[5].Raw, &t.text) != nil {
			return false
		}
		t.marks = mark{}.after(&message{Content: v[5].Raw})
		t.marks = t.marks[:len(t.marks)-1] // the next request goes on after the text, which has no end
		t.own = len(t.marks) / 2
	}
	return len(t.marks) > 0
}

// Prompt returns what the slots are compared with.
func (t *Turn) Prompt() engineslots.Prompt { return engineslots.Prompt{Starts: t.keys(), Own: t.own} }

// IsSteerable reports whether the request is on /v1/messages, where llama-server ignores id_slot, and
// [Turn.PrepareSlot] can make it choose the request's slot: it prefers the one with the most of the prompt.
func (t *Turn) IsSteerable() bool { return t.savable && t.onMessages }

// has reports whether the conversation, with its answer, has the beginning with a key.
func (t *Turn) has(key Key) bool { return slices.Contains(t.keys(), key) }

// continues reports whether the conversation, with its answer, continues one that ends at a key, so that the latter is
// out of date. A system prompt alone is not.
func (t *Turn) continues(end Key) bool {
	return t.has(end) && (t.system == 0 || end != t.marks[t.system-1].Key)
}

// places returns where the store finds its beginnings.
func (t *Turn) places() (out []place) {
	for _, key := range t.keys() {
		out = append(out, place{t.e.id, t.tenant, key})
	}
	return out
}

// keys returns the keys of its beginnings, that with the answer last.
func (t *Turn) keys() (out []Key) {
	for _, m := range t.marks {
		out = append(out, m.Key)
	}
	if t.end != (mark{}) {
		out = append(out, t.end.Key)
	}
	return out
}

// savedMarks returns where other conversations can go on with the saved one: at its end, and if its state can go back
// also before.
func (t *Turn) savedMarks(onlyForward bool) (out [maxMarks]mark) {
	const more = maxMarks - 1
	out[more] = t.end
	if n := len(t.marks); !onlyForward {
		for i := range min(n, more) {
			out[i] = t.marks[(i+1)*n/min(n, more)-1]
		}
	}
	return out
}

// continued returns the body of a request that goes on with text, after the answer if there is one.
func (t *Turn) continued(text string) ([]byte, error) {
	list := bytes.TrimRight(bytes.TrimSuffix(bytes.TrimSpace(t.list), []byte("]")), " \t\r\n")
	next := &message{Role: "user", Content: quote(text)}
	if t.answered {
		answer := t.answer.message()
		if len(answer.Calls) > 0 {
			next.Role, next.CallID = "tool", answer.Calls[0].ID
		}
		list = slices.Concat(list, []byte(","), quote(answer))
	}
	list = slices.Concat(list, []byte(","), quote(next), []byte("]"))
	return jsonscan.Set(t.body, "messages", list)
}

// Feed reads the next bytes of the response with status 200; events means that it is an event stream.
func (t *Turn) Feed(b []byte, events bool) {
	if t != nil && t.savable {
		t.answer.feed(b, events)
	}
}

// finish ends the response. It reports whether the conversation can be saved: without an answer only if its state can
// go back.
func (t *Turn) finish() bool {
	t.ended, t.end = time.Now(), t.marks[len(t.marks)-1]
	t.answered = t.answer.end()
	if t.answered && t.list != nil {
		end := t.end.after(t.answer.message())
		t.end = end[len(end)-1]
	}
	return t.answered || !t.e.onlyForward
}

// answer is the message that a response contains, without its reasoning, which clients do not send back.
type answer struct {
	unread  []byte // an event's line so far, or the response so far
	content []byte
	calls   []toolCall
	pieces  [][]byte // by call: the arguments that further events brought
	bytes   int      // of calls and pieces
	events  bool
	blocks  bool // of /v1/messages, whose clients send arguments back as an object
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
	if len(a.unread)+len(a.content)+a.bytes > maxTurn {
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
		Error    *json.RawMessage `json:"error"`
		Content  json.RawMessage  // of /completion, and of /messages
		Block    *part            `json:"content_block"` // of an event of /messages
		Delta    json.RawMessage
		Output   []part                  // of /responses
		Response struct{ Output []part } // of its last event
		Type     string
		Choices  []struct {
			Index          int
			Text           string // of /completions
			Delta, Message piece
		} `json:"choices"`
	}
	if json.Unmarshal(data, &v) != nil || v.Error != nil || len(v.Choices) > 1 {
		a.void = true
		return
	}
	var text string
	if json.Unmarshal(v.Content, &text) == nil {
		a.content = append(a.content, text...)
	}
	parts := slices.Concat(partsOf(v.Content), v.Output)
	if v.Type == "response.completed" {
		parts = v.Response.Output
	}
	if v.Block != nil {
		parts, a.blocks = append(parts, *v.Block), true
	}
	for i := range parts {
		a.addPart(&parts[i])
	}
	var delta struct {
		Type, Text string
		JSON       string `json:"partial_json"`
	}
	if n := len(a.calls); v.Type == "content_block_delta" && json.Unmarshal(v.Delta, &delta) == nil {
		a.content = append(a.content, delta.Text...)
		if n > 0 {
			a.addPiece(n-1, delta.JSON)
		}
	}
	for _, c := range v.Choices { // none in the event with the usage
		p := c.Delta
		if !a.events {
			p = c.Message
		}
		a.content = append(a.content, *cmp.Or(p.Content, &c.Text)...)
		for i, call := range p.Calls {
			if !a.events {
				call.Index = i
			}
			if call.Index < 0 || call.Index > len(a.calls) {
				a.void = true
				return
			}
			if call.Type = "function"; call.Index == len(a.calls) {
				a.addCall(call)
				continue
			}
			a.calls[call.Index].Function.Name += call.Function.Name
			a.bytes += len(call.Function.Name)
			a.addPiece(call.Index, call.Function.Arguments)
		}
		a.void = a.void || c.Index != 0
	}
}

func (a *answer) addCall(c toolCall) {
	a.calls, a.pieces = append(a.calls, c), append(a.pieces, nil)
	a.bytes += len(c.ID) + len(c.Function.Name) + len(c.Function.Arguments)
}

func (a *answer) addPiece(call int, arguments string) {
	a.pieces[call] = append(a.pieces[call], arguments...)
	a.bytes += len(arguments)
}

// end ends the response, and reports whether it had an answer.
func (a *answer) end() bool {
	if !a.events && !a.void {
		a.read(a.unread)
	}
	a.unread = nil
	for i := range a.calls {
		f := &a.calls[i].Function
		if f.Arguments += string(a.pieces[i]); a.blocks {
			f.Arguments = compact(f.Arguments)
		}
	}
	return !a.void && len(a.content)+len(a.calls) > 0
}

func (a *answer) message() *message {
	return &message{Role: "assistant", Content: quote(string(a.content)), Calls: a.calls}
}
