package bodycheck

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"reveille/infra/jsonscan"
)

// TestRunsInTexts: wherever a body holds a text for the engine's tokenizer, too long a run of one kind is refused.
func TestRunsInTexts(t *testing.T) {
	for _, tt := range []struct{ route, body string }{
		{"chat", `{"messages":[{"role":"user","content":"%s"}]}`},
		{"chat", `{"messages":[{"role":"user","content":"hi"},{"role":"%s","content":"hi"}]}`},
		{"chat", `{"messages":[{"role":"user","content":[{"type":"text","text":"%s"}]}]}`},
		{"chat", `{"messages":[{"role":"user","content":[{"type":"text","text":"hi","name":"%s"}]}]}`},
		{"chat", `{"messages":[{"role":"assistant","content":"%s","tool_calls":[{"function":{"arguments":"{}"}}]}]}`},
		{"chat", `{"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{\"a\":\"%s\"}"}}]}]}`},
		{"chat", `{"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":{"a":{"source":"%s"}}}}]}]}`},
		{"chat", `{"messages":[{"role":"assistant","content":"","reasoning_content":"%s"}]}`},
		{"chat", `{"messages":[],"tools":[{"type":"function","function":{"name":"f","description":"%s"}}]}`},
		{"completions", `{"prompt":"%s"}`},
		{"completions", `{"prompt":["hi","%s"]}`},
		{"completions", `{"prompt":[1,"%s"]}`},
		{"completions", `{"prompt":"","suffix":"%s"}`},
		{"completions", `{"prompt":"","input_extra":[{"text":"%s"}]}`},
		{"completions", `{"prompt":"","logit_bias":[["%s",1]]}`},
		{"messages", `{"messages":[{"content":[{"type":"tool_use","input":{"a":"%s"}}]}]}`},
		{"messages", `{"messages":[{"content":[{"type":"tool_result","content":[{"type":"text","text":"%s"}]}]}]}`},
		{"messages", `{"messages":[{"content":[{"type":"document","source":{"type":"text","data":"%s"}}]}]}`},
		{"messages", `{"messages":[{"content":[{"type":"thinking","thinking":"%s"}]}]}`},
		{"messages", `{"messages":[],"system":"%s"}`},
		{"count_tokens", `{"messages":[],"system":[{"type":"text","text":"%s"}]}`},
		{"embeddings", `{"input":"%s"}`},
		{"embeddings", `{"input":["hi","%s"]}`},
		{"embeddings", `{"input":[{"prompt_string":"<__media__>%s","multimodal_data":["` + picture(1, 1) + `"]}]}`},
		{"embeddings", `{"input":["%s",{"prompt_string":"<__media__>","multimodal_data":["` + picture(1, 1) + `"]}]}`},
		{"rerank", `{"query":"%s","documents":["hi"]}`},
		{"rerank", `{"query":"hi","documents":["hi",{"text":"%s"}]}`},
		{"tokenize", `{"content":"%s"}`},
	} {
		sees := Model{Llama: true, Sees: true}
		if _, _, err := check(tt.route, fmt.Appendf(nil, tt.body, strings.Repeat("a", maxRun+1)), sees); code(err) != "invalid_type" || !strings.Contains(err.Error(), "in a row") {
			t.Errorf("%s %s: %v", tt.route, tt.body, err)
		}
		if _, _, err := check(tt.route, fmt.Appendf(nil, tt.body, strings.Repeat("a", maxRun-100)+strings.Repeat(" and", 4000)), sees); err != nil {
			t.Errorf("%s %s with shorter runs: %v", tt.route, tt.body, err)
		}
		for _, open := range []string{"[ ", "{ ", `\u005b `, `\u007B `} {
			body := fmt.Appendf(nil, tt.body, strings.Repeat(open, maxNesting+1))
			if _, _, err := check(tt.route, body, sees); code(err) != "invalid_type" || !strings.Contains(err.Error(), "brackets") {
				t.Errorf("%s %s with %q: %v", tt.route, tt.body, open, err)
			}
		}
		if _, _, err := check(tt.route, fmt.Appendf(nil, tt.body, strings.Repeat("[ ", maxNesting-100)+strings.Repeat("] [", 4000)+strings.Repeat(`\\[ ]`, 4000)), sees); err != nil {
			t.Errorf("%s %s with fewer brackets: %v", tt.route, tt.body, err)
		}
	}
}

// TestRunsOfEachKind: characters count, not bytes or escapes; media do not count; parts of one content count together.
func TestRunsOfEachKind(t *testing.T) {
	for _, one := range []string{"a", "é", "中", "e\u0301", "7", "٣", " ", "\u3000", `\n`, "!", "。", "😀", `\\`, `\"`, `\u0061`, `\u00e9`, `\u0020`} {
		size := utf8.RuneCountInString(one)
		if one[0] == '\\' {
			size = 1
		}
		for n, want := range map[int]string{maxRun / size: "", maxRun/size + 1: "invalid_type"} {
			body := `{"prompt":"` + strings.Repeat(one, n) + strings.Repeat(" a1! z", 2000) + `"}`
			if one == " " || one == `\n` || one == "\u3000" || one == `\u0020` {
				body = strings.Replace(body, " a1! z", "a1! z", -1)
			}
			if _, _, err := check("completions", []byte(body), llama); code(err) != want {
				t.Errorf("%d times %s: %v, want %q", n, one, err, want)
			}
		}
	}
	half := strings.Repeat("a", maxRun/2+1)
	for body, want := range map[string]string{
		`{"messages":[{"content":[{"type":"text","text":"` + half + `"},{"type":"text","text":"` + half + `"}]}]}`:                                            "invalid_type",
		`{"messages":[{"content":[{"type":"text","text":"` + half + `"},{"type":"text","text":" ` + half + `"}]}]}`:                                           "",
		`{"messages":[{"content":"` + half + `"},{"content":[{"type":"text","text":"` + half + `"}]}]}`:                                                       "",
		`{"messages":[{"content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,` + picture(1, 1) + strings.Repeat("A", 4*maxRun) + `"}}]}]}`: "",
		`{"prompt":["` + half + `","` + half + `"]}`: "",
	} {
		route := "chat"
		if strings.Contains(body, "prompt") {
			route = "completions"
		}
		if _, _, err := check(route, []byte(body), llama); code(err) != want {
			t.Errorf("%.60s: %v, want %q", body, err, want)
		}
	}
}

