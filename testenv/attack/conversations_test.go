package attack

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"reveille/testenv"
	"reveille/testenv/calls"
)

// cached returns how many tokens of its prompt a response of llama-server took from a cache.
func cached(t *testing.T, a calls.Answer) int {
	t.Helper()
	type tokens struct {
		Cached int `json:"cached_tokens"`
	}
	var got struct {
		Usage struct {
			Details   *tokens `json:"prompt_tokens_details"`
			Inputs    *tokens `json:"input_tokens_details"`
			CacheRead *int    `json:"cache_read_input_tokens"`
		}
	}
	if err := json.Unmarshal(a.Body, &got); err != nil || !a.OK() {
		t.Errorf("%v, %v", a, err)
		return -1
	}
	switch u := got.Usage; {
	case u.Details != nil:
		return u.Details.Cached
	case u.Inputs != nil:
		return u.Inputs.Cached
	case u.CacheRead != nil:
		return *u.CacheRead
	}
	t.Errorf("no count of cached tokens: %v", a)
	return -1
}

// With conversations: key, no response reuses a token that another key's request computed: by any route, for requests
// that run at once, and after the conversations were saved and restored.
func TestConversationsByKey(t *testing.T) {
	testenv.Engines(t)
	s := testenv.Start(t, testenv.Spec{
		Models: `models:
  talker: {type: llm, conversations: key, recipe: llamacpp, checkpoint: .cache/models/gemma-3-270m-q4_k_m.gguf, device: cpu, options: {ctx_size: 4096, llamacpp_args: "-np 2 --swa-full"}}
  tiny: {type: llm, conversations: key, recipe: llamacpp, checkpoint: .cache/models/tiny-gemma.gguf, device: cpu, options: {ctx_size: 8192, llamacpp_args: "-np 3 --swa-full"}}
`, Args: []string{withKeys(t)},
	})
	ask := func(key, route, model, text, more string) int {
		t.Helper()
		body := fmt.Sprintf(`{"model":%q,"max_tokens":2,"temperature":0,"messages":[{"role":"user","content":%q}]%s}`, model, text, more)
		switch route {
		case "/v1/completions":
			body = fmt.Sprintf(`{"model":%q,"max_tokens":2,"temperature":0,"prompt":%q%s}`, model, text, more)
		case "/v1/responses":
			body = fmt.Sprintf(`{"model":%q,"max_output_tokens":16,"temperature":0,"input":%q%s}`, model, text, more)
		}
		return cached(t, call(t, "POST", s.URL+route, body, bearer(key)))
	}
	const template = 16 // tokens that every chat of a key begins with
	text := func(i int) string {
		return fmt.Sprintf("%d. ", i) + strings.Repeat(fmt.Sprintf("In the year %d the river rose. ", 1000+i), 10)
	}
	const chat = "/v1/chat/completions"
	for i, route := range []string{chat, "/v1/completions", "/v1/responses", "/v1/messages", chat} {
		more := ""
		if i == 4 {
			more = `,"n":2`
		}
		if n := ask(inferKey, route, "tiny", text(i), more); n > template {
			t.Errorf("%s: %d tokens of a new prompt came from the cache", route, n)
		}
		if n := ask(otherKey, route, "tiny", text(i), more); n > template {
			t.Errorf("%s: %d tokens came from another key's", route, n)
		}
		if n := ask(otherKey, route, "tiny", text(i), more); n < 60 {
			t.Errorf("%s: %d of a key's own tokens came from the cache", route, n)
		}
		if n := ask(inferKey, chat, "tiny", text(i), ""); n > template && route != chat && route != "/v1/responses" { // there it is the same chat
			t.Errorf("%s, then a chat: %d tokens came from the cache", route, n)
		}
	}

	// At once: each key sends each text once, so nothing but the template can be its own.
	var all sync.WaitGroup
	for _, key := range []string{inferKey, otherKey, ownerKey} {
		all.Go(func() {
			for _, i := range rand.Perm(4) {
				route, more := chat, ""
				switch rand.IntN(4) {
				case 0:
					route = "/v1/messages"
				case 1:
					more = `,"n":2`
				}
				if n := ask(key, route, "tiny", text(100+i), more); n > template {
					t.Errorf("at once, %s%s: %d tokens came from the cache", route, more, n)
				}
			}
		})
	}
	all.Wait()

	ask(inferKey, chat, "talker", text(1), "")
	for _, action := range []string{"save", "restore", "erase"} {
		if a := call(t, "POST", s.URL+"/upstream/talker/slots/0?action="+action, `{"filename":"x"}`, bearer(ownerKey)); a.Status != 400 {
			t.Errorf("a client's %s: %v", action, a)
		}
	}
	if a := call(t, "POST", s.URL+"/v1/unload", `{"model_name":"talker"}`, bearer(ownerKey)); !a.OK() {
		t.Fatal(a)
	}
	if n := ask(otherKey, chat, "talker", text(1), ""); n > template {
		t.Errorf("%d tokens came from another key's restored conversation", n)
	}
	if n := ask(inferKey, chat, "talker", text(1), ""); n < 60 {
		t.Errorf("%d tokens came from a key's own restored conversation", n)
	}
}
