package conversations

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"reveille/runner/engineslots"
)

// chatBody returns a chat request with messages of users and the assistant by turns.
func chatBody(t *testing.T, texts ...string) []byte {
	t.Helper()
	var messages []map[string]string
	for i, text := range texts {
		messages = append(messages, map[string]string{"role": []string{"user", "assistant"}[i%2], "content": text})
	}
	body, err := json.Marshal(map[string]any{"messages": messages, "model": "m"})
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// answerChat has an engine answer a chat.
func answerChat(t *testing.T, e *Engine, tenant engineslots.Tenant, slot int, answer string, texts ...string) {
	t.Helper()
	e.Begin()
	turn := e.Chat(tenant, slot, engineslots.Prompt{}, chatBody(t, texts...))
	turn.Restore(t.Context())
	b, err := json.Marshal(map[string]any{"choices": []any{map[string]any{"message": map[string]string{"content": answer}}}})
	if err != nil {
		t.Fatal(err)
	}
	turn.Feed(b, false)
	turn.Done(true)
	e.End()
}

// What is saved of a conversation ends where its next turn goes on, whatever the engine's slot held. Only that is saved
// of a model whose states cannot go back.
func TestSavedStatesEndWhereTheNextTurnGoesOn(t *testing.T) {
	s, p := open(t, t.TempDir(), 1<<20), process(t, filepath.Join(t.TempDir(), "m.gguf"))
	p.Sealed = true
	question := strings.Repeat("What happened? ", 10)
	l := newLlama(t, 1)
	run(t, s, p, l, nil, func(e *Engine) {
		l.holding(0, count(1, 100), 1)(e)
		answerChat(t, e, engineslots.Tenant{}, engineslots.Any, "Nothing.", question)
	})
	got := run(t, s, p, newLlama(t, 1), nil, func(e *Engine) {
		answerChat(t, e, engineslots.Tenant{}, engineslots.Any, "Nothing.", "another "+question)
	})
	next := tokensOf("<user>" + question + "</><assistant>Nothing.</><user>And then?</><assistant>")
	if n := len(got[0]); n < len(next)*4/5 || !slices.Equal(got[0], next[:n]) {
		t.Errorf("%d tokens were restored, the next turn starts with others", n)
	}
	l = newLlama(t, 1)
	got = run(t, s, p, l, nil, func(*Engine) {})
	if len(got[0]) == 0 {
		t.Error("nothing was restored")
	}
	l = newLlama(t, 1)
	l.clock = true
	run(t, s, p, l, nil, l.holding(0, count(3, 500), 1)) // no chat
	run(t, s, p, l, nil, func(e *Engine) {
		answerChat(t, e, engineslots.Tenant{}, engineslots.Any, "Nothing.", "a third "+question)
	})
	if n := len(s.newestLocked(must(s.Prepare(p)).identifyNow())); n != 2 {
		t.Errorf("%d conversations are kept, want 2", n)
	}
	if n := s.m.unsaved.Get(); n != 1 {
		t.Errorf("%d conversations with a counter in their template were refused, want 1", n)
	}
}

func must(e *Engine, _ error) *Engine { return e }

func (e *Engine) identifyNow() Identity {
	e.identify(e.life)
	return e.id
}

// A request whose conversation is saved and not in the engine has it restored first, only for its owner.
func TestSavedConversationsAreRestoredForTheirNextTurn(t *testing.T) {
	s, p := open(t, t.TempDir(), 1<<20), process(t, filepath.Join(t.TempDir(), "m.gguf"))
	p.Sealed = true
	l := newLlama(t, 1)
	mine, other := engineslots.TenantOf("a"), engineslots.TenantOf("b")
	table := engineslots.New(1, nil)
	question := func(name string) string { return strings.Repeat(name+" asks what happened. ", 10) }
	ask := func(e *Engine, tenant engineslots.Tenant, texts ...string) (restored uint64) {
		t.Helper()
		slot, err := table.Acquire(t.Context(), tenant, engineslots.Prompt{}, false)
		if err != nil {
			t.Fatal(err)
		}
		e.Evict(t.Context(), slot)
		before := s.m.restored.Get()
		answerChat(t, e, tenant, slot, "Nothing.", texts...)
		table.Release(slot)
		s.await(t.Context(), e.id)
		return s.m.restored.Get() - before
	}
	erase := func(e *Engine) { // as before another owner's request
		e.Evict(t.Context(), 0)
		table = engineslots.New(1, nil)
		e.table = table
		s.await(t.Context(), e.id)
	}
	run(t, s, p, l, table, func(e *Engine) {
		<-e.identified
		ask(e, mine, question("Ada"))
		ask(e, mine, question("Bob"))
		if n := ask(e, mine, question("Bob"), "Nothing.", "And then?"); n != 0 {
			t.Errorf("%d conversations were restored that the engine had", n)
		}
		if n := ask(e, mine, question("Ada"), "Nothing.", "And then?"); n != 1 {
			t.Errorf("%d conversations were restored, want 1", n)
		}
		erase(e)
		if n := ask(e, other, question("Bob"), "Nothing.", "And then?", "Nothing.", "And now?"); n != 0 {
			t.Errorf("%d conversations of another owner were restored", n)
		}
		erase(e)
		if n := ask(e, mine, question("Bob"), "Nothing.", "And then?", " Nothing.\n", "And now?"); n != 1 {
			t.Errorf("%d conversations were restored with blanks around the answer, want 1", n)
		}
		erase(e)
		if n := ask(e, mine, question("Ada"), "Something else.", "And now?"); n != 0 {
			t.Errorf("%d conversations with another answer were restored", n)
		}
	})
}

// An engine without requests saves what it was told, and a request interrupts that.
func TestIdleEnginesSaveTheirConversations(t *testing.T) {
	s, p := open(t, t.TempDir(), 1<<20), process(t, filepath.Join(t.TempDir(), "m.gguf"))
	p.Sealed = true
	l := newLlama(t, 2)
	run(t, s, p, l, nil, func(e *Engine) {
		answerChat(t, e, engineslots.Tenant{}, engineslots.Any, "Nothing.", strings.Repeat("What happened? ", 10))
		for end := time.Now().Add(time.Minute); s.m.saved.Get() == 0; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("nothing was saved")
			}
		}
	})
	if n := s.m.saved.Get(); n != 1 {
		t.Errorf("%d conversations were saved, want 1", n)
	}
}

