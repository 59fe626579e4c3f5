package conversations

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
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

// beginTurn gives a request its slot and begins it.
func beginTurn(t *testing.T, e *Engine, tenant engineslots.Tenant, path string, body []byte) (turn *Turn, end func(ok bool)) {
	t.Helper()
	v, _ := tables.Load(e)
	table := v.(*engineslots.Table)
	turn = NewTurn(path, body)
	slot, err := table.Acquire(t.Context(), tenant, turn.Prompt(), bytes.Contains(body, []byte(`"n":2`)))
	if err != nil {
		t.Fatal(err)
	}
	turn = e.Begin(turn, tenant, slot)
	return turn, func(ok bool) {
		turn.End(ok)
		table.Release(slot)
	}
}

// answerChat has an engine answer a chat, and returns how many restored tokens it reused.
func answerChat(t *testing.T, e *Engine, tenant engineslots.Tenant, answer string, texts ...string) (restored int) {
	t.Helper()
	return answerRequest(t, e, tenant, "/v1/chat/completions", chatBody(t, texts...),
		map[string]any{"choices": []any{map[string]any{"message": map[string]string{"content": answer}}}})
}

func answerRequest(t *testing.T, e *Engine, tenant engineslots.Tenant, path string, body []byte, response map[string]any) (restored int) {
	t.Helper()
	turn, end := beginTurn(t, e, tenant, path, body)
	turn.PrepareSlot(t.Context())
	if turn.slot != engineslots.Any && !turn.IsSteerable() {
		body = slices.Concat(body[:len(body)-1], fmt.Appendf(nil, `,"id_slot":%d}`, turn.slot))
	}
	var none struct{}
	if err := e.ask(t.Context(), "/turn", json.RawMessage(body), &none); err != nil {
		t.Fatal(err)
	}
	restored = turn.Reused(t.Context())
	b, err := json.Marshal(response)
	if err != nil {
		t.Fatal(err)
	}
	turn.Feed(b, false)
	end(true)
	return restored
}

// What is saved of a conversation ends where its next turn goes on. If the template renders it anew for each turn, its
// state is not saved.
func TestSavedStatesEndWhereTheNextTurnGoesOn(t *testing.T) {
	for _, sealed := range []bool{true, false} {
		s, p := open(t, t.TempDir(), 1<<20), process(t, filepath.Join(t.TempDir(), "m.gguf"))
		p.OnlyForward = sealed
		begin(t, s, p, newLlama(t, 1), "Ada")
		next := tokensOf("<user>" + asked("Ada") + "</><assistant>Nothing.</><user>")
		if got := goOn(t, s, p, newLlama(t, 1), "Ada"); got[0] != len(next)-1 {
			t.Errorf("%d tokens were restored, want %d", got[0], len(next)-1)
		}
		l := newLlama(t, 1)
		l.clock = true
		begin(t, s, p, l, "Bob")
		if n := len(s.entries); n != 1 {
			t.Errorf("%d conversations are kept, want 1", n)
		}
		if n := s.m.unsaved.Get(); n != 1 {
			t.Errorf("%d conversations with a counter in their template were refused, want 1", n)
		}
	}
}

// A state that can go back is also of use to a conversation that has only its start in common: an edited message, a
// text. One that cannot is not restored for them.
func TestStatesThatCanGoBackServeOtherContinuations(t *testing.T) {
	document := strings.Repeat("The river rose by two feet. ", 100)
	texts := func(e *Engine, text string) int {
		body, err := json.Marshal(map[string]string{"prompt": text})
		if err != nil {
			t.Fatal(err)
		}
		return answerRequest(t, e, engineslots.Tenant{}, "/v1/completions", body,
			map[string]any{"choices": []any{map[string]any{"text": " It fell."}}})
	}
	for _, sealed := range []bool{true, false} {
		s, p := open(t, t.TempDir(), 1<<20), process(t, filepath.Join(t.TempDir(), "m.gguf"))
		p.OnlyForward = sealed
		chat := func(e *Engine, texts ...string) int {
			return answerChat(t, e, engineslots.Tenant{}, "Nothing.", texts...)
		}
		run(t, s, p, newLlama(t, 1), nil, func(e *Engine) { chat(e, document+"What happened?", "Much.", asked("Ada")) })
		run(t, s, p, newLlama(t, 1), nil, func(e *Engine) { texts(e, document) })
		for name, ask := range map[string]func(*Engine) int{
			"an edited message":      func(e *Engine) int { return chat(e, document+"What happened?", "Much.", "And then?") },
			"the start of a message": func(e *Engine) int { return chat(e, document+"Why?") },
			"a text that goes on":    func(e *Engine) int { return texts(e, document+" It fell. Then") },
			"a text with its start":  func(e *Engine) int { return texts(e, document[:2000]+"Then") },
			"without a common start": func(e *Engine) int { return 2000 - chat(e, "Why? "+document) },
		} {
			l := newLlama(t, 1)
			run(t, s, p, l, nil, func(e *Engine) {
				if n := ask(e); (n > 1500) != (!sealed || name == "without a common start") {
					t.Errorf("%s, sealed %v: %d tokens were restored", name, sealed, n)
				}
			})
		}
	}
}

