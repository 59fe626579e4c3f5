package system

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"reveille/testenv/calls"
	"reveille/testenv/kit"
	"reveille/testenv/worlds"
)

// A remote is a server of another owner, which its file turns on and off.
type remote struct {
	url, key, on string
	got          atomic.Int64 // requests to the model
}

func startRemote(t *testing.T) *remote {
	t.Helper()
	dir := t.TempDir()
	r := &remote{on: filepath.Join(dir, "on"), key: filepath.Join(dir, "key")}
	if err := os.WriteFile(r.key, []byte("remote-key"), 0o600); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		_, err := os.Stat(r.on)
		switch {
		case err != nil:
			w.WriteHeader(http.StatusServiceUnavailable)
		case req.Header.Get("Authorization") != "Bearer remote-key" || req.Method == http.MethodPost && !strings.Contains(string(body), `"model":"their/name"`):
			w.WriteHeader(http.StatusUnauthorized)
		case req.Method == http.MethodPost:
			r.got.Add(1)
			_, _ = io.WriteString(w, `{"id":"1","object":"chat.completion","created":1,"model":"their/name","choices":[{"index":0,"finish_reason":"stop",
				"message":{"role":"assistant","content":"hello"}}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}`)
		}
	}))
	t.Cleanup(server.Close)
	r.url = server.URL
	return r
}

func (r *remote) isOn() bool { _, err := os.Stat(r.on); return err == nil }

// entry is a model that the remote serves.
func (r *remote) entry() string {
	return fmt.Sprintf(`llm, recipe: upstream, checkpoint: "their/name", options: {url: %q, key_file: %q, wake: "touch %s", sleep: "rm %s"}`,
		r.url, r.key, r.on, r.on)
}

// TestUpstream: a model that another server serves turns that server on with its first request, gets the server's name
// of the model and key, and turns the server off when it is unloaded and when its runner is killed.
func TestUpstream(t *testing.T) {
	t.Parallel()
	r := startRemote(t)
	w := worlds.StartFleet(t, worlds.Fleet{
		Admin: true, Hosts: []worlds.Host{{Name: "h", Flags: []string{"--max-loaded-models=-1"}}}, Models: calls.Catalogue{"remote": r.entry()},
	})
	for _, off := range []struct {
		by string
		do func()
	}{
		{"unload", func() { w.Manage("/v1/unload", `{"model":"remote"}`) }},
		{"kill", func() { w.Runner().Kill() }},
	} {
		if a := w.Use("remote"); !strings.Contains(string(a.Body), `"content":"hello"`) || !r.isOn() {
			t.Fatalf("before %s: %v %s", off.by, a, a.Body)
		}
		off.do()
		kit.Becomes(t, "the server is on", false, r.isOn)
	}
}

// TestCloud: a model in a cloud serves the requests of keys that allow it while the owner's own model loads. Those of
// other keys never reach it, whatever they ask.
func TestCloud(t *testing.T) {
	t.Parallel()
	r := startRemote(t)
	file := filepath.Join(t.TempDir(), "keys")
	const allowed, other = "allowed-key", "other-key-123"
	if err := os.WriteFile(file, []byte(allowed+" infer cloud=yes\n"+other+" infer,manage\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w := worlds.StartFleet(t, worlds.Fleet{
		Admin: true, Args: []string{"--api-keys-file=" + file},
		Hosts: []worlds.Host{{Name: "h", Flags: []string{"--max-loaded-models=-1"}}},
		Models: calls.Catalogue{
			"cloud": r.entry() + ", cloud: true, aliases: [sky]",
			"own":   "llm, recipe: standin, device: cpu, fallback: [cloud], fallback_when: waking, options: {args: --load-time 3s}",
		},
	})
	ask := func(key, path, body string, header ...string) calls.Answer {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.URL+path, strings.NewReader(body))
		if err == nil {
			req.Header.Set("Authorization", "Bearer "+key)
			req.Header.Set("Content-Type", "application/json")
			if len(header) > 0 {
				req.Header.Set(header[0], header[1])
			}
		}
		return calls.Do(w.Client, req, err)
	}
	const messages = `"messages":[{"role":"user","content":"hi"}],"max_tokens":4`
	for _, name := range []string{"cloud", "sky", "CLOUD", "cloud:latest"} {
		for path, body := range map[string]string{
			"/v1/chat/completions": messages, "/v1/messages": messages, "/api/chat": messages, "/v1/responses": `"input":"hi"`,
			"/v1/completions": `"prompt":"hi"`, "/v1/load": `"save_options":false`, "/upstream/" + name + "/v1/chat/completions": messages,
		} {
			if a := ask(other, path, fmt.Sprintf(`{"model":%q,%s}`, name, body)); a.Status != http.StatusForbidden && a.Status != http.StatusNotFound {
				t.Errorf("%s of %s for a key without cloud=yes: %v", path, name, a)
			}
		}
	}
	if r.isOn() {
		t.Error("a key without cloud=yes turned the server on")
	}
	if a := ask(other, "/v1/chat/completions", `{"model":"own",`+messages+`}`, "x-cold-wait", "fallback"); !a.OK() || a.Header.Get("x-model") != "own" {
		t.Errorf("the owner's own model for a key without cloud=yes: %v %v", a, a.Header)
	}
	if n := r.got.Load(); n != 0 {
		t.Fatalf("%d requests of a key without cloud=yes left for the cloud", n)
	}
	w.Manage("/v1/unload", `{"model":"own"}`)
	if a := ask(allowed, "/v1/chat/completions", `{"model":"own",`+messages+`}`); !a.OK() || a.Header.Get("x-model") != "cloud" || r.got.Load() != 1 {
		t.Errorf("a key with cloud=yes while the own model is not loaded: %v %v", a, a.Header)
	}
	kit.Becomes(t, "the own model is loaded", true, func() bool { return slices.Contains(w.Loaded(), "own") })
	if a := ask(allowed, "/v1/chat/completions", `{"model":"own",`+messages+`}`); !a.OK() || a.Header.Get("x-model") != "own" || r.got.Load() != 1 {
		t.Errorf("a key with cloud=yes after the own model has loaded: %v %v", a, a.Header)
	}
}