// The answer of a response is what clients send back: its text and calls, without the reasoning.
func TestAnswers(t *testing.T) {
	for _, tt := range []struct {
		name, response string
		events         bool
		want           string // "" for none
	}{
		{"a response", `{"choices":[{"index":0,"message":{"role":"assistant","content":"Hi.","reasoning_content":"hm"}}]}`, false, `"Hi."`},
		{"no text", `{"choices":[{"message":{"content":null}}]}`, false, ""},
		{"an error", `{"error":{"message":"no"}}`, false, ""},
		{"two choices", `{"choices":[{"message":{"content":"a"}},{"message":{"content":"b"}}]}`, false, ""},
		{"a stream", "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":null}}]}\n\n: ping\n\ndata: {\"choices\":[{\"delta\":{\"reasoning_content\":\"hm\"}}]}\n\n" +
			"data: {\"choices\":[{\"delta\":{\"content\":\"H\"}}]}\r\n\r\ndata: {\"choices\":[{\"delta\":{\"content\":\"i.\"}}]}\n\ndata: {\"choices\":[],\"usage\":{}}\n\ndata:\n\ndata: [DONE]\n\n", true, `"Hi."`},
		{"a stream of another choice", "data: {\"choices\":[{\"index\":1,\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"x\"}]}}]}\n\n", true, ""},
		{"a failed stream", "data: {\"choices\":[{\"delta\":{\"content\":\"H\"}}]}\n\ndata: {\"error\":{}}\n\n", true, ""},
		{"a stream of calls", `data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"c","type":"function","function":{"name":"f","arguments":"{\"a"}}]}}]}` + "\n\n" +
			`data: {"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"\":1}"}}]}}]}` + "\n\n", true, `""c f {"a":1}`},
	} {
		for step := 1; step < len(tt.response)+1; step += 7 {
			var a answer
			for piece := range slices.Chunk([]byte(tt.response), step) {
				a.feed(piece, tt.events)
			}
			got := ""
			if a.end() {
				m := a.message()
				got = string(m.Content)
				for _, c := range m.Calls {
					got += c.ID + " " + c.Function.Name + " " + c.Function.Arguments
				}
			}
			if got != tt.want {
				t.Fatalf("%s, %d bytes at a time: %q, want %q", tt.name, step, got, tt.want)
			}
		}
	}
	var long answer
	for range 3 {
		long.feed([]byte(`data: {"choices":[{"delta":{"content":"`+strings.Repeat("a", maxTurn/2)+"\"}}]}\n\n"), true)
	}
	if long.end() {
		t.Error("an answer of any length is kept")
	}
}

// Two chats have the same key if their messages mean the same.
func TestKeysOfMessages(t *testing.T) {
	key := func(body string) Key {
		turn := newTurn([]byte(body))
		if turn == nil {
			return Key{}
		}
		return turn.keys[len(turn.keys)-1]
	}
	first := key(`{"messages":[{"role":"user","content":"Hi"}],"temperature":1}`)
	for body, same := range map[string]bool{
		`{"messages":[{"content":[{"type":"text","text":"Hi"}],"role":"user"}]}`:                          true,
		`{"messages":[{"role":"system","content":"Hi"}]}`:                                                 false,
		`{"messages":[{"role":"user","content":"Hi","tool_calls":[{"id":"1","function":{"name":"f"}}]}]}`: false,
		`{"messages":[{"role":"user","content":"Hi"}],"tools":[{}]}`:                                      false,
		`{"messages":[{"role":"user","content":"Hi"}],"chat_template_kwargs":{"enable_thinking":false}}`:  false,
		`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"Hi"}}]}]}`:        false,
		`{"messages":[{"role":"user","content":""},{"role":"user","content":"Hi"}]}`:                      false,
	} {
		if got := key(body); got == (Key{}) || (got == first) != same {
			t.Errorf("%s: the same key is %v", body, got == first)
		}
	}
	for _, body := range []string{`{`, `{}`, `{"messages":[]}`, `{"messages":[{"role":"user"}],"n":2}`, `{"messages":[{"role":"user"}],"cache_prompt":false}`} {
		if key(body) != (Key{}) {
			t.Errorf("%s has a key", body)
		}
	}
}
