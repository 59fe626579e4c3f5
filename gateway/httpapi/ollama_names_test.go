package httpapi

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"reveille/infra/state"
)

// Deleting a name that was given at run time leaves the model.
func TestOllamaDeletesOnlyTheName(t *testing.T) {
	p := newPool(t, "")
	p.register("user.mine", "")
	for _, name := range []string{"copy:latest", "COPY", "Copy:Latest"} {
		p.want(200, p.post("/v1/internal/aliases", `{"alias":"copy","target":"user.mine"}`))
		if r := p.want(200, p.post("/api/show", `{"model":"`+name+`"}`)); r.header.Get("x-model") != "user.mine" {
			t.Errorf("%s is %s", name, r.header.Get("x-model"))
		}
		p.want(200, p.do("DELETE", "/api/delete", `{"model":"`+name+`"}`))
		p.want(404, p.post("/api/show", `{"model":"copy"}`))
		p.want(200, p.post("/api/show", `{"model":"user.mine"}`))
	}
}

// Each name in a listing leads back to its model, whose id with a tag may be a name of another.
func TestOllamaListsNamesThatResolve(t *testing.T) {
	p := newPool(t, "")
	for _, name := range []string{"one:latest", "two:latest"} { // as the models file may have them
		if err := p.server.registry.Tables.Set(t.Context(), state.Aliases, name, "two"); err != nil {
			t.Fatal(err)
		}
	}
	listed := map[string]bool{}
	for _, m := range p.want(200, p.get("/api/tags")).json["models"].([]any) {
		name := m.(map[string]any)["name"].(string)
		if got := p.want(200, p.post("/api/show", `{"model":"`+name+`"}`)).header.Get("x-model"); listed[name] || strings.TrimSuffix(name, ":latest") != got {
			t.Errorf("%s is %s", name, got)
		}
		listed[name] = true
	}
	if listed["one:latest"] || !listed["one"] || !listed["two:latest"] {
		t.Errorf("listed: %v", listed)
	}
	p.want(200, p.do("DELETE", "/api/delete", `{"model":"one:latest"}`))
	if r := p.want(200, p.get("/v1/internal/aliases")); len(r.json["aliases"].([]any)) != 1 {
		t.Errorf("after its removal: %s", r.text)
	}
}

// What a model's file says of its architecture and its template is shown.
func TestOllamaShowReadsTheFile(t *testing.T) {
	p := newPool(t, "")
	path := p.gguf("tools.gguf", "qwen3", 40960, "{% if tools %}")
	p.register("user.tools", path)
	r := p.want(200, p.post("/api/show", `{"model":"user.tools"}`))
	if info := r.json["model_info"].(map[string]any); info["general.architecture"] != "qwen3" || info["qwen3.context_length"] != 40960.0 {
		t.Errorf("%v", info)
	}
	if !strings.Contains(r.text, `"capabilities":["completion","tools"]`) || !strings.Contains(r.text, `"family":"qwen3","families":["qwen3"]`) {
		t.Error(r.text)
	}
	p.register("user.plain", p.weights("plain.gguf", time.Now()))
	if r := p.want(200, p.post("/api/show", `{"model":"user.plain"}`)); !strings.Contains(r.text, `"capabilities":["completion"]`) {
		t.Error(r.text)
	}
}

// gguf writes a file that is nothing but GGUF metadata.
func (p *pool) gguf(name, architecture string, context uint32, template string) (path string) {
	p.t.Helper()
	le := binary.LittleEndian
	text := func(b []byte, s string) []byte { return append(le.AppendUint64(b, uint64(len(s))), s...) }
	member := func(b []byte, key, value string) []byte { return text(le.AppendUint32(text(b, key), 8), value) }
	b := le.AppendUint64(le.AppendUint64(le.AppendUint32([]byte("GGUF"), 3), 0), 3)
	b = member(b, "general.architecture", architecture)
	b = le.AppendUint32(le.AppendUint32(text(b, architecture+".context_length"), 4), context)
	b = member(b, "tokenizer.chat_template", template)
	path = filepath.Join(p.t.TempDir(), name)
	if err := os.WriteFile(path, b, 0o600); err != nil {
		p.t.Fatal(err)
	}
	return path
}
