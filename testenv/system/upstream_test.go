package system

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"reveille/testenv/calls"
	"reveille/testenv/kit"
	"reveille/testenv/worlds"
)

// TestUpstream: a model that another server serves turns that server on with its first request, gets the server's name
// of the model and key, and turns the server off when it is unloaded and when its runner is killed.
func TestUpstream(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	on, key := filepath.Join(dir, "on"), filepath.Join(dir, "key")
	if err := os.WriteFile(key, []byte("remote-key"), 0o600); err != nil {
		t.Fatal(err)
	}
	remote := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, err := os.Stat(on)
		switch {
		case err != nil:
			w.WriteHeader(http.StatusServiceUnavailable)
		case r.Header.Get("Authorization") != "Bearer remote-key" || r.Method == http.MethodPost && !strings.Contains(string(body), `"model":"their/name"`):
			w.WriteHeader(http.StatusUnauthorized)
		case r.Method == http.MethodPost:
			_, _ = io.WriteString(w, `{"id":"1","object":"chat.completion","created":1,"model":"their/name","choices":[{"index":0,"finish_reason":"stop",
				"message":{"role":"assistant","content":"hello"}}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}`)
		}
	}))
	defer remote.Close()
	w := worlds.StartFleet(t, worlds.Fleet{Admin: true, Hosts: []worlds.Host{{Name: "h", Flags: []string{"--max-loaded-models=-1"}}}, Models: calls.Catalogue{
		"remote": fmt.Sprintf(`llm, recipe: upstream, checkpoint: "their/name", options: {url: %q, key_file: %q, wake: "touch %s", sleep: "rm %s"}`,
			remote.URL, key, on, on),
	}})
	isOn := func() bool { _, err := os.Stat(on); return err == nil }
	for _, off := range []struct {
		by string
		do func()
	}{
		{"unload", func() { w.Manage("/v1/unload", `{"model":"remote"}`) }},
		{"kill", func() { w.Runner().Kill() }},
	} {
		if a := w.Use("remote"); !strings.Contains(string(a.Body), `"content":"hello"`) || !isOn() {
			t.Fatalf("before %s: %v %s", off.by, a, a.Body)
		}
		off.do()
		kit.Becomes(t, "the server is on", false, isOn)
	}
}
