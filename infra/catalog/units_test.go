package catalog

import (
	"strings"
	"testing"
)

func TestParseSize(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "17": 17, "17B": 17, "4GiB": 4 << 30, "4 GiB": 4 << 30, "1.5KiB": 1536, "2MB": 2e6, "1TiB": 1 << 40,
		"4611686018427387903": 1<<62 - 1, "1e3": 1000, "4gib": 4 << 30, "2mb": 2e6,
	} {
		if got, err := ParseSize(text); err != nil || got != want {
			t.Errorf("%q: %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "GiB", "-1", "-1GiB", "4G", "4g", "NaN", "Inf", "1e30", "4611686018427387904", "x"} {
		if got, err := ParseSize(text); err == nil {
			t.Errorf("%q: %d", text, got)
		}
	}
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1536: "1.5 KiB", 4 << 30: "4 GiB", 253113024: "241.4 MiB", 1 << 41: "2 TiB"} {
		if got := FormatSize(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}

func TestCheckpoint(t *testing.T) {
	for _, tc := range []struct {
		text   string
		want   Checkpoint
		stable string
		names  string
	}{
		{"dir/a-Q4_0.gguf", Checkpoint{Scheme: SchemePath, Path: "dir/a-Q4_0.gguf"}, "a-Q4_0.gguf", ""},
		{`C:\models\a.gguf`, Checkpoint{Scheme: SchemePath, Path: `C:\models\a.gguf`}, "a.gguf", ""},
		{"s3://b/dir/a.gguf", Checkpoint{Scheme: SchemeS3, Bucket: "b", Path: "dir/a.gguf"}, "a.gguf", ""},
		{"hf://o/r", Checkpoint{Scheme: SchemeHF, Repo: "o/r"}, "o/r", "o/r"},
		{"hf://o/r/d/f.gguf", Checkpoint{Scheme: SchemeHF, Repo: "o/r", Path: "d/f.gguf"}, "o/r/d/f.gguf", "o/r"},
		{"hf://o/r/f-IQ2_XXS.gguf", Checkpoint{Scheme: SchemeHF, Repo: "o/r", Path: "f-IQ2_XXS.gguf"}, "o/r/f-IQ2_XXS.gguf", "o/r o/r:IQ2_XXS"},
		{"hf://o/r/f.bf16.gguf", Checkpoint{Scheme: SchemeHF, Repo: "o/r", Path: "f.bf16.gguf"}, "o/r/f.bf16.gguf", "o/r o/r:bf16"},
		{"hf://o/r/f-UD-Q4_K_XL.gguf", Checkpoint{Scheme: SchemeHF, Repo: "o/r", Path: "f-UD-Q4_K_XL.gguf"}, "o/r/f-UD-Q4_K_XL.gguf", "o/r o/r:UD-Q4_K_XL"},
		{"hf://o/r@v1.0", Checkpoint{Scheme: SchemeHF, Repo: "o/r", Revision: "v1.0"}, "o/r@v1.0", "o/r"},
		{"hf://o/r/d/f-Q4_0.gguf@refs/pr/1", Checkpoint{Scheme: SchemeHF, Repo: "o/r", Path: "d/f-Q4_0.gguf", Revision: "refs/pr/1"}, "o/r/d/f-Q4_0.gguf@refs/pr/1", "o/r o/r:Q4_0"},
		{"hf://o/qwen/q1-8b.gguf", Checkpoint{Scheme: SchemeHF, Repo: "o/qwen", Path: "q1-8b.gguf"}, "o/qwen/q1-8b.gguf", "o/qwen"},
	} {
		c := ParseCheckpoint(tc.text)
		if c != tc.want || c.String() != tc.text || c.stableID() != tc.stable || strings.Join(c.Names(), " ") != tc.names || c.wrong() != "" {
			t.Errorf("%s: %+v, %q, %q, %q", tc.text, c, c.stableID(), c.Names(), c.wrong())
		}
	}
	for _, text := range []string{"s3://", "s3://b/", "s3://b/k/", "hf://o", "hf://o//f", "hf://o/r:q4", "hf://o/r/../f", "hf://o/r@../x", "s3://b/../k", "ftp://x", "a\nb"} {
		if ParseCheckpoint(text).wrong() == "" {
			t.Errorf("%q accepted", text)
		}
	}
}

// TestSignature pins the signatures: engines and caches of different versions share them.
func TestSignature(t *testing.T) {
	plain := Model{Checkpoint: "some/where/gemma-3-270m-q4_k_m.gguf"}
	moved := Model{ID: "other", Checkpoint: "s3://bucket/gemma-3-270m-q4_k_m.gguf"}
	vision := Model{Checkpoint: plain.Checkpoint, MMProj: "else/where/mmproj-640.gguf"}
	if plain.Signature() != moved.Signature() || plain.Signature() == vision.Signature() {
		t.Error("a signature depends on the stable id alone")
	}
	if got := vision.StableID(); got != "gemma-3-270m-q4_k_m.gguf+mmproj-640.gguf" {
		t.Errorf("stable id %q", got)
	}
	pinned := Model{Checkpoint: "hf://o/r/f.gguf@v2", MMProj: "hf://o/r/mmproj.gguf@refs/pr/1"}
	if got := pinned.StableID(); got != "o/r/f.gguf@v2+mmproj.gguf@refs/pr/1" {
		t.Errorf("stable id %q", got)
	}
	if got := vision.Signature(); got != 0xe1848eb41304009f {
		t.Errorf("signature %#x", got)
	}
}

func TestNames(t *testing.T) {
	long := strings.Repeat("a", 64)
	for _, s := range []string{"a", "A.b_c-d", "org/name", "org/name:tag", "name:.tag", long + "/" + long + ":" + long[1:]} {
		if !ValidModelName(s) {
			t.Errorf("%q refused", s)
		}
	}
	for _, s := range []string{"", "-a", ".a", "a/", "/a", "a/b/c", "a:", "a:b:c", "a b", "a..b", "a/..", "é", "a\n", long + "a", "{a}"} {
		if ValidModelName(s) {
			t.Errorf("%q accepted", s)
		}
	}
	if ValidHostName("a/b") || ValidHostName("a:b") || ValidHostName("a..b") || !ValidHostName("gpu-1.local") {
		t.Error("host names")
	}
}

func TestShards(t *testing.T) {
	for name, want := range map[string]string{
		"m.gguf":                           "m.gguf",
		"m-00002-of-00003.gguf":            "m-00001-of-00003.gguf m-00002-of-00003.gguf m-00003-of-00003.gguf",
		"m-00001-of-00001.gguf":            "m-00001-of-00001.gguf",
		"m-00007-of-00003.gguf":            "m-00007-of-00003.gguf",
		"m-00000-of-00000.gguf":            "m-00000-of-00000.gguf",
		"m-1-of-2.gguf":                    "m-1-of-2.gguf",
		"model-00001-of-00002.safetensors": "model-00001-of-00002.safetensors",
	} {
		if got := strings.Join(Shards(name), " "); got != want {
			t.Errorf("%s: %s", name, got)
		}
	}
}
