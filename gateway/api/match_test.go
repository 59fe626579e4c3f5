package api

import (
	"net/url"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"reveille/infra/policy"
)

var prefixes = []string{"/v1", "/v0", "/api/v1", "/api/v0"}

// Every row of the contract: where it is, what it is for.
func TestRouteTable(t *testing.T) {
	type scope = Scope
	const (
		free, reads, infer, manage, admin scope = ScopeFree, ScopeAnyKey, ScopeInfer, ScopeManage, ScopeAdmin
	)
	want := []struct {
		route, method, path string // a path that leads there
		mount               Mount
		dialect             Dialect
		typ                 policy.Type
		scope               Scope
		id                  string
	}{
		{"root", "GET", "/", Bare, OpenAI, "", free, ""},
		{"live", "GET", "/live", both, Lemonade, "", free, ""},
		{"ready", "GET", "/ready", both, Lemonade, "", free, ""},
		{"health_plain", "GET", "/health", Bare, Lemonade, "", free, ""},
		{"metrics", "GET", "/metrics", both, OpenAI, "", reads, ""},
		{"openapi", "GET", "/openapi.json", Bare, OpenAI, "", reads, ""},
		{"health", "GET", "/health", Prefixed, Lemonade, "", reads, ""},
		{"load", "POST", "/load", Prefixed, Lemonade, "", manage, ""},
		{"unload", "POST", "/unload", both, Lemonade, "", manage, ""},
		{"register", "POST", "/models/register", Prefixed, Lemonade, "", admin, ""},
		{"pull", "POST", "/pull", Prefixed, Lemonade, "", manage, ""},
		{"delete", "POST", "/delete", Prefixed, Lemonade, "", admin, ""},
		{"options_get", "GET", "/models/org/m:q4/options", Prefixed, Lemonade, "", reads, "org/m:q4"},
		{"options_set", "POST", "/models/m/options", Prefixed, Lemonade, "", admin, "m"},
		{"options_delete", "DELETE", "/models/org%2Fm/options", Prefixed, Lemonade, "", admin, "org/m"},
		{"stats", "GET", "/stats", Prefixed, Lemonade, "", reads, ""},
		{"system_info", "GET", "/system-info", Prefixed, Lemonade, "", reads, ""},
		{"pin", "POST", "/internal/pin", both, Lemonade, "", manage, ""},
		{"config_set", "POST", "/internal/set", both, Lemonade, "", admin, ""},
		{"config_get", "GET", "/internal/config", both, Lemonade, "", reads, ""},
		{"keys_list", "GET", "/internal/keys", both, Lemonade, "", admin, ""},
		{"keys_add", "POST", "/internal/keys", both, Lemonade, "", admin, ""},
		{"keys_revoke", "DELETE", "/internal/keys/Ada%20L", both, Lemonade, "", admin, "Ada L"},
		{"aliases", "GET", "/internal/aliases", both, Lemonade, "", reads, ""},
		{"alias_set", "POST", "/internal/aliases", both, Lemonade, "", admin, ""},
		{"alias_get", "GET", "/internal/aliases/a", both, Lemonade, "", reads, "a"},
		{"alias_set_one", "POST", "/internal/aliases/a", both, Lemonade, "", admin, "a"},
		{"alias_delete", "DELETE", "/internal/aliases/a%20b", both, Lemonade, "", admin, "a b"},
		{"host_wake", "POST", "/internal/hosts/gpu-1/wake", both, Lemonade, "", manage, "gpu-1"},
		{"host_forget", "POST", "/internal/hosts/gpu-1/forget", both, Lemonade, "", manage, "gpu-1"},
		{"conversations", "GET", "/internal/conversations", both, Lemonade, "", manage, ""},
		{"conversations_forget_all", "DELETE", "/internal/conversations", both, Lemonade, "", manage, ""},
		{"conversations_forget", "DELETE", "/internal/conversations/org/m:1", both, Lemonade, "", manage, "org/m:1"},
		{"host_sleep", "POST", "/internal/hosts/gpu-1/sleep", both, Lemonade, "", manage, "gpu-1"},
		{"ui", "GET", "/ui", Bare, OpenAI, "", free, ""},
		{"ui_file", "GET", "/ui/app.js", Bare, OpenAI, "", free, "app.js"},
		{"ui_stream", "GET", "/ui/stream", Bare, OpenAI, "", reads, ""},
		{"ui_session", "GET", "/ui/session", Bare, OpenAI, "", free, ""},
		{"ui_login", "POST", "/ui/session", Bare, OpenAI, "", free, ""},
		{"ui_logout", "DELETE", "/ui/session", Bare, OpenAI, "", free, ""},
		{"models", "GET", "/models", both, OpenAI, "", reads, ""},
		{"model", "GET", "/models/org/m:q4", Prefixed, OpenAI, "", reads, "org/m:q4"},
		{"model", "GET", "/models/org%2Fm%3Aq4", Prefixed, OpenAI, "", reads, "org/m:q4"},
		{"chat", "POST", "/chat/completions", Prefixed, OpenAI, policy.LLM, infer, ""},
		{"completions", "POST", "/completions", Prefixed, OpenAI, policy.LLM, infer, ""},
		{"responses", "POST", "/responses", Prefixed, Responses, policy.LLM, infer, ""},
		{"response", "GET", "/responses/resp_x", Prefixed, Responses, "", infer, "resp_x"},
		{"response_items", "GET", "/responses/resp_x/input_items", Prefixed, Responses, "", infer, "resp_x"},
		{"response_delete", "DELETE", "/responses/resp_x", Prefixed, Responses, "", infer, "resp_x"},
		{"input_tokens", "POST", "/responses/input_tokens", Prefixed, Responses, policy.LLM, infer, ""},
		{"embeddings", "POST", "/embeddings", Prefixed, OpenAI, policy.Embedding, infer, ""},
		{"transcriptions", "POST", "/audio/transcriptions", Prefixed, OpenAI, policy.Audio, infer, ""},
		{"translations", "POST", "/audio/translations", Prefixed, OpenAI, policy.Audio, infer, ""},
		{"speech", "POST", "/audio/speech", Prefixed, OpenAI, policy.TTS, infer, ""},
		{"image_generations", "POST", "/images/generations", Prefixed, OpenAI, policy.Image, infer, ""},
		{"image_edits", "POST", "/images/edits", Prefixed, OpenAI, policy.Image, infer, ""},
		{"image_variations", "POST", "/images/variations", Prefixed, OpenAI, policy.Image, infer, ""},
		{"tokenize", "POST", "/tokenize", both, OpenAI, policy.LLM, infer, ""},
		{"detokenize", "POST", "/detokenize", both, OpenAI, policy.LLM, infer, ""},
		{"apply_template", "POST", "/apply-template", both, OpenAI, policy.LLM, infer, ""},
		{"messages", "POST", "/messages", Prefixed, Anthropic, policy.LLM, infer, ""},
		{"count_tokens", "POST", "/messages/count_tokens", Prefixed, Anthropic, policy.LLM, infer, ""},
		{"tei_embed", "POST", "/embed", Bare, OpenAI, policy.Embedding, infer, ""},
		{"tei_info", "GET", "/info", Bare, OpenAI, "", reads, ""},
		{"realtime", "GET", "/realtime", Prefixed, OpenAI, "", infer, ""},
		{"cohere_embed", "POST", "/v2/embed", Bare, OpenAI, policy.Embedding, infer, ""},
		{"rerank", "POST", "/rerank", both, OpenAI, policy.Reranking, infer, ""},
		{"rerank", "POST", "/reranking", both, OpenAI, policy.Reranking, infer, ""},
		{"rerank", "POST", "/reranker", Prefixed, OpenAI, policy.Reranking, infer, ""},
		{"rerank", "POST", "/v2/rerank", Bare, OpenAI, policy.Reranking, infer, ""},
		{"ollama_version", "GET", "/api/version", Bare, Ollama, "", reads, ""},
		{"ollama_tags", "GET", "/api/tags", Bare, Ollama, "", reads, ""},
		{"ollama_ps", "GET", "/api/ps", Bare, Ollama, "", reads, ""},
		{"ollama_show", "POST", "/api/show", Bare, Ollama, "", reads, ""},
		{"ollama_chat", "POST", "/api/chat", Bare, Ollama, policy.LLM, infer, ""},
		{"ollama_generate", "POST", "/api/generate", Bare, Ollama, policy.LLM, infer, ""},
		{"ollama_embed", "POST", "/api/embed", Bare, Ollama, policy.Embedding, infer, ""},
		{"ollama_embeddings", "POST", "/api/embeddings", Bare, Ollama, policy.Embedding, infer, ""},
		{"ollama_pull", "POST", "/api/pull", Bare, Ollama, "", manage, ""},
		{"ollama_delete", "DELETE", "/api/delete", Bare, Ollama, "", admin, ""},
		{"running", "GET", "/running", both, OpenAI, "", reads, ""},
		{"unload_all", "GET", "/unload", both, OpenAI, "", manage, ""},
		{"upstream", "PATCH", "/upstream/m/x", Bare, OpenAI, "", admin, "m/x"},
		{"logs", "GET", "/logs", both, OpenAI, "", admin, ""},
		{"logs_stream", "GET", "/logs/stream", both, OpenAI, "", admin, ""},
		{"logs_stream_model", "GET", "/logs/stream/m", both, OpenAI, "", admin, "m"},
	}
	seen := make(map[string]bool)
	for _, w := range want {
		var paths, elsewhere []string
		for _, p := range prefixes {
			if w.mount&Prefixed != 0 {
				paths = append(paths, p+w.path)
			} else {
				elsewhere = append(elsewhere, p+w.path)
			}
		}
		if w.mount&Bare != 0 {
			paths = append(paths, w.path)
		} else {
			elsewhere = append(elsewhere, w.path)
		}
		for _, p := range paths {
			for _, slash := range []string{"", "/"} {
				if w.route == "upstream" && slash != "" {
					continue // there it does mean something
				}
				h := Match(w.method, p+slash)
				if h.Route == nil {
					t.Errorf("%s %s: no route, allow %q", w.method, p+slash, h.Allow)
					continue
				}
				r := h.Route
				if r.Name != w.route || r.Dialect != w.dialect || h.Dialect != w.dialect || r.Type != w.typ || r.Scope != w.scope || h.ID != w.id || h.Head {
					t.Errorf("%s %s: %+v of %+v", w.method, p+slash, h, r)
				}
				stored := strings.HasPrefix(r.Path, "/responses/{id}")            // what a model said before
				typed := r.Scope == ScopeInfer && !stored && r.Name != "realtime" // engines of several types have it
				if (r.Type != "") != typed || r.Type != "" && !r.Inference || r.Type != "" && !r.Type.Valid() {
					t.Errorf("%s: type %q, scope %d, inference %v", r.Name, r.Type, r.Scope, r.Inference)
				}
				seen[r.Method+r.Path] = true
			}
		}
		for _, p := range elsewhere {
			if h := Match(w.method, p); h.Route != nil && h.Route.Name == w.route {
				t.Errorf("%s %s leads to %s", w.method, p, w.route)
			}
		}
	}
	for _, r := range Routes() {
		if !seen[r.Method+r.Path] {
			t.Errorf("%s %s is in the table and not in this test", r.Method, r.Path)
		}
		if len(r.Keys()) > MaxKeys || len(r.Keys()) < 2 {
			t.Errorf("%s has %d keys", r.Name, len(r.Keys()))
		}
		keys := slices.Sorted(slices.Values(r.Keys()))
		if len(slices.Compact(keys)) != len(r.Keys()) {
			t.Errorf("%s has a key twice: %v", r.Name, r.Keys())
		}
	}
}

