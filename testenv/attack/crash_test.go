package attack

import (
	"encoding/json"
	"strings"
	"testing"

	"reveille/testenv"
	"reveille/testenv/calls"
)

// TestCrashes has one key crash the engine that another key uses. The other's requests are repeated and answered; after
// the second crash the first key is refused constrained output, and nothing else.
func TestCrashes(t *testing.T) {
	const chat, bothKey = "/v1/chat/completions", "attack-both-0123456789abcdef0123456789"
	models := calls.Catalogue{"m": "llm, " + calls.Options("--crash-on boom --step")}
	s := testenv.Start(t, testenv.Spec{Models: models.YAML(calls.LocalHost), Args: []string{withKeys(t), "--admin-key=" + bothKey}})
	plain := calls.ChatBody("m", 1, false)
	live := `{"model":"m","stream":true,"max_tokens":1,"prompt":"hi"}` // no byte before the first token
	schema := func(name string) string {
		return plain[:len(plain)-1] + `,"response_format":{"type":"json_schema","json_schema":{"name":"` + name + `","schema":{"type":"string"}}}}`
	}
	step := func() {
		t.Helper()
		if a := call(t, "POST", s.URL+"/upstream/m/standin/step", "{}", bearer(bothKey)); a.Err != nil || a.Status >= 300 {
			t.Errorf("step: %v", a)
		}
	}
	open := func(want int) {
		t.Helper()
		calls.Eventually(t, limit, "open requests at the engine", want, func() int {
			a := call(t, "GET", s.URL+"/upstream/m/standin/stats", "", bearer(bothKey))
			return inFlight(a.Body)
		})
	}
	answers := make(chan calls.Answer)
	for crash := range 2 {
		for path, body := range map[string]string{chat: plain, "/v1/completions": live} {
			go func() { answers <- call(t, "POST", s.URL+path, body, bearer(otherKey)) }()
		}
		open(2)
		refused(t, "the request that crashes the engine", call(t, "POST", s.URL+chat, schema("boom"), bearer(inferKey)), 502)
		open(2)
		step()
		step()
		for range 2 {
			if a := <-answers; !a.OK() {
				t.Errorf("crash %d, a request of the other key: %v", crash+1, a)
			}
		}
	}
	step()
	step()
	third := call(t, "POST", s.URL+chat, schema("fine"), bearer(inferKey))
	refused(t, "a constrained request after two crashes", third, 429)
	if third.Code() != "rate_limit_exceeded" || third.RetryAfter() < 1 || third.RetryAfter() > 60 || !strings.Contains(third.Error().Message, "schema") {
		t.Errorf("a constrained request after two crashes: %v", third)
	}
	if a := call(t, "POST", s.URL+chat, plain, bearer(inferKey)); !a.OK() {
		t.Errorf("a plain request of the same key: %v", a)
	}
	if a := call(t, "POST", s.URL+chat, schema("fine"), bearer(otherKey)); !a.OK() {
		t.Errorf("a constrained request of the other key: %v", a)
	}
}

// inFlight is what the stand-in's statistics say of open requests, -1 where there are none.
func inFlight(stats []byte) int {
	st := struct {
		InFlight int `json:"in_flight"`
	}{-1}
	_ = json.Unmarshal(stats, &st)
	return st.InFlight
}
