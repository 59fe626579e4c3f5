package modelfile

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"reveille/testenv"
)

func TestRead(t *testing.T) {
	const big = uint64(1) << 60
	of := func(key string, kind uint32, n any) []byte { return begin(0, 1).text(key).num(kind).num(n).Bytes() }
	for name, tc := range map[string]struct {
		raw  []byte
		want int64
	}{
		"a context":             {of("bert.context_length", 4, uint32(512)), 512},
		"of 64 bits":            {of("llama.context_length", 10, uint64(131072)), 131072},
		"behind others":         {begin(0, 3).text("general.architecture").num(uint32(8)).text("bert").text("x").num(uint32(9)).num(uint32(8)).num(uint64(1)).text("y").text("bert.context_length").num(uint32(4)).num(uint32(77)).Bytes(), 77},
		"before what is cut":    {begin(0, 9).text("bert.context_length").num(uint32(4)).num(uint32(8)).Bytes(), 8},
		"none":                  {begin(0, 0).Bytes(), 0},
		"another key":           {of("llama.rope.scaling.context_length", 4, uint32(8)), 0},
		"more than any model's": {of("llama.context_length", 10, big), 0},
		"countless keys":        {begin(0, big).Bytes(), 0},
		"a long text":           {begin(0, 2).text("a").num(uint32(8)).num(big).Bytes(), 0},
		"cut in the number":     {of("bert.context_length", 10, uint16(1)), 0},
		"another version":       {append([]byte("GGUF\x09\x00\x00\x00"), make([]byte, 16)...), 0},
		"another file":          {bytes.Repeat([]byte("no model"), 9), 0},
		"empty":                 {nil, 0},
	} {
		if got, err := Read(write(t, "m.gguf", tc.raw)); got.Context != tc.want || (err == nil) != (tc.want > 0) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	files := testenv.Models(t)
	for path, want := range map[string]Facts{files.Gemma: {Context: 32768, Architecture: "gemma3"}, files.MiniLM: {Context: 512, Architecture: "bert"}} {
		if got, err := Read(path); got != want || err != nil {
			t.Errorf("%s: %+v, %v", filepath.Base(path), got, err)
		}
	}
}

// Names and templates are believed within bounds.
func TestReadTexts(t *testing.T) {
	text := func(h *header, key, value string) *header { return h.text(key).num(uint32(8)).text(value) }
	of := func(arch, template string) []byte {
		h := text(begin(0, 3), "general.architecture", arch)
		return text(h.text("x.context_length").num(uint32(4)).num(uint32(8)), "tokenizer.chat_template", template).Bytes()
	}
	long := strings.Repeat("x", maxKept)
	for _, tc := range []struct {
		arch, template string
		want           Facts
	}{
		{"qwen3", "{% if tools %}", Facts{8, "qwen3", true}},
		{"bert", "{{ messages }}", Facts{8, "bert", false}},
		{"a\nb", "tools", Facts{8, "", true}},
		{long, long + "tools", Facts{8, "", false}},
	} {
		if got, err := Read(write(t, "m.gguf", of(tc.arch, tc.template))); got != tc.want || err != nil {
			t.Errorf("%.20q: %+v, %v", tc.arch, got, err)
		}
	}
}