func TestMatchRefusals(t *testing.T) {
	tests := []struct {
		method, path string
		allow        string
		dialect      Dialect
		status       int // 0 for a route
		head         bool
	}{
		{"GET", "/v1/chat/completions", "POST, OPTIONS", OpenAI, 405, false},
		{"HEAD", "/v1/chat/completions", "POST, OPTIONS", OpenAI, 405, true},
		{"PUT", "/v1/messages", "POST, OPTIONS", Anthropic, 405, false},
		{"POST", "/v1/models", "GET, HEAD, OPTIONS", OpenAI, 405, false},
		{"GET", "/v1/models/register", "POST, OPTIONS", Lemonade, 405, false},
		{"PUT", "/v1/models/m/options", "GET, HEAD, POST, DELETE, OPTIONS", Lemonade, 405, false},
		{"DELETE", "/v1/unload", "GET, HEAD, POST, OPTIONS", Lemonade, 405, false},
		{"GET", "/api/chat", "POST, OPTIONS", Ollama, 405, false},
		{"GET", "/api/v1/load", "POST, OPTIONS", Lemonade, 405, false},
		{"get", "/v1/models", "GET, HEAD, OPTIONS", OpenAI, 405, false},

		{"POST", "/chat/completions", "", OpenAI, 404, false},
		{"POST", "/v2/chat", "", OpenAI, 404, false},
		{"POST", "/v1/messages/batches", "", Anthropic, 404, false},
		{"GET", "/api/chat/x", "", Ollama, 404, false},
		{"GET", "/api/nothing", "", OpenAI, 404, false},
		{"GET", "/v1/internal/nothing", "", Lemonade, 404, false},
		{"GET", "/internal/nothing", "", Lemonade, 404, false},
		{"GET", "/v1/responses/a%zz", "", Responses, 404, false},
		{"POST", "/v1/responses/resp_1", "GET, HEAD, DELETE, OPTIONS", Responses, 405, false},
		{"GET", "", "", OpenAI, 404, false},
		{"GET", "/v1", "", OpenAI, 404, false},
		{"GET", "/v1/", "", OpenAI, 404, false},
		{"GET", "/v1//models", "", OpenAI, 404, false},
		{"GET", "/upstream", "", OpenAI, 404, false},
		{"GET", "/upstream/", "", OpenAI, 404, false},
		{"GET", "/v1/models/a%zz", "", OpenAI, 404, false},
		{"GET", "/models/m", "", OpenAI, 404, false},

		{"HEAD", "/v1/models", "", OpenAI, 0, true},
		{"HEAD", "/health", "", Lemonade, 0, true},
		{"HEAD", "/v1/models/m", "", OpenAI, 0, true},
	}
	for _, tt := range tests {
		h := Match(tt.method, tt.path)
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
	const none = "' on this server."
	for path, want := range map[string]string{
		"/v1/v1/chat/completions":       "/v1/chat/completions",
		"/chat/completions":             "/v1/chat/completions",
		"//v1//embeddings":              "/v1/embeddings",
		"/v1/api/tags":                  "/api/tags",
		"/api/chat/completions":         "/v1/chat/completions",
		"/v1/v1/models/secret":          "",
		"/nothing":                      "",
		"/v1":                           "",
		"/" + strings.Repeat("/", 5000): "",
	} {
		e := Match("POST", path).Err()
		if e == nil || e.Status != 404 {
			t.Errorf("%.100s: %v", path, e)
			continue
		}
		_, near, _ := strings.Cut(e.Message, none)
		if want != "" {
			want = " Did you mean '" + want + "'?"
		}
		if near != want || len(e.Message) > 500 || !strings.HasPrefix(e.Message, "There is no path '"+path[:min(len(path), 100)]) {
			t.Errorf("%.100s: %s", path, e.Message)
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
		id, rest, ok := SplitUpstream(tt.tail, known)
		if id != tt.id || rest != tt.rest || ok != tt.ok {
			t.Errorf("SplitUpstream(%q) = %q, %q, %v", tt.tail, id, rest, ok)
		}
	}
	h := Match("GET", "/upstream/org%2Fm/")
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
			h := Match("GET", prefix+"/models/"+form)
			if h.Route == nil || h.Route.Name != "model" || h.ID != name {
				t.Fatalf("%s: %+v", form, h)
			}
			h = Match("GET", prefix+"/models/"+strings.TrimSuffix(form, "/")+"/options")
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
		h := Match(method, path)
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
