package httpapi

import (
	"bufio"
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"reveille/gateway/keys"
	"reveille/gateway/quota"
	"reveille/gateway/ui"
	"reveille/testenv/kit"
)

func TestPageFiles(t *testing.T) {
	s := newStage(t)
	if r := s.ask("GET", "/", "", "Accept: text/html,application/xhtml+xml"); !strings.Contains(r.text, "<title>Reveille</title>") { // redirects are followed
		t.Errorf("/ for a browser: %d %s", r.status, r.text)
	}
	if r := s.ask("GET", "/", "", "Accept: */*"); r.text != "Ollama is running" {
		t.Errorf("/ for Ollama's clients: %s", r.text)
	}
	for path, kind := range map[string]string{"/ui": "text/html", "/ui/": "text/html", "/ui/app.js": "text/javascript", "/ui/style.css": "text/css", "/ui/icon.svg": "image/svg+xml"} {
		r := s.ask("GET", path, "")
		if r.status != 200 || !strings.HasPrefix(r.header.Get("Content-Type"), kind) || r.header.Get("Content-Security-Policy") != ui.Policy ||
			r.header.Get("X-Content-Type-Options") != "nosniff" || r.header.Get("Referrer-Policy") != "no-referrer" {
			t.Errorf("%s: %d %v", path, r.status, r.header)
		}
		if again := s.ask("GET", path, "", "If-None-Match: "+r.header.Get("ETag")); again.status != 304 || again.text != "" {
			t.Errorf("%s again: %d", path, again.status)
		}
	}
	for _, path := range []string{"/ui/none.js", "/ui/../keys.go", "/ui/%2e%2e%2fui.go", "/ui/static/app.js"} {
		if r := s.ask("GET", path, ""); r.status != 404 {
			t.Errorf("%s: %d", path, r.status)
		}
	}
}

// pageStage is a gateway with a key file, and a way to change it.
func pageStage(t *testing.T) (s *stage, change func(text string)) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keys")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("infer-key infer\nmanage-key infer,manage\n")
	set, err := keys.Open(path, "", quota.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	s = newStage(t, func(s *stage, c *Config) { c.Keys = set })
	return s, func(text string) { write(text); set.Reload(s.server.log) }
}

// enter begins a session and returns the heads of its requests: the cookie, the token.
func (s *stage) enter(key string) (cookie, token string) {
	s.t.Helper()
	r := s.ask("POST", "/ui/session", `{"key":"`+key+`"}`, "Sec-Fetch-Site: same-origin")
	value, _, _ := strings.Cut(r.header.Get("Set-Cookie"), ";")
	if r.status != 200 || value == "" {
		s.t.Fatalf("login: %d %s", r.status, r.text)
	}
	token, _ = r.json["token"].(string)
	return "Cookie: " + value, ui.HeaderToken + ": " + token
}

func TestPageSession(t *testing.T) {
	s, write := pageStage(t)
	if r := s.ask("GET", "/ui/session", ""); r.status != 200 || r.json["keyed"] != true || r.json["key"] != false || r.json["manage"] != false {
		t.Errorf("before a login: %s", r.text)
	}
	if r := s.ask("GET", "/ui/stream", ""); r.status != 401 {
		t.Errorf("the stream without a key: %d", r.status)
	}
	if r := s.ask("POST", "/ui/session", `{"key":"nobody's"}`); r.status != 401 || r.header.Get("Set-Cookie") != "" {
		t.Errorf("an unknown key: %d", r.status)
	}
	r := s.ask("POST", "/ui/session", `{"key":" manage-key\n"}`, "Origin: https://"+s.addr)
	set := r.header.Get("Set-Cookie")
	for _, want := range []string{"; HttpOnly", "; SameSite=Strict", "; path=/", "; secure", "; max-age=43200"} {
		if !strings.Contains(strings.ToLower(set), strings.ToLower(want)) {
			t.Errorf("the cookie lacks %q: %s", want, set)
		}
	}
	if strings.Contains(set+r.text, "manage-key") {
		t.Error("the session holds the key")
	}
	if r := s.ask("POST", "/ui/session", `{"key":"manage-key"}`, "Origin: http://"+s.addr); strings.Contains(r.header.Get("Set-Cookie"), "secure") {
		t.Error("without TLS a browser would drop the cookie")
	}

	cookie, token := s.enter("manage-key")
	for what, c := range map[string]struct {
		status int
		head   []string
	}{
		"the page":                    {200, []string{cookie, token}},
		"no token":                    {401, []string{cookie}},
		"another token":               {401, []string{cookie, ui.HeaderToken + ": 00"}},
		"an empty token":              {401, []string{cookie, ui.HeaderToken + ": "}},
		"no cookie":                   {401, []string{token}},
		"another page of the machine": {401, []string{cookie, token, "Origin: http://localhost:3000"}},
		"a page of the same site":     {403, []string{cookie, token, "Sec-Fetch-Site: same-site"}},
		"a forged cookie":             {401, []string{cookie + "A", token}},
		"a wrong key besides it":      {200, []string{cookie, token, "x-api-key: nobody's"}},
	} {
		if r := s.ask("POST", "/internal/pin", `{"model_name":"chat","pinned":true}`, c.head...); r.status != c.status {
			t.Errorf("%s: %d %s, want %d", what, r.status, r.text, c.status)
		}
	}
	reader, readerToken := s.enter("infer-key")
	if r := s.ask("POST", "/v1/unload", `{}`, reader, readerToken); r.status != 403 || r.code() != "insufficient_scope" {
		t.Errorf("an action beyond the key's scope: %d %s", r.status, r.text)
	}
	for method, body := range map[string]string{"GET": "", "POST": `{"key":"manage-key"}`, "DELETE": ""} {
		if r := s.ask(method, "/ui/session", body, cookie, "Origin: http://localhost:3000"); r.status != 403 || r.header.Get("Set-Cookie") != "" {
			t.Errorf("%s of a session by another page: %d", method, r.status)
		}
	}
	if r := s.ask("GET", "/ui/session", "", cookie); r.json["token"] != strings.TrimPrefix(token, ui.HeaderToken+": ") || r.json["logs"] != true {
		t.Errorf("the page reads its token: %s", r.text)
	}
	if r := s.ask("DELETE", "/ui/session", "", cookie); !strings.Contains(r.header.Get("Set-Cookie"), "=;") {
		t.Errorf("logout: %s", r.header.Get("Set-Cookie"))
	}

	write("infer-key infer\n") // the other key is withdrawn
	if r := s.ask("GET", "/v1/models", "", cookie, token); r.status != 401 {
		t.Errorf("a session of a withdrawn key: %d", r.status)
	}
	if r := s.ask("GET", "/v1/models", "", reader, readerToken); r.status != 200 {
		t.Errorf("a session of another key: %d", r.status)
	}
}

