package scheduling

import (
	"fmt"
	"strings"
	"testing"
)

// chatBody is a body of a chat of some turns, with a first turn of its own.
func chatBody(name string, turns int) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, `{"model":"m0","temperature":0,"messages":[{"role":"system","content":"Be \"brief\"."},{"content":"%s","role":"user"}`, name)
	for i := 1; i < turns; i++ {
		fmt.Fprintf(&b, `,{"role":"assistant","content":"answer %d"},{"role":"user","content":"question %d of %s"}`, i, i, name)
	}
	b.WriteString(`],"stream":true}`)
	return []byte(b.String())
}

func TestBeginnings(t *testing.T) {
	seen := map[uint64]string{}
	for name, body := range map[string]string{
		"chat": string(chatBody("a", 1)), "another chat": string(chatBody("b", 1)),
		"prompt": `{"prompt":"once upon"}`, "another prompt": `{"prompt":"once"}`,
		"no user": `{"messages":[{"role":"system","content":"x"}]}`,
	} {
		key := prefixOf([]byte(body))
		if other, taken := seen[key]; taken || key == 0 {
			t.Errorf("%s has the beginning %d of %s", name, key, other)
		}
		seen[key] = name
	}
	first := prefixOf(chatBody("a", 1))
	for turns := 2; turns < 20; turns++ {
		if prefixOf(chatBody("a", turns)) != first {
			t.Errorf("after %d turns it is another conversation", turns)
		}
	}
	for _, body := range []string{`{"messages":[{"role":"user","content":[`, `{"messages":[{"role":"user","content":[{"type":`, `{"messages":[{"role":"user","content":[[[7`} {
		prefixOf([]byte(body)) // ends
	}
	for _, body := range []string{``, `{}`, `[]`, `{"input":"x"}`, `{"messages":[]}`, `{"messages":`, `{"messages":7}`, `{"messages":[[[`, "\x00", `{"x":{"messages":[{"role":"user"}]}}`} {
		if key := prefixOf([]byte(body)); key != 0 && body != `{"messages":[[[` {
			t.Errorf("%s has a beginning", body)
		}
	}
}

// All turns of a conversation go to one copy, the same one at every gateway, conversations spread over the copies, and no
// copy gets much more than its share.
func TestTurnsGoToOneCopy(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPool("a", "b", "c", "d")
		one, two := start(t, p, nil), start(t, p, nil)
		for _, h := range []string{"a", "b", "c", "d"} {
			p.loaded(h, "m0", 0)
		}
		home, count := map[string]string{}, map[string]int{}
		for i := range 400 {
			name := fmt.Sprint("chat ", i)
			r, ok := one.EndpointFor("m0", chatBody(name, 1))
			if !ok {
				t.Fatal("no endpoint")
			}
			home[name] = r.Host
			count[r.Host]++
			if r, _ := two.EndpointFor("m0", chatBody(name, 1)); r.Host != home[name] {
				t.Errorf("%s goes to %s at one gateway and to %s at another", name, home[name], r.Host)
			}
			if r, _ := one.EndpointFor("m0", chatBody(name, 5)); r.Host != home[name] {
				t.Errorf("%s moves from %s to %s", name, home[name], r.Host)
			}
		}
		for _, h := range []string{"a", "b", "c", "d"} {
			if count[h] < 60 || count[h] > 140 {
				t.Errorf("400 conversations spread as %v", count)
			}
		}
		same := chatBody("everybody's", 1)
		open := map[string]int{}
		for n := 1; n <= 200; n++ {
			r, _ := one.EndpointFor("m0", same)
			one.Begin(r, "m0")
			if open[r.Host]++; float64(open[r.Host]) > 1.25*float64(n)/4+1 {
				t.Fatalf("%d of %d requests are open at one of 4 copies", open[r.Host], n)
			}
		}
		p.mu.Lock()
		gone := home["chat 0"]
		delete(p.hosts[gone].Models, "m0")
		p.rev++
		p.mu.Unlock()
		moved := 0
		three := start(t, p, nil)
		for name, was := range home {
			r, _ := three.EndpointFor("m0", chatBody(name, 1))
			if was != gone && r.Host != was {
				moved++
			}
		}
		if moved > 0 {
			t.Errorf("%d conversations moved when a copy went that was not theirs", moved)
		}
		if r, ok := one.EndpointFor("m0", []byte(`{"input":"x"}`)); !ok || r.Host == "" {
			t.Error("a body without a beginning has no endpoint")
		}
		if _, ok := one.EndpointFor("none", same); ok {
			t.Error("an endpoint for a model that is not loaded")
		}
	})
}

func TestChoiceByBeginningDoesNotAllocate(t *testing.T) {
	g, body := several(t), chatBody("a", 10)
	if n := testing.AllocsPerRun(1000, func() { g.EndpointFor("m0", body) }); n != 0 {
		t.Errorf("%v allocations a request", n)
	}
}

func several(t testing.TB) *Gate {
	p := newPool("a", "b", "c", "d")
	for _, h := range []string{"a", "b", "c", "d"} {
		p.loaded(h, "m0", 0)
	}
	g := New(Config{Store: p, Mirror: mirrorOnly{p.copyLocked()}})
	t.Cleanup(g.Close)
	return g
}
