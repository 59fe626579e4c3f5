package attack

import (
	"strings"
	"testing"

	"reveille/testenv"
	"reveille/testenv/calls"
)

// TestCrashes has one key crash an engine with two requests. After the second it is refused the model; other models and
// other keys are served.
func TestCrashes(t *testing.T) {
	const chat = "/v1/chat/completions"
	models := calls.Catalogue{"m": "llm, " + calls.Options("--crash-on boom"), "other": "llm"}
	s := testenv.Start(t, testenv.Spec{Models: models.YAML(calls.LocalHost), Args: []string{withKeys(t)}})
	boom := strings.Replace(calls.ChatBody("m", 1, false), "hi", "boom", 1)
	refused(t, "a request that crashes two engines", call(t, "POST", s.URL+chat, boom, bearer(inferKey)), 502)
	again := call(t, "POST", s.URL+chat, boom, bearer(inferKey))
	refused(t, "another such request", again, 429)
	if again.Code() != "rate_limit_exceeded" || again.RetryAfter() < 1 {
		t.Errorf("another such request: %v", again)
	}
	refused(t, "a harmless request", call(t, "POST", s.URL+chat, calls.ChatBody("m", 1, false), bearer(inferKey)), 429)
	for key, model := range map[string]string{inferKey: "other", otherKey: "m"} {
		if a := call(t, "POST", s.URL+chat, calls.ChatBody(model, 1, false), bearer(key)); !a.OK() {
			t.Errorf("model %s: %v", model, a)
		}
	}
}

// TestHangs has a request hang an engine whose health path answers. The engine is killed, and the next request served.
func TestHangs(t *testing.T) {
	const chat = "/v1/chat/completions"
	models := calls.Catalogue{"m": "llm, " + calls.Options("--hang-on boom")}
	s := testenv.Start(t, testenv.Spec{Models: models.YAML(calls.LocalHost), Args: []string{withKeys(t), "--first-byte=2s"}})
	hang := strings.Replace(calls.ChatBody("m", 1, false), "hi", "boom", 1)
	if a := call(t, "POST", s.URL+chat, hang, bearer(inferKey)); a.Err != nil || a.Status < 500 {
		t.Errorf("a request that hangs the engine: %v", a)
	}
	if a := call(t, "POST", s.URL+chat, calls.ChatBody("m", 1, false), bearer(otherKey)); !a.OK() {
		t.Errorf("the next request: %v", a)
	}
}
