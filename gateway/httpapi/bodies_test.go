package httpapi

import (
	"strings"
	"testing"
)

// A text that fits into no context is refused before a model is loaded for it.
func TestTextBeyondTheContext(t *testing.T) {
	p := newPool(t, "")
	for name, most := range map[string]int{"two": freeText + tokenText*512, "one": freeText + tokenText*longContext} {
		m, _ := p.catalog().Model(name)
		if err := p.server.checkContext(m, most, 0); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := p.server.checkContext(m, most+1, 0); err == nil {
			t.Errorf("%s takes %d bytes of text", name, most+1)
		}
	}
	if m, _ := p.catalog().Model("two"); p.server.checkContext(m, freeText+tokenText*4096, 4096) != nil {
		t.Error("a request that asks for more does not get it")
	}
	if m, _ := p.catalog().Model("vec"); p.server.checkContext(m, 64<<20, 0) != nil {
		t.Error("inputs to embed are not one text")
	}
	text := strings.Repeat("word ", 120_000)
	for path, body := range map[string]string{
		"/v1/chat/completions":      `{"model":"two","messages":[{"role":"user","content":"` + text + `"}]}`,
		"/v1/completions":           `{"model":"two","prompt":"` + text + `"}`,
		"/v1/messages":              `{"model":"two","max_tokens":1,"messages":[{"role":"user","content":"` + text + `"}]}`,
		"/v1/messages/count_tokens": `{"model":"two","messages":[{"role":"user","content":"hi","other":[` + strings.Repeat("0,", 300_000) + `0]}]}`,
		"/v1/responses":             `{"model":"two","input":"` + text + `"}`,
		"/api/chat":                 `{"model":"two","messages":[{"role":"user","content":"` + text + `"}]}`,
		"/api/generate":             `{"model":"two","prompt":"` + text + `"}`,
		"/upstream/two/completion":  `{"prompt":"` + text + `"}`,
	} {
		if r := p.post(path, body); r.status != 400 || !strings.Contains(r.text, "context can hold") {
			t.Errorf("%s: %d %.200s", path, r.status, r.text)
		}
	}
}
