package attack

import (
	"context"
	"encoding/json"
	"regexp"
	"testing"

	"reveille/testenv"
	"reveille/testenv/calls"
	"reveille/testenv/kit"
)

// TestOneKeyFillsTheQueue has one key send more requests than the engine is given at a time. The next place goes to the
// other key, although its request came last.
func TestOneKeyFillsTheQueue(t *testing.T) {
	const places, more = 512, 10 // of the stand-in
	models := calls.Catalogue{"m": "llm, " + calls.Options("--step")}
	s := testenv.Start(t, testenv.Spec{Models: models.YAML(calls.LocalHost), Args: []string{withKeys(t), "--admin-key=" + adminKey, "--max-conns-per-address=0"}})
	made := func(route string) func() int {
		return func() int {
			var st struct{ Calls map[string]int }
			_ = json.Unmarshal(call(t, "GET", s.URL+"/upstream/m/standin/stats", "", bearer(adminKey)).Body, &st)
			return st.Calls[route]
		}
	}
	reported := regexp.MustCompile(`(?m)^reveille_gateway_requests_open (\d+)$`)
	open := func(want string) {
		t.Helper()
		kit.Becomes(t, "open requests at the gateway", want, func() string {
			m := reported.FindSubmatch(call(t, "GET", s.URL+"/metrics", "", bearer(adminKey)).Body)
			if m == nil {
				return ""
			}
			return string(m[1])
		})
	}
	const chat, completions = "/v1/chat/completions", "/v1/completions"
	ctx, leaveAll := context.WithCancel(t.Context())
	defer leaveAll()
	first, leave := context.WithCancel(ctx)
	ask := func(ctx context.Context, key, path, body string) {
		go func() { callWithin(ctx, t, "POST", s.URL+path, body, bearer(key)) }()
	}
	flood := calls.ChatBody("m", 1, false)
	ask(first, inferKey, chat, flood)
	kit.Becomes(t, "the first request at the engine", 1, made("chat/completions"))
	for range places - 1 {
		ask(ctx, inferKey, chat, flood)
	}
	kit.Becomes(t, "requests at the engine", places, made("chat/completions"))
	for range more {
		ask(ctx, inferKey, chat, flood)
	}
	open("522")
	ask(ctx, otherKey, completions, `{"model":"m","max_tokens":1,"prompt":"hi"}`)
	open("523")
	leave()
	kit.Becomes(t, "requests of the other key at the engine", 1, made("completions"))
	if n := made("chat/completions")(); n != places {
		t.Errorf("the engine got %d requests of the first key before that of the other, want %d", n, places)
	}
}
