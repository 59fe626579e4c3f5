package plan

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"reveille/testenv"
)

// TestMetadataOfRealModels: the files contain what the golden files assume, and reading takes milliseconds.
func TestMetadataOfRealModels(t *testing.T) {
	files := testenv.Models(t)
	for path, want := range map[string]Meta{files.Gemma: gemma, files.MiniLM: minilm} {
		began := time.Now()
		got, err := Read(path)
		if err != nil || got != want {
			t.Errorf("%s: %v\ngot  %+v\nwant %+v", path, err, got, want)
		}
		t.Log(filepath.Base(path), time.Since(began))
	}
	if _, err := Read(files.GemmaVision); !errors.Is(err, ErrProjector) {
		t.Error("a projector was taken for a model")
	}
	if tokens, err := Vocabulary(files.MiniLM); err != nil || len(tokens) != 30_522 {
		t.Errorf("%d tokens, %v", len(tokens), err)
	}
	if tokens, err := Vocabulary(files.Gemma); err != nil || tokens != nil {
		t.Errorf("%d tokens of another tokenizer, %v", len(tokens), err)
	}
}

func TestMetadataOfFolders(t *testing.T) {
	for _, tt := range []struct {
		name, config string
		want         Meta
		fails        bool
	}{
		{"llama", `{"architectures":["LlamaForCausalLM"],"model_type":"llama","num_hidden_layers":32,"hidden_size":4096,"num_attention_heads":32,
			"num_key_value_heads":8,"vocab_size":128256,"max_position_embeddings":131072}`,
			Meta{Format: "safetensors", Arch: "llama", Weights: 3, Layers: 32, Hidden: 4096, Heads: 32, Vocab: 128_256, Positions: 131_072, Causal: true,
				Cache: Elements{32768, 32768}}, false},
		{"a part for text, layers with a window", `{"architectures":["Gemma3ForConditionalGeneration"],"model_type":"gemma3","text_config":{"num_hidden_layers":3,
			"hidden_size":640,"num_attention_heads":4,"num_key_value_heads":1,"head_dim":256,"sliding_window":512,"vocab_size":5,
			"layer_types":["sliding_attention","sliding_attention","full_attention"]}}`,
			Meta{Format: "safetensors", Arch: "gemma3", Weights: 3, Layers: 3, Hidden: 640, Heads: 4, Vocab: 5, Causal: true, Cache: Elements{256, 256},
				Windowed: Elements{512, 512}, Window: 512}, false},
		{"one latent vector", `{"architectures":["DeepseekV3ForCausalLM"],"model_type":"deepseek_v3","num_hidden_layers":2,"hidden_size":64,"num_attention_heads":4,
			"kv_lora_rank":512,"qk_rope_head_dim":64}`,
			Meta{Format: "safetensors", Arch: "deepseek_v3", Weights: 3, Layers: 2, Hidden: 64, Heads: 4, Causal: true, Cache: Elements{K: 1152}}, false},
		{"an encoder", `{"architectures":["BertModel"],"model_type":"bert","num_hidden_layers":6,"hidden_size":384,"num_attention_heads":12,"max_position_embeddings":512}`,
			Meta{Format: "safetensors", Arch: "bert", Weights: 3, Layers: 6, Hidden: 384, Heads: 12, Positions: 512, Cache: Elements{2304, 2304}}, false},
		{"stretched positions", `{"model_type":"qwen2","max_position_embeddings":32768,"rope_scaling":{"rope_type":"yarn","factor":4.0}}`,
			Meta{Format: "safetensors", Arch: "qwen2", Weights: 3, Positions: 32_768, Scaled: true}, false},
		{"not JSON", `{`, Meta{}, true},
		{"beyond any size", `{"num_hidden_layers":1000000,"num_attention_heads":1}`, Meta{}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Read(folder(t, tt.config))
			if tt.fails != (err != nil) || !tt.fails && got != tt.want {
				t.Errorf("%v\ngot  %+v\nwant %+v", err, got, tt.want)
			}
		})
	}
	for files, want := range map[string]int64{ // a file's size is the number in its name
		"model-1.safetensors model-2.safetensors model.safetensors.index.json pytorch_model-4.bin": 3,
		"model-1.safetensors consolidated-2.safetensors":                                           1,
		"consolidated-1.safetensors":                                                               1,
		"openvino_model-1.bin openvino_tokenizer-2.bin pytorch_model-4.bin":                        3,
		"pytorch_model-1.bin pytorch_model-2.bin training_args-4.bin optimizer-8.pt model-16.pt":   3,
		"m-1.gguf m-2.gguf": 3,
		"model.onnx model.onnx_data1 model_q4.onnx model_q4.onnx_data4 decoder.onnx": 1,
		"x-1.pth": 1,
		"unet/a-1.safetensors vae/a-2.bin vae/a-4.pt vae/deep/a-8.bin .git/a-16.bin": 3,
		"tokenizer-1.json": 0,
	} {
		dir := folder(t, "{}")
		_ = os.Remove(filepath.Join(dir, "model.safetensors"))
		for name := range strings.FieldsSeq(files) {
			size, _ := strconv.Atoi(strings.Trim(name, "abcdefghijklmnopqrstuvwxyz./_-"))
			_ = os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700)
			if err := os.WriteFile(filepath.Join(dir, name), make([]byte, size), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if m, err := Read(dir); err != nil || m.Weights != want {
			t.Errorf("%s: %d bytes, want %d (%v)", files, m.Weights, want, err)
		}
	}
	dir := folder(t, `{"model_type":"bert","max_position_embeddings":512}`)
	if err := os.WriteFile(filepath.Join(dir, "sentence_bert_config.json"), []byte(`{"max_seq_length":256,"do_lower_case":false}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if m, err := Read(dir); err != nil || m.Positions != 256 { // vLLM loads no model that is to take more
		t.Errorf("a sentence transformer has %d positions, want 256 (%v)", m.Positions, err)
	}
	if _, err := Read(t.TempDir()); !errors.Is(err, errNoMetadata) {
		t.Error(err)
	}
	if _, err := Read(filepath.Join(t.TempDir(), "no")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// folder returns a checkpoint of safetensors with the given config.json.
func folder(t *testing.T, config string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"config.json": config, "model.safetensors": "abc"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// header writes a GGUF header.
type header struct{ bytes.Buffer }

func (h *header) num(v any) *header {
	_ = binary.Write(h, binary.LittleEndian, v)
	return h
}

func (h *header) text(s string) *header {
	h.num(uint64(len(s)))
	h.WriteString(s)
	return h
}

func begin(tensors, keys uint64) *header {
	h := &header{}
	h.WriteString("GGUF")
	return h.num(uint32(3)).num(tensors).num(keys)
}

func FuzzReadGGUF(f *testing.F) {
	f.Add(begin(0, 0).Bytes())
	f.Add(begin(0, 1).text("general.architecture").num(uint32(4)).num(uint32(7)).Bytes())
	f.Add(begin(0, 2).text("general.architecture").num(uint32(8)).text("llama").text("llama.block_count").num(uint32(4)).num(uint32(2)).Bytes())
	f.Add(begin(0, 1).text("tokenizer.ggml.tokens").num(uint32(9)).num(uint32(8)).num(uint64(2)).text("a").text("b").Bytes())
	f.Add(begin(1, 1).text("general.alignment").num(uint32(4)).num(uint32(0)).text("t").num(uint32(1)).num(uint64(4)).num(uint32(0)).num(uint64(0)).Bytes())
	path := filepath.Join(f.TempDir(), "m.gguf")
	f.Fuzz(func(t *testing.T, raw []byte) {
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		m, err := Read(path)
		if err == nil && (m.Layers < 0 || m.Weights < 0 || m.Cache.K < 0) {
			t.Errorf("%+v", m)
		}
		_, _ = Vocabulary(path)
	})
}

func FuzzConfig(f *testing.F) {
	f.Add([]byte(`{"num_hidden_layers":2,"num_attention_heads":2,"hidden_size":8,"layer_types":["linear_attention"],"kv_lora_rank":-5}`))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, raw []byte) {
		if err := os.WriteFile(filepath.Join(dir, "config.json"), raw, 0o600); err != nil {
			t.Fatal(err)
		}
		m, err := Read(dir)
		if err == nil && (m.Layers < 0 || m.Cache.K < 0 || m.Cache.V < 0 || m.Window < 0) {
			t.Errorf("%+v", m)
		}
	})
}
