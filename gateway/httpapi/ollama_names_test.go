package httpapi

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Ollama's copies, and models created from another one and nothing else, are further names of it. Deleting a name leaves the
// model.
func TestOllamaNames(t *testing.T) {
	p := newPool(t, "")
	p.want(200, p.post("/api/copy", `{"source":"one:latest","destination":"copy:latest"}`))
	if r := p.want(200, p.post("/api/create", `{"model":"made","from":"copy","parameters":{},"template":""}`)); r.text != lineSuccess+"\n" {
		t.Errorf("created: %s", r.text)
	}
	if r := p.want(200, p.post("/api/create", `{"model":"made:2b","from":"one","stream":false}`)); r.text != lineSuccess {
		t.Errorf("created: %s", r.text)
	}
	for _, name := range []string{"copy", "copy:latest", "made", "made:2b"} {
		if r := p.want(200, p.post("/api/show", `{"model":"`+name+`"}`)); r.header.Get("x-model") != "one" {
			t.Errorf("%s is %s", name, r.header.Get("x-model"))
		}
	}
	for _, own := range []string{`"system":"Be brief."`, `"parameters":{"num_ctx":4096}`, `"files":{"a.gguf":"sha256:00"}`, `"modelfile":"FROM one"`} {
		r := p.want(501, p.post("/api/create", `{"model":"other","from":"one",`+own+`}`))
		p.errorLine(r)
		if member, _, _ := strings.Cut(own, ":"); !strings.Contains(r.text, strings.Trim(member, `"`)) {
			t.Errorf("%s: %s", own, r.text)
		}
	}
	for body, status := range map[string]int{
		`{"source":"one"}`: 400, `{"source":"nobody","destination":"x"}`: 404, `{"source":"one","destination":"two"}`: 409, `{"source":"one","destination":"a b"}`: 400,
	} {
		p.errorLine(p.want(status, p.post("/api/copy", body)))
	}
	p.errorLine(p.want(400, p.post("/api/create", `{"model":"x"}`)))
	p.want(200, p.do("DELETE", "/api/delete", `{"model":"copy:latest"}`))
	p.want(404, p.post("/api/show", `{"model":"copy"}`))
	p.want(200, p.post("/api/show", `{"model":"made"}`))
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
