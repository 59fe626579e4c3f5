package system

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"reveille/testenv/calls"
	"reveille/testenv/worlds"
)

// TestBackground: requests in the background load nothing on any route, and do not delay a person's request that needs
// their model's place.
func TestBackground(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "keys")
	const person, background = "persons-key", "background-key"
	if err := os.WriteFile(file, []byte(person+" infer,manage\n"+background+" infer,manage priority=background\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w := worlds.StartFleet(t, worlds.Fleet{
		Admin: true, Args: []string{"--api-keys-file=" + file}, Hosts: []worlds.Host{{Name: "h"}},
		Models: calls.Catalogue{
			"slow": "llm, options: {args: --token-delay 100ms --tokens 600}, aliases: [snail]", "quick": "llm, fallback: [slow]",
			"vec": "embedding", "rank": "reranking",
		},
	})
	ask := func(key, path, body string, header ...string) calls.Answer {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.URL+path, strings.NewReader(body))
		if err == nil {
			req.Header.Set("Authorization", "Bearer "+key)
			for i := 0; i < len(header); i += 2 {
				req.Header.Set(header[i], header[i+1])
			}
		}
		return calls.Do(w.Client, req, err)
	}
	const messages = `"messages":[{"role":"user","content":"hi"}],"max_tokens":4`
	for _, wait := range []string{"", "block", "fail", "fallback"} {
		for _, name := range []string{"slow", "snail"} {
			for path, body := range map[string]string{
				"/v1/chat/completions": messages, "/v1/messages": messages, "/api/chat": messages, "/v1/responses": `"input":"hi"`,
				"/v1/completions": `"prompt":"hi"`, "/api/generate": `"prompt":""`, "/upstream/" + name + "/v1/chat/completions": messages, "/tokenize": `"content":"hi"`,
			} {
				a := ask(background, path, fmt.Sprintf(`{"model":%q,%s}`, name, body), "x-cold-wait", wait, "x-wait-timeout", "0.05")
				if a.Status != http.StatusServiceUnavailable && a.Status != 529 || !strings.Contains(string(a.Body), "in the background") {
					t.Errorf("%s of %s, x-cold-wait %q: %v %s", path, name, wait, a, a.Body)
				}
			}
		}
		for path, body := range map[string]string{"/v1/embeddings": `{"model":"vec","input":"hi"}`, "/v1/rerank": `{"model":"rank","query":"a","documents":["b"]}`} {
			if a := ask(background, path, body, "x-cold-wait", wait, "x-wait-timeout", "0.05"); a.Status != http.StatusServiceUnavailable {
				t.Errorf("%s, x-cold-wait %q: %v %s", path, wait, a, a.Body)
			}
		}
	}
	if loaded := w.Loaded(); len(loaded) > 0 {
		t.Fatalf("requests in the background loaded %v", loaded)
	}

	if a := ask(person, "/v1/load", `{"model_name":"slow"}`); !a.OK() {
		t.Fatal(a)
	}
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, w.URL+"/v1/chat/completions",
		strings.NewReader(`{"model":"slow","stream":true,"messages":[{"role":"user","content":"hi"}]}`))
	req.Header.Set("Authorization", "Bearer "+background)
	title, err := w.Client.Do(req) // a minute
	if err != nil {
		t.Fatal(err)
	}
	defer title.Body.Close()
	lines := bufio.NewReader(title.Body)
	if first, err := lines.ReadString('\n'); err != nil || !strings.HasPrefix(first, "data: ") {
		t.Fatalf("%q, %v", first, err)
	}
	began := time.Now()
	if a := ask(person, "/v1/chat/completions", `{"model":"quick",`+messages+`}`); !a.OK() || time.Since(began) > 30*time.Second {
		t.Errorf("a person's request for the same place: %v after %v", a, time.Since(began))
	}
	if rest, err := io.ReadAll(lines); err != nil || !strings.Contains(string(rest), "error") || strings.Contains(string(rest), "[DONE]") {
		t.Errorf("the request in the background ended with %v: %s", err, rest)
	}
	if loaded := w.Loaded(); !slices.Equal(loaded, []string{"quick"}) {
		t.Errorf("loaded: %v", loaded)
	}
	if a := ask(background, "/v1/chat/completions", `{"model":"slow",`+messages+`}`, "x-cold-wait", "fallback"); !a.OK() || a.Header.Get("x-model") != "quick" {
		t.Errorf("any loaded model: %v %v", a, a.Header)
	}
}
