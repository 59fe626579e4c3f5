package httpapi

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A model's context is that of its file. For a loaded copy it is the one its runner planned.
func TestModelsReportTheirContext(t *testing.T) {
	p := newPool(t, "")
	dir := t.TempDir()
	header := func(key string, n uint32) string { // a GGUF file with one key
		b := binary.LittleEndian.AppendUint64([]byte("GGUF\x03\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00"), uint64(len(key)))
		b = binary.LittleEndian.AppendUint32(append(b, key...), 4)
		return string(binary.LittleEndian.AppendUint32(b, n))
	}
	for name, text := range map[string]string{"vec.gguf": header("bert.context_length", 512), "rank.gguf": header("bert.context_length", 8192), "odd.gguf": "GGUF of no kind"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		p.want(200, p.post("/v1/models/register", fmt.Sprintf(`{"model_name":"user.%s","recipe":"standin","device":"cpu","checkpoint":%q,"labels":["embeddings"]}`,
			strings.TrimSuffix(name, ".gguf"), filepath.Join(dir, name))))
	}
	shows := func(id string, now, most any) {
		t.Helper()
		if m := p.want(200, p.get("/v1/models/"+id)); m.json["context_length"] != now || m.json["max_context_window"] != most {
			t.Errorf("%s: %v of %v, want %v of %v", id, m.json["context_length"], m.json["max_context_window"], now, most)
		}
	}
	shows("user.vec", 512.0, 512.0)
	shows("user.rank", 8192.0, 8192.0)
	shows("user.odd", nil, nil) // unknown
	shows("two", 512.0, 512.0)  // its ctx_size
	here := p.playHost("here")
	p.putLoaded("here", here, "user.rank", 0, map[string]string{"device": "cpu", "plan": `{"kind":"plain","longest":2048,"positions":8192}`})
	p.putLoaded("here", here, "vec", 0, map[string]string{"device": "cpu", "plan": `{"kind":"plain","longest":256,"positions":512}`})
	p.putLoaded("here", here, "user.odd", 0, map[string]string{"device": "cpu", "plan": `{"longest":"many","positions":-1}`})
	shows("user.rank", 2048.0, 8192.0)
	shows("vec", 256.0, 512.0)
	shows("user.odd", nil, nil) // unknown
	if m := p.get("/api/ps").list("models"); len(m) != 3 || !slices.ContainsFunc(m, func(m map[string]any) bool { return m["name"] == "vec:latest" && m["context_length"] == 256.0 }) {
		t.Errorf("/api/ps: %v", m)
	}
}

// Bodies of routes that run no model are decoded whole, so they are small.
func TestManagementBodies(t *testing.T) {
	p := newPool(t, "")
	body := `{"model_name":"one","x":"` + strings.Repeat("x", maxManagementBody) + `"}`
	for _, path := range []string{"/v1/load", "/v1/unload", "/v1/internal/set", "/api/show"} {
		if r := p.post(path, body); r.status != 413 {
			t.Errorf("%s: %d %.200s", path, r.status, r.text)
		}
	}
	if r := p.post("/v1/chat/completions", body); r.status == 413 {
		t.Errorf("chat: %.200s", r.text)
	}
	s := newStage(t)
	for _, q := range []string{ // the gateway waits for none of the announced bytes, and reads only a limited number of chunked ones
		fmt.Sprintf("Content-Length: %d\r\n\r\n", maxManagementBody+1),
		fmt.Sprintf("Content-Length: %d\r\nExpect: 100-continue\r\n\r\n", maxManagementBody+1),
		fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", maxManagementBody+1, strings.Repeat("x", maxManagementBody+1)),
	} {
		if r := s.dial().say("POST /v1/load HTTP/1.1\r\nHost: localhost\r\n" + q); r.status != 413 || !strings.Contains(r.text, strconv.Itoa(maxManagementBody)) {
			t.Errorf("%.60q: %d %.200s", q, r.status, r.text)
		}
	}
}