// TestUnbrokenTexts: a text has a break now and then, whatever else it has: white space or common punctuation, escaped or not.
func TestUnbrokenTexts(t *testing.T) {
	for _, filler := range []string{"a1", "é1", `\\n1`, `\\\\u30021`, `a\"`, `\u00611`, `\ud83d\ude001`, ";a", "-_a"} {
		n := maxUnbroken / len(filler)
		for _, brk := range []string{" ", `\n`, `\t`, `\u0020`, `\u3000`, `\u3002`, "。", "，", "…", "।", "۔", "،", ".", ",", "!", "?", "(", ")", "|"} {
			body := `{"prompt":"` + strings.Repeat(filler, n-9) + brk + strings.Repeat(filler, n-9) + brk + `a"}`
			if _, _, err := check("completions", []byte(body), llama); err != nil {
				t.Errorf("%s with %s: %v", filler, brk, err)
			}
		}
		for _, body := range []string{
			`{"prompt":". ` + strings.Repeat(filler, n+2) + ` ."}`,
			`{"prompt":["` + strings.Repeat("a. ", 40_000) + strings.Repeat(filler, n+2) + `"]}`,
		} {
			if _, _, err := check("completions", []byte(body), llama); code(err) != "invalid_type" || !strings.Contains(err.Error(), "without white space") {
				t.Errorf("%s: %v", filler, err)
			}
		}
	}
}

// TestRunsInForms: so are the texts of forms.
func TestRunsInForms(t *testing.T) {
	var f Form
	if err := f.See("prompt", []byte(strings.Repeat("a", maxRun+1))); code(err) != "invalid_type" {
		t.Error(err)
	}
	if err := f.See("prompt", []byte(strings.Repeat("a ", maxRun))); err != nil {
		t.Error(err)
	}
}

// TestRunsReadWhole: skipping finds what reading every character finds, wherever a text is divided.
func TestRunsReadWhole(t *testing.T) {
	pieces := []string{"a", "bc", " ", "1", "!", "中", "é", `\n`, `\u0061`, `\ud83d\ude00`, `\\`, `\"`, `"`, "\xff", `\`}
	for seed := range uint64(400) {
		random := rand.New(rand.NewPCG(seed, 1))
		var b []byte
		for len(b) < 40_000 {
			piece := pieces[random.IntN(len(pieces))]
			for range 1 + random.IntN(2<<random.IntN(14)) {
				b = append(b, piece...)
			}
		}
		want, kind, length := true, quote, 0
		cut := random.IntN(len(b))
		for _, part := range [][]byte{b[:cut], b[cut:]} {
			for i := 0; i < len(part); {
				k, size := kindAt(part[i:])
				i += size
				if k != kind || k == quote {
					kind, length = k, 0
				}
				length++
				want = want && length <= maxRun
			}
		}
		breaks, since := true, 0
		for _, part := range [][]byte{b[:cut], b[cut:]} {
			for i := 0; i < len(part); {
				kind, size := kindAt(part[i:])
				since += size
				if breaks = breaks && since <= maxUnbroken; kind == blank || part[i] == '!' {
					since = 0
				}
				i += size
			}
		}
		if got := new(run); got.broken(b[:cut]) && got.broken(b[cut:]) != breaks {
			t.Errorf("seed %d: broken %v, want %v", seed, !breaks, breaks)
		}
		var r run
		if got := r.read(b[:cut]) && r.read(b[cut:]); got != want {
			t.Errorf("seed %d: short enough %v, want %v", seed, got, want)
		}
	}
}

// FuzzRuns: no text brings the reading of runs out of bounds.
func FuzzRuns(f *testing.F) {
	f.Add([]byte(`a\u00`), uint16(300))
	f.Fuzz(func(_ *testing.T, b []byte, times uint16) {
		var r run
		_ = r.read(bytes.Repeat(b, int(times%1024)))
	})
}

// BenchmarkRuns is the search for runs in texts of 1 MB.
func BenchmarkRuns(b *testing.B) {
	for name, text := range map[string]string{
		"English": "The quick brown fox jumps over the lazy dog, and so on. ", "code": `\tif err != nil {\n\t\treturn nil, err\n\t}\n`,
		"Chinese": "快速的棕色狐狸跳过懒狗，然后继续。", "escapes": `\u0061\u0020`, "runs": strings.Repeat("a", maxRun) + " ", "wide": strings.Repeat("中", maxRun) + " ",
	} {
		raw := []byte(`"` + strings.Repeat(text, 1<<20/len(text)) + `"`)
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(raw)))
			for b.Loop() {
				if e := unbroken("prompt", jsonscan.Value{Kind: jsonscan.String, Raw: raw}); e != nil {
					b.Fatal(e)
				}
			}
		})
	}
}
