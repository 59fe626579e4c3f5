package manage

import (
	"reflect"
	"strings"
	"testing"

	"reveille/gateway/models"
	"reveille/infra/catalog"
	"reveille/infra/policy"
)

// What a model's names reveal, and what they do not.
func TestOllamaDetails(t *testing.T) {
	details := func(format, size, quantization string) ollamaDetails {
		return ollamaDetails{Format: format, Parameters: size, Quantization: quantization, Families: []string{}}
	}
	tests := []struct {
		model  catalog.Model
		folder bool
		want   ollamaDetails
	}{
		{catalog.Model{ID: "m"}, false, details("", "", "")},
		{catalog.Model{ID: "m", Checkpoint: "dir/gemma-3-270m-q4_k_m.gguf"}, false, details("gguf", "270M", "Q4_K_M")},
		{catalog.Model{ID: "m", Checkpoint: `C:\big-4B\Qwen3-0.6B-IQ4_XS.GGUF`}, false, details("gguf", "0.6B", "IQ4_XS")},
		{catalog.Model{ID: "m", Checkpoint: "/m/Mixtral-8x7B-UD-Q4_K_XL-00001-of-00003.gguf"}, false, details("gguf", "8x7B", "Q4_K_XL")},
		{catalog.Model{ID: "m", Checkpoint: "/m/Phi-3-mini-4k-instruct.f16.gguf"}, false, details("gguf", "", "F16")},
		{catalog.Model{ID: "gemma:4b-bf16", Checkpoint: "/m/weights.gguf"}, false, details("gguf", "4B", "BF16")},
		{catalog.Model{ID: "m", Checkpoint: "hf://lab/chat-1.7B-fp8@main"}, false, details("safetensors", "1.7B", "FP8")},
		{catalog.Model{ID: "m", Checkpoint: "hf://lab/chat-4B-GGUF/weights.Q8_0.gguf"}, false, details("gguf", "4B", "Q8_0")},
		{catalog.Model{ID: "m", Checkpoint: "hf://lab/chat/model.safetensors"}, false, details("safetensors", "", "")},
		{catalog.Model{ID: "m", Checkpoint: "s3://bucket/chat-7b.bin"}, false, details("", "7B", "")},
		{catalog.Model{ID: "bge-m3", Checkpoint: "/m/v2.7b"}, true, details("safetensors", "", "")},
		{catalog.Model{ID: "m", Checkpoint: "lab/chat"}, false, details("", "", "")},
	}
	for _, tt := range tests {
		if got := ollamaDetailsOf(&tt.model, models.Weights{Folder: tt.folder}); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s %s:\ngot  %+v\nwant %+v", tt.model.ID, tt.model.Checkpoint, got, tt.want)
		}
	}
}

// The digest tells models apart, and does not change.
func TestOllamaDigest(t *testing.T) {
	seen := map[string]bool{}
	for _, m := range []catalog.Model{{ID: "a"}, {ID: "a", Checkpoint: "b"}, {ID: "ab"}, {ID: "a", MMProj: "b"}, {ID: "a", Checkpoint: "b", MMProj: "c"}} {
		digest := ollamaDigest(&m)
		if seen[digest] || digest != ollamaDigest(&m) {
			t.Errorf("%+v: %s", m, digest)
		}
		seen[digest] = true
	}
}

func TestOllamaCapabilities(t *testing.T) {
	tests := []struct {
		model catalog.Model
		want  string
	}{
		{catalog.Model{Type: policy.LLM}, "completion"},
		{catalog.Model{Type: policy.LLM, MMProj: "p"}, "completion vision"},
		{catalog.Model{Type: policy.LLM, Labels: []string{"tools", "vision", "thinking", "hot"}}, "completion vision tools thinking"},
		{catalog.Model{Type: policy.LLM, Labels: []string{"tool-calling", "reasoning"}}, "completion tools thinking"},
		{catalog.Model{Type: policy.Embedding, Labels: []string{"tools"}}, "embedding"},
		{catalog.Model{Type: policy.Reranking}, ""},
		{catalog.Model{Type: policy.Audio, Labels: []string{"vision"}}, ""},
	}
	for _, tt := range tests {
		if got := capabilities(&tt.model, models.Weights{}); got == nil || strings.Join(got, " ") != tt.want {
			t.Errorf("%+v: %q, want %q", tt.model, got, tt.want)
		}
	}
}

// What is known of an architecture has a key with its name.
func TestOllamaInfo(t *testing.T) {
	m := &catalog.Model{ID: "m"}
	if got, want := ollamaInfo(m, "", 0), (map[string]any{"general.basename": "m"}); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	want := map[string]any{"general.basename": "m", "general.architecture": "whisper", "whisper.context_length": int64(448)}
	if got := ollamaInfo(m, "whisper", 448); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
