package attack

import (
	"net/http"
	"testing"

	"reveille/testenv"
	"reveille/testenv/calls"
)

// TestUnknownKeys checks that no route but the free ones answers without a right key.
func TestUnknownKeys(t *testing.T) {
	s := testenv.Start(t, testenv.Spec{Models: calls.Catalogue{"m": "llm"}.YAML(calls.LocalHost), Args: []string{withKeys(t)}})
	fetched := newCanary(t)
	for _, path := range []string{"/v1/models", "/v1/load", "/v1/unload", "/unload", "/logs", "/metrics", "/v1/chat/completions", "/api/tags", "/upstream/m/" + fetched.URL} {
		for _, method := range []string{"GET", "POST"} {
			refused(t, method+" "+path+" without a key", call(t, method, s.URL+path, `{"model":"m"}`), http.StatusUnauthorized)
			refused(t, method+" "+path+" with a wrong key", call(t, method, s.URL+path, `{"model":"m"}`, bearer(inferKey+"x")), http.StatusUnauthorized)
		}
	}
	if a := call(t, "POST", s.URL+"/v1/chat/completions", calls.ChatBody("m", 1, false), bearer(inferKey)); !a.OK() {
		t.Errorf("with the right key: %v", a)
	}
	refused(t, "a load with an infer key", call(t, "POST", s.URL+"/v1/load", `{"model_name":"m"}`, bearer(inferKey)), http.StatusForbidden)
	resp, _, err := raw(t, s.URL, "GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer \r\nAuthorization: Bearer "+otherKey+"x\r\n\r\n")
	if err != nil || resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("two empty keys: %v %v", resp, err)
	}
}