// page opens the page's stream.
func (s *stage) page(ctx context.Context, head ...string) (*http.Response, *bufio.Scanner) {
	s.t.Helper()
	resp := s.open(ctx, "GET", "/ui/stream", "", head...)
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 4<<20)
	return resp, lines
}

func TestPageStream(t *testing.T) {
	s := newStage(t).warm("chat")
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	for i := range maxViewers {
		resp, lines := s.page(ctx)
		if resp.StatusCode != 200 || !lines.Scan() || lines.Text() != "event: pool" {
			t.Fatalf("viewer %d: %d %q", i, resp.StatusCode, lines.Text())
		}
		if lines.Scan(); i == 0 && !strings.Contains(lines.Text(), `"id":"chat","state":"loaded"`) {
			t.Error(lines.Text())
		}
		defer resp.Body.Close()
	}
	if r := s.ask("GET", "/ui/stream", ""); r.status != 503 || r.code() != "overloaded" {
		t.Errorf("one viewer too many: %d %s", r.status, r.text)
	}
	if r := s.ask("GET", "/v1/models", ""); r.status != 200 {
		t.Errorf("others are served: %d", r.status)
	}
	leave()
	again, stop := context.WithTimeout(t.Context(), kit.Patience)
	defer stop()
	kit.Eventually(t, "room for a viewer", func() bool {
		resp, _ := s.page(again)
		defer resp.Body.Close()
		return resp.StatusCode == 200
	})
}

// A key that is withdrawn takes its open pages with it, at the next news at the latest.
func TestPageOfAWithdrawnKey(t *testing.T) {
	s, write := pageStage(t)
	cookie, token := s.enter("infer-key")
	resp, lines := s.page(t.Context(), cookie, token)
	defer resp.Body.Close()
	if !lines.Scan() {
		t.Fatal("no event", resp.StatusCode)
	}
	write("manage-key infer,manage\n")
	s.ask("POST", "/internal/pin", `{"model_name":"chat","pinned":true}`, "x-api-key: manage-key")
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for lines.Scan() {
			if strings.Contains(lines.Text(), "notes") {
				t.Error("a key without manage sees notes")
			}
		}
	}()
	select {
	case <-ended:
	case <-time.After(kit.Patience):
		t.Fatal("the stream goes on")
	}
}

// A key that may use some models sees nothing that shows all of them.
func TestPoolWideDataNeedsAKeyForAllModels(t *testing.T) {
	s, change := pageStage(t)
	change("infer-key infer\nlimited-key infer,manage models=m\n")
	for _, path := range []string{"/ui/stream", "/metrics", "/v1/metrics", "/v1/stats", "/internal/config", "/internal/aliases", "/v1/internal/aliases", "/logs", "/logs/stream", "/logs/stream/n", "/internal/conversations"} {
		if r := s.ask("GET", path, "", "Authorization: Bearer limited-key"); r.status != 403 {
			t.Errorf("%s with a key for one model: %d %s", path, r.status, r.text)
		}
	}
	for _, path := range []string{"/internal/conversations", "/internal/conversations/n", "/internal/conversations/gone"} {
		if r := s.ask("DELETE", path, "", "Authorization: Bearer limited-key"); r.status != 403 && r.status != 404 {
			t.Errorf("%s is forgotten by a key for one model: %d %s", path, r.status, r.text)
		}
	}
	for _, path := range []string{"/metrics", "/v1/stats", "/internal/aliases"} {
		if r := s.ask("GET", path, "", "Authorization: Bearer infer-key"); r.status != 200 {
			t.Errorf("%s with a key for all models: %d %s", path, r.status, r.text)
		}
	}
	if r := s.ask("GET", "/v1/models", "", "Authorization: Bearer limited-key"); r.status != 200 {
		t.Errorf("the listing of its models: %d %s", r.status, r.text)
	}
}
