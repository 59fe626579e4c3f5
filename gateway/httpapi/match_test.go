package httpapi

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"reveille/gateway/api"
	"reveille/infra/state"
)

var prefixes = []string{"/v1", "/v0", "/api/v1", "/api/v0"}

// A route lists each key of its body once, at most api.MaxKeys in all. Only a route that runs a model requires a type.
func TestRouteTable(t *testing.T) {
	for _, r := range Routes() {
		keys := slices.Sorted(slices.Values(r.Keys()))
		if len(keys) > api.MaxKeys || len(slices.Compact(keys)) != len(r.Keys()) {
			t.Errorf("%s has the keys %v", r.Name, r.Keys())
		}
		if r.Type != "" && (!r.Inference || !r.Type.Valid() || r.Scope != api.ScopeInfer) {
			t.Errorf("%s: type %q, scope %d, inference %v", r.Name, r.Type, r.Scope, r.Inference)
		}
	}
}

// TestRestrictedKeys sends every route a key that may use some models only. The routes that are not known to concern just
// these models refuse it.
func TestRestrictedKeys(t *testing.T) {
	open := map[string]bool{}
	for name := range strings.FieldsSeq("root live ready health_plain openapi health load unload pull delete options_get options_set options_delete " +
		"system_info pin conversations_forget ui ui_file ui_session ui_login ui_logout models model chat completions responses response " +
		"response_items response_delete file_create file_list file_get file_content file_delete batch_create batch_list batch_get batch_cancel message_batch_create message_batch_list message_batch_get message_batch_cancel message_batch_delete message_batch_results input_tokens embeddings transcriptions translations realtime speech image_generations image_edits " +
		"image_variations tokenize detokenize apply_template messages count_tokens tei_embed tei_info cohere_embed rerank ollama_version " +
		"ollama_tags ollama_ps ollama_show ollama_chat ollama_generate ollama_embed ollama_embeddings ollama_pull ollama_delete running upstream") {
		open[name] = true
	}
	s := newStage(t, func(_ *stage, c *Config) {
		c.Keys = keyFile(t, "any-model infer,manage\nlimited-key infer,manage models=chat\n")
	}).warm("spare")
	for _, r := range Routes() {
		method := strings.Replace(r.Method, "ANY", "POST", 1)
		path := strings.ReplaceAll(r.Path, "{id}", "spare")
		if r.Mount&api.Bare == 0 {
			path = "/v1" + path
		}
		body := `{"model":"spare","model_name":"spare","pinned":true,"max_tokens":1,"messages":[{"role":"user","content":"x"}],"prompt":"x","input":"x",` +
			`"inputs":"x","texts":["x"],"content":"x","tokens":[1],"query":"x","documents":["x"],"voice":"x","alias":"x","target":"spare","grant":"infer x",` +
			`"digest":"` + strings.Repeat("0", 64) + `","key":"limited-key"}`
		got := s.ask(method, path, body, "Authorization: Bearer limited-key")
		closed := strings.Contains(got.text, "restricted to certain models")
		if closed != !open[r.Name] || got.status < 400 && strings.Contains(got.text, "spare") {
			t.Errorf("%s %s: %d %.300s", method, path, got.status, got.text)
		}
	}
	if r := s.ask("POST", "/v1/unload", "", "Authorization: Bearer limited-key"); r.status != 403 {
		t.Errorf("unloading all models: %d %s", r.status, r.text)
	}
}

// A key cannot grant more than it has.
func TestGrants(t *testing.T) {
	s := newStage(t, func(_ *stage, c *Config) {
		c.Keys = keyFile(t, "both-scopes infer,manage\nmanage-key manage\nexpires-key infer,manage expires=2090-01-01\nlimited-key infer,manage requests=5/m\n")
	})
	for i, c := range []struct {
		key, grant string
		status     int
	}{{"both-scopes", "infer,manage", 200}, {"manage-key", "infer", 403}, {"manage-key", "manage", 200}, {"expires-key", "infer", 403},
		{"limited-key", "infer", 403}, {"both-scopes", "infer priority=high", 403}, {"both-scopes", "infer priority=low", 200}} {
		body := fmt.Sprintf(`{"digest":"%064d","grant":%q}`, i, c.grant)
		if r := s.ask("POST", "/internal/keys", body, "Authorization: Bearer "+c.key); r.status != c.status {
			t.Errorf("%+v: %d %s", c, r.status, r.text)
		}
	}
}