// An answer that takes long to compute, because the template leaves its reasoning out, is not computed before an unload
// if the state can go back.
func TestUnloadsDoNotComputeLongAnswers(t *testing.T) {
	for _, sealed := range []bool{true, false} {
		s, p, l := open(t, t.TempDir(), 1<<20), process(t, filepath.Join(t.TempDir(), "m.gguf")), newLlama(t, 1)
		p.OnlyForward = sealed
		answer := strings.Repeat("Nothing. ", 100)
		run(t, s, p, l, nil, func(e *Engine) {
			answerChat(t, e, engineslots.Tenant{}, answer, asked("Ada"))
		})
		if (l.most > len(answer)) != sealed {
			t.Errorf("sealed %v: %d tokens were computed for a save", sealed, l.most)
		}
		run(t, s, p, newLlama(t, 1), nil, func(e *Engine) {
			if n := answerChat(t, e, engineslots.Tenant{}, "No.", asked("Ada"), answer, "Why?"); n < len(asked("Ada")) {
				t.Errorf("sealed %v: %d tokens were restored", sealed, n)
			}
		})
	}
}

// A request whose conversation is saved and not in the engine has it restored first, only for its owner.
func TestSavedConversationsAreRestoredForTheirNextTurn(t *testing.T) {
	s, p := open(t, t.TempDir(), 1<<20), process(t, filepath.Join(t.TempDir(), "m.gguf"))
	p.OnlyForward = true
	l := newLlama(t, 1)
	mine, other := engineslots.TenantOf("a"), engineslots.TenantOf("b")
	question := func(name string) string { return strings.Repeat(name+" asks what happened. ", 10) }
	ask := func(e *Engine, tenant engineslots.Tenant, texts ...string) (restored uint64) {
		t.Helper()
		before := s.m.restored.Get()
		answerChat(t, e, tenant, "Nothing.", texts...)
		s.work.Wait()
		return s.m.restored.Get() - before
	}
	erase := func(e *Engine) { // as before another owner's request
		e.Evict(t.Context(), 0)
		tables.Store(e, engineslots.New(1, nil))
		s.work.Wait()
	}
	run(t, s, p, l, nil, func(e *Engine) {
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

// A request that fails leaves the turn before it: what was not saved is saved later, and what was is restored for the
// next try, because the engine's slot holds something else. A request that is no conversation also takes a slot.
func TestFailedRequestsLoseNothing(t *testing.T) {
	chat := func(e *Engine, texts ...string) int {
		return answerChat(t, e, engineslots.Tenant{}, "Nothing.", texts...)
	}
	again := []string{asked("Ada"), "Nothing.", "And then?"}
	fail := func(e *Engine) {
		turn, end := beginTurn(t, e, engineslots.Tenant{}, "/v1/chat/completions", chatBody(t, again...))
		turn.PrepareSlot(t.Context())
		end(false)
	}
	s, p, l := open(t, t.TempDir(), 1<<20), process(t, filepath.Join(t.TempDir(), "m.gguf")), newLlama(t, 2)
	p.OnlyForward = true
	run(t, s, p, l, nil, func(e *Engine) {
		chat(e, asked("Ada"))
		fail(e)
	})
	if n := len(s.entries); n != 1 {
		t.Errorf("%d conversations are kept whose next request failed, want 1", n)
	}
	for name, use := range map[string]func(*Engine){
		"a failed try": fail,
		"several choices": func(e *Engine) {
			answerRequest(t, e, engineslots.Tenant{}, "/v1/chat/completions", []byte(`{"n":2,"messages":[{"role":"user","content":"Hi"}]}`), nil)
		},
	} {
		run(t, s, p, newLlama(t, 1), nil, func(e *Engine) {
			chat(e, asked("Ada"))
			e.Evict(t.Context(), 0)
			s.work.Wait()
			use(e)
			if n := chat(e, again...); n < len(asked("Ada")) {
				t.Errorf("%d tokens were restored after %s", n, name)
			}
		})
	}
}

// instructed returns a chat request with a system prompt.
func instructed(t *testing.T, system string, texts ...string) []byte {
	t.Helper()
	first := fmt.Appendf(nil, `{"messages":[{"role":"system","content":%q},`, system)
	return append(first, bytes.TrimPrefix(chatBody(t, texts...), []byte(`{"messages":[`))...)
}

// Conversations with a common start keep their own slots, also on the route where the engine ignores which one it is
// told. There, the prompt of a new one is computed in its slot before the request.
func TestConversationsKeepTheirSlots(t *testing.T) {
	for _, path := range []string{"/v1/chat/completions", "/v1/messages"} {
		s, p, l := open(t, t.TempDir(), 1<<20), process(t, filepath.Join(t.TempDir(), "m.gguf")), newLlama(t, 3)
		p.OnlyForward = true
		response := map[string]any{"choices": []any{map[string]any{"message": map[string]string{"content": "Nothing."}}}}
		if path == "/v1/messages" {
			response = map[string]any{"content": []any{map[string]string{"type": "text", "text": "Nothing."}}}
		}
		system := strings.Repeat("You are told what happens. ", 20)
		run(t, s, p, l, nil, func(e *Engine) {
			<-e.identified
			for _, name := range []string{"Ada", "Bob", "Cid"} {
				answerRequest(t, e, engineslots.Tenant{}, path, instructed(t, system, asked(name)), response)
			}
			for slot, name := range []string{"Ada", "Bob", "Cid"} {
				answerRequest(t, e, engineslots.Tenant{}, path, instructed(t, system, asked(name), "Nothing.", "And then?"), response)
				if want := tokensOf("Nothing.</><user>And then?</><assistant>"); l.done[slot] != len(want) {
					t.Errorf("%s: the next turn of %s computed %d tokens in its slot, want %d", path, name, l.done[slot], len(want))
				}
			}
		})
	}
}

// States that cannot go back are of no use to another chat with the same system prompt, so that is saved alone, once
// a second chat has it. The chats that follow do not replace it.
func TestSystemPromptsAreSavedForOtherChats(t *testing.T) {
	system := strings.Repeat("You are told what happens. ", 200)
	for _, sealed := range []bool{true, false} {
		s, p := open(t, t.TempDir(), 1<<20), process(t, filepath.Join(t.TempDir(), "m.gguf"))
		p.OnlyForward = sealed
		var saved []int
		run(t, s, p, newLlama(t, 4), nil, func(e *Engine) {
			<-e.identified
			for _, name := range []string{"Ada", "Bob", "Cid"} {
				answerRequest(t, e, engineslots.Tenant{}, "/v1/chat/completions", instructed(t, system, asked(name)),
					map[string]any{"choices": []any{map[string]any{"message": map[string]string{"content": "Nothing."}}}})
				s.work.Wait()
				saved = append(saved, len(s.entries))
			}
		})
		want := []int{0, 1, 1}
		if !sealed {
			want = []int{0, 0, 0}
		}
		if !slices.Equal(saved, want) {
			t.Errorf("sealed %v: %v conversations were saved after each chat, want %v", sealed, saved, want)
		}
		run(t, s, p, newLlama(t, 1), nil, func(e *Engine) {
			<-e.identified
			n := answerRequest(t, e, engineslots.Tenant{}, "/v1/chat/completions", instructed(t, system, "Another."), nil)
			if least := len(system); n < least {
				t.Errorf("sealed %v: %d tokens of the system prompt were restored, want at least %d", sealed, n, least)
			}
		})
	}
}

// A request takes nothing from the conversation in its slot if its client leaves before. What the engine has emptied is
// not computed again for a save that a request waits for.
func TestEvictionsLoseAndComputeNothing(t *testing.T) {
	for _, left := range []bool{true, false} {
		s, p, l := open(t, t.TempDir(), 1<<20), process(t, filepath.Join(t.TempDir(), "m.gguf")), newLlama(t, 1)
		p.OnlyForward = true
		run(t, s, p, l, nil, func(e *Engine) {
			<-e.identified
			answerChat(t, e, engineslots.Tenant{}, "Nothing.", asked("Ada"))
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			if left {
				leave()
			} else {
				l.mu.Lock()
				l.slots[0] = nil
				l.mu.Unlock()
			}
			turn, end := beginTurn(t, e, engineslots.Tenant{}, "/v1/chat/completions", chatBody(t, asked("Bob")))
			turn.PrepareSlot(ctx)
			end(false)
			if !left && l.most > 0 {
				t.Errorf("%d tokens were computed for a save", l.most)
			}
		})
		if n := len(s.entries); (n == 1) != left {
			t.Errorf("left %v: %d conversations are kept", left, n)
		}
	}
}

// Requests that are no chats are not all saved before the next one, unless the engine has no prompt cache. Once a chat
// has gone on, first turns are again.
func TestRequestsThatAreNoChats(t *testing.T) {
	s, p := open(t, t.TempDir(), 1<<20), process(t, filepath.Join(t.TempDir(), "m.gguf"))
	run(t, s, p, newLlama(t, 1), nil, func(e *Engine) {
		<-e.identified
		chat := func(texts ...string) { answerChat(t, e, engineslots.Tenant{}, "Nothing.", texts...) }
		saved := func(n int) uint64 {
			before := s.m.saved.Get()
			for i := range n {
				chat(asked(fmt.Sprint("Nr ", before, i)))
			}
			s.work.Wait()
			return s.m.saved.Get() - before
		}
		chat(asked("Ada"))
		if n := saved(maxUnused); n < maxUnused {
			t.Errorf("%d of the first %d were saved", n, maxUnused)
		}
		if n := saved(4 * sparse); n < 4 || n > 2*sparse { // 4, and those that an idle moment had time for
			t.Errorf("%d of the next %d were saved, want 4", n, 4*sparse)
		}
		erase := func(erased bool) {
			e.chats.mu.Lock()
			defer e.chats.mu.Unlock()
			e.chats.erased = erased
		}
		erase(true)
		if n := saved(4 * sparse); n < 4*sparse {
			t.Errorf("%d of %d were saved where slots are erased for other keys", n, 4*sparse)
		}
		erase(false)
		chat(asked("Ada"), "Nothing.", "And then?")
		if n := saved(4 * sparse); n < 4*sparse {
			t.Errorf("%d of %d were saved after a chat had gone on", n, 4*sparse)
		}
	})
}

// An engine without requests saves what it was told, and a request interrupts that.
func TestIdleEnginesSaveTheirConversations(t *testing.T) {
	s, p := open(t, t.TempDir(), 1<<20), process(t, filepath.Join(t.TempDir(), "m.gguf"))
	p.OnlyForward = true
	l := newLlama(t, 2)
	run(t, s, p, l, nil, func(e *Engine) {
		answerChat(t, e, engineslots.Tenant{}, "Nothing.", strings.Repeat("What happened? ", 10))
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
		{"a response of /v1/messages", `{"content":[{"type":"thinking","thinking":"hm"},{"type":"text","text":"Hi."},{"type":"tool_use","id":"c","name":"f","input":{"a": 1}}]}`, false,
			`"Hi."c f {"a":1}`},
		{"a stream of /v1/messages", `data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}` + "\n\n" +
			`data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hi."}}` + "\n\n" +
			`data: {"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"c","name":"f","input":{}}}` + "\n\n" +
			`data: {"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{\"a\""}}` + "\n\n" +
			`data: {"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":": 1}"}}` + "\n\n" +
			`data: {"type":"message_delta","delta":{"stop_reason":"tool_use"},"usage":{}}` + "\n\n", true, `"Hi."c f {"a":1}`},
		{"a response of /v1/responses", `{"output":[{"type":"reasoning"},{"type":"message","content":[{"type":"output_text","text":"Hi."}]},{"type":"function_call","call_id":"c","name":"f","arguments":"{}"}],"error":null}`,
			false, `"Hi."c f {}`},
		{"a stream of /v1/responses", `data: {"type":"response.output_text.delta","delta":"Hi."}` + "\n\n" +
			`data: {"type":"response.completed","response":{"output":[{"type":"message","content":[{"type":"output_text","text":"Hi."}]}]}}` + "\n\n", true, `"Hi."`},
		{"a text of /v1/completions", `{"choices":[{"text":"Hi.","index":0}]}`, false, `"Hi."`},
		{"a text of /completion", `{"content":"Hi."}`, false, `"Hi."`},
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
	for _, format := range []string{`{"content":%q}`, `{"tool_calls":[{"index":0,"function":{"arguments":%q}}]}`} {
		var long answer
		for range 3 {
			long.feed(fmt.Appendf(nil, `data: {"choices":[{"delta":`+format+"}]}\n\n", strings.Repeat("a", maxTurn/2)), true)
		}
		if long.end() {
			t.Errorf("an answer of any length is kept: %s", format)
		}
	}
}

// A conversation in another dialect has the key of the same chat.
func TestDialectsHaveTheSameKeys(t *testing.T) {
	key := func(path, body string) Key {
		turn := NewTurn("/v1"+path, []byte(body))
		if !turn.savable {
			t.Fatalf("%s cannot be saved: %s", path, body)
		}
		return turn.marks[len(turn.marks)-1].Key
	}
	tools := `"tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{}}}]`
	for _, tt := range []struct{ chat, messages, responses string }{
		{`{"messages":[{"role":"user","content":"Hi"}]}`, `{"messages":[{"role":"user","content":"Hi"}],"max_tokens":1}`, `{"input":"Hi"}`},
		{`{"messages":[{"role":"system","content":"Be."},{"role":"user","content":"Hi"},
			{"role":"assistant","content":"","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]},
			{"role":"tool","tool_call_id":"c","content":"ok"}]}`,
			`{"system":[{"type":"text","text":"Be."}],"messages":[{"role":"user","content":[{"type":"text","text":"Hi"}]},
			{"role":"assistant","content":[{"type":"thinking","thinking":"hm"},{"type":"tool_use","id":"c","name":"f","input":{"a": 1}}]},
			{"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":[{"type":"text","text":"ok"}]}]}]}`,
			`{"instructions":"Be.","input":[{"role":"user","content":[{"type":"input_text","text":"Hi"}]},{"type":"reasoning"},
			{"type":"function_call","call_id":"c","name":"f","arguments":"{\"a\":1}"},{"type":"function_call_output","call_id":"c","output":"ok"}]}`},
		{`{` + tools + `,"messages":[{"role":"user","content":"Hi"}]}`,
			`{"tools":[{"name":"f","description":"d","input_schema":{}}],"messages":[{"role":"user","content":"Hi"}]}`,
			`{"tools":[{"type":"function","name":"f","description":"d","parameters":{}}],"input":[{"role":"user","content":"Hi"}]}`},
	} {
		var names [3]Key
		for i, c := range [][2]string{{"/chat/completions", tt.chat}, {"/messages", tt.messages}, {"/responses", tt.responses}} {
			names[i] = key(c[0], c[1])
		}
		if strings.Contains(tt.chat, "tools\":") { // their JSON differs, so the chat on another route is another conversation
			continue
		}
		if names[0] != names[1] || names[0] != names[2] {
			t.Errorf("the keys of %s differ", tt.chat)
		}
	}
	for _, body := range []string{`{"messages":[{"role":"user","content":[{"type":"image","source":{}}]}]}`, `{"messages":[{"role":"user"}]}`, `[]`} {
		if NewTurn("/messages", []byte(body)).savable {
			t.Errorf("%s can be saved", body)
		}
	}
}

// Two chats have the same key if their messages mean the same.
func TestKeysOfMessages(t *testing.T) {
	key := func(body string) Key {
		turn := NewTurn("/v1/chat/completions", []byte(body))
		if !turn.savable {
			return Key{}
		}
		return turn.marks[len(turn.marks)-1].Key
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
	for _, body := range []string{`{`, `{}`, `{"messages":[]}`, `{"messages":[{"role":"user"}],"cache_prompt":false}`} {
		if key(body) != (Key{}) {
			t.Errorf("%s has a key", body)
		}
	}
}