// A restricted key learns no name of another model.
func TestRestrictedKeysDoNotSeeOtherModels(t *testing.T) {
	s := newStage(t, func(_ *stage, c *Config) { c.Keys = keyFile(t, "limited-key infer models=chat\n") })
	if err := s.store.Set(t.Context(), state.Aliases, "late", "spare"); err != nil {
		t.Fatal(err)
	}
	s.until("the alias is known", func() bool { return s.server.registry.IsName("late") })
	for _, body := range []string{`{"model":"late","input":"x"}`, `{"model":"SAME","input":"x"}`, `{"input":"x"}`} { // an alias, an ambiguous name, the default
		r := s.ask("POST", "/v1/embeddings", body, "Authorization: Bearer limited-key")
		if r.status != 403 || regexp.MustCompile("spare|same|vec").MatchString(r.text) {
			t.Errorf("%s: %d %s", body, r.status, r.text)
		}
	}
	if r := s.ask("GET", "/info", "", "Authorization: Bearer limited-key"); r.status != 403 || strings.Contains(r.text, "vec") {
		t.Errorf("info: %d %s", r.status, r.text)
	}
	for outcome, status := range map[*state.Outcome]int{
		{Fields: map[string]string{"evicted": "spare,chat"}}:                                                                             200,
		{Failed: true, Fields: map[string]string{"code": "slots_pinned_error", "message": "all slots are held by pinned models: spare"}}: 503,
	} {
		s.loading(func(string) state.Outcome { return *outcome })
		r := s.ask("POST", chatPath, chatBody, "Authorization: Bearer limited-key")
		if r.status != status || strings.Contains(r.text+r.header.Get("X-Evicted"), "spare") {
			t.Errorf("%d %v %s", r.status, r.header, r.text)
		}
		_ = s.store.DropModel(t.Context(), "here", s.gen, "chat", "test", false)
		s.until("chat is gone", func() bool { _, there := s.gate.Endpoint("chat"); return !there })
	}
}

func TestMatchRefusals(t *testing.T) {
	tests := []struct {
		method, path string
		allow        string
		dialect      api.Dialect
		status       int // 0 for a route
		head         bool
	}{
		{"GET", "/v1/chat/completions", "POST, OPTIONS", api.OpenAI, 405, false},
		{"HEAD", "/v1/chat/completions", "POST, OPTIONS", api.OpenAI, 405, true},
		{"PUT", "/v1/messages", "POST, OPTIONS", api.Anthropic, 405, false},
		{"POST", "/v1/models", "GET, HEAD, OPTIONS", api.OpenAI, 405, false},
		{"GET", "/v1/models/register", "POST, OPTIONS", api.Lemonade, 405, false},
		{"PUT", "/v1/models/m/options", "GET, HEAD, POST, DELETE, OPTIONS", api.Lemonade, 405, false},
		{"DELETE", "/v1/unload", "GET, HEAD, POST, OPTIONS", api.Lemonade, 405, false},
		{"GET", "/api/chat", "POST, OPTIONS", api.Ollama, 405, false},
		{"GET", "/api/v1/load", "POST, OPTIONS", api.Lemonade, 405, false},
		{"get", "/v1/models", "GET, HEAD, OPTIONS", api.OpenAI, 405, false},

		{"POST", "/chat/completions", "", api.OpenAI, 404, false},
		{"POST", "/v2/chat", "", api.OpenAI, 404, false},
		{"POST", "/v1/messages/count", "", api.Anthropic, 404, false},
		{"GET", "/api/chat/x", "", api.OpenAI, 404, false},
		{"GET", "/api/nothing", "", api.OpenAI, 404, false},
		{"GET", "/v1/internal/nothing", "", api.Lemonade, 404, false},
		{"GET", "/internal/nothing", "", api.Lemonade, 404, false},
		{"GET", "/v1/responses/a%zz", "", api.OpenAI, 404, false},
		{"POST", "/v1/responses/resp_1", "GET, HEAD, DELETE, OPTIONS", api.Responses, 405, false},
		{"GET", "", "", api.OpenAI, 404, false},
		{"GET", "/v1", "", api.OpenAI, 404, false},
		{"GET", "/v1/", "", api.OpenAI, 404, false},
		{"GET", "/v1//models", "", api.OpenAI, 404, false},
		{"GET", "/upstream", "", api.OpenAI, 404, false},
		{"GET", "/upstream/", "", api.OpenAI, 404, false},
		{"GET", "/v1/models/a%zz", "", api.OpenAI, 404, false},
		{"GET", "/models/m", "", api.OpenAI, 404, false},

		{"HEAD", "/v1/models", "", api.OpenAI, 0, true},
		{"HEAD", "/health", "", api.Lemonade, 0, true},
		{"HEAD", "/v1/models/m", "", api.OpenAI, 0, true},
	}
	for _, tt := range tests {
		h := router.Match(tt.method, tt.path)
		status := 0
		if e := h.Err(); e != nil {
			status = e.Status
		}
		if h.Allow != tt.allow || h.Dialect != tt.dialect || status != tt.status || h.Head != tt.head {
			t.Errorf("%s %s: %+v, status %d", tt.method, tt.path, h, status)
		}
	}
}

func TestUnknownPaths(t *testing.T) {
	for _, path := range []string{"/nothing", "/v1", "/" + strings.Repeat("/", 5000)} {
		e := router.Match("POST", path).Err()
		if e == nil || e.Status != 404 || len(e.Message) > 200 || !strings.HasPrefix(e.Message, "The path '"+path[:min(len(path), 90)]) {
			t.Errorf("%.100s: %v", path, e)
		}
	}
}

func TestSplitUpstream(t *testing.T) {
	known := func(name string) bool {
		switch name {
		case "m", "org/m", "org/m:q4", "a", "a/b", "p/org/x":
			return true
		}
		return false
	}
	tests := []struct {
		tail, id, rest string
		ok             bool
	}{
		{"m", "m", "", true},
		{"m/", "m", "/", true},
		{"m/v1/chat%2F", "m", "/v1/chat%2F", true},
		{"org/m/health", "org/m", "/health", true},
		{"org%2Fm/health", "org/m", "/health", true},
		{"org/m:q4", "org/m:q4", "", true},
		{"a/b/c", "a/b", "/c", true},
		{"a/c", "a", "/c", true},
		{"p/org/x/y/z", "p/org/x", "/y/z", true},
		{"nothing/here", "", "", false},
		{"m%zz", "", "", false},
		{"", "", "", false},
		{"//", "", "", false},
	}
	for _, tt := range tests {
		id, rest, ok := api.SplitUpstream(tt.tail, known)
		if id != tt.id || rest != tt.rest || ok != tt.ok {
			t.Errorf("SplitUpstream(%q) = %q, %q, %v", tt.tail, id, rest, ok)
		}
	}
	h := router.Match("GET", "/upstream/org%2Fm/")
	if h.Route == nil || h.Tail != "org%2Fm/" {
		t.Errorf("the tail lost its slash: %+v", h)
	}
}

// Every model name, raw or coded, comes out of the path as it went in.
func TestModelNamesInPaths(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[A-Za-z0-9][A-Za-z0-9._-]{0,8}(/[A-Za-z0-9][A-Za-z0-9._-]{0,8})?(:[A-Za-z0-9._-]{1,8})?`).Draw(t, "name")
		if name == "register" || strings.HasSuffix(name, "/options") {
			t.Skip("taken")
		}
		prefix := rapid.SampledFrom(prefixes).Draw(t, "prefix")
		for _, form := range []string{name, url.PathEscape(name), url.PathEscape(name) + "/"} {
			h := router.Match("GET", prefix+"/models/"+form)
			if h.Route == nil || h.Route.Name != "model" || h.ID != name {
				t.Fatalf("%s: %+v", form, h)
			}
			h = router.Match("GET", prefix+"/models/"+strings.TrimSuffix(form, "/")+"/options")
			if h.Route == nil || h.Route.Name != "options_get" || h.ID != name {
				t.Fatalf("%s/options: %+v", form, h)
			}
		}
	})
}

func FuzzMatch(f *testing.F) {
	f.Add("GET", "/v1/models/a%2Fb")
	f.Add("POST", "/api/v1/chat/completions/")
	f.Add("HEAD", "/upstream/a/b/c")
	f.Fuzz(func(t *testing.T, method, path string) {
		h := router.Match(method, path)
		if h.Route != nil && h.Allow != "" {
			t.Fatalf("both a route and a refusal: %+v", h)
		}
		if (h.Err() == nil) != (h.Route != nil) {
			t.Fatalf("%+v: %v", h, h.Err())
		}
		if h.Route != nil && strings.Contains(h.Route.Path, "{id}") && h.Tail == "" {
			t.Fatalf("an empty id: %+v", h)
		}
	})
}
