package plan

import (
	"encoding/json"
	"flag"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"reveille/infra/policy"
	"reveille/infra/recipe"
	"reveille/runner/engine"
	"reveille/testenv/kit"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// The models of the golden files, as their files describe them.
var (
	gemma = Meta{
		Format: "gguf", Arch: "gemma3", Weights: 246_587_904, Layers: 18, Hidden: 640, Heads: 4, Vocab: 262_144, Positions: 32_768, Causal: true,
		Cache: Elements{768, 768}, Windowed: Elements{3840, 3840}, Window: 512, Tokenizer: "llama",
	}
	minilm = Meta{
		Format: "gguf", Arch: "bert", Weights: 45_586_944, Layers: 6, Hidden: 384, Heads: 12, Vocab: 30_522, Positions: 512,
		Cache: Elements{2304, 2304}, Pooling: 1, Tokenizer: "bert",
	}
	llama8b = Meta{
		Format: "safetensors", Arch: "llama", Weights: 16_060_522_496, Layers: 32, Hidden: 4096, Heads: 32, Vocab: 128_256, Positions: 131_072,
		Causal: true, Cache: Elements{32 * 8 * 128, 32 * 8 * 128},
	}
)

const gib = 1 << 30

func TestPlansOfKnownModels(t *testing.T) {
	for _, tt := range []struct {
		name  string
		meta  Meta
		opts  Options
		share Share
		want  func(t *testing.T, p Plan)
	}{
		{"the context asked for", gemma, Options{Type: policy.LLM, Engine: "llamacpp", Context: 4096}, Share{}, func(t *testing.T, p Plan) {
			// As llama-server counts: 3 layers of 4096 cells and 15 of 4 × 512 + 512.
			if p.Kind != Paged || p.Context != 4096 || p.KVBytes != 12<<20+75<<19 || p.KVBytesPerToken != 2*2*(768+3840) {
				t.Errorf("%+v", p)
			}
		}},
		{"quantised cache", gemma, Options{Type: policy.LLM, Engine: "llamacpp", Context: 4096, Parallel: 1, NUBatch: 256, CacheK: "q8_0", CacheV: "q8_0"}, Share{}, func(t *testing.T, p Plan) {
			if want := int64(4096*1536*34/32 + 768*7680*34/32); p.KVBytes != want {
				t.Errorf("KV %d, want %d", p.KVBytes, want)
			}
		}},
		{"a processor", gemma, Options{Type: policy.LLM, Devices: policy.CPU, Engine: "llamacpp", Context: 4096}, Share{}, func(t *testing.T, p Plan) {
			if p.NBatch != 512 || p.Physical != 512 {
				t.Errorf("%+v", p)
			}
		}},
		{"a processor, larger physical batch", gemma, Options{Type: policy.LLM, Devices: policy.CPU, Engine: "llamacpp", Context: 4096, NUBatch: 1024}, Share{}, func(t *testing.T, p Plan) {
			if p.NBatch != 1024 || p.Physical != 1024 {
				t.Errorf("%+v", p)
			}
		}},
		{"a GPU", gemma, Options{Type: policy.LLM, Devices: policy.GPU, Engine: "llamacpp", Context: 4096}, Share{}, func(t *testing.T, p Plan) {
			if p.NBatch != 2048 || p.Physical != 512 {
				t.Errorf("%+v", p)
			}
		}},
		{"a share", llama8b, Options{Type: policy.LLM, Devices: policy.GPU, Engine: "vllm", Context: -1}, ShareOf(80*gib, 2, 0, 0), func(t *testing.T, p Plan) {
			if p.Share != 40*gib || p.Need > p.Share || p.Need < p.Share-gib || p.Longest != 131_072 {
				t.Errorf("%+v", p)
			}
		}},
		{"too small a share", llama8b, Options{Type: policy.LLM, Devices: policy.GPU, Engine: "vllm", Context: -1, Fraction: true}, ShareOf(24*gib, 2, 0, 0), func(t *testing.T, p Plan) {
			if p.Context != minContext || len(p.Warnings) != 1 || !strings.Contains(p.Warnings[0], "more than its share") {
				t.Errorf("%+v", p)
			}
		}},
		{"too large even alone", llama8b, Options{Type: policy.LLM, Devices: policy.GPU, Engine: "vllm", Context: -1}, ShareOf(8*gib, 1, 0, 0), func(t *testing.T, p Plan) {
			if parts := p.Parts(); p.Need <= p.Budget || !strings.Contains(parts, "weights 16060522496, ") {
				t.Errorf("%d of %d: %s", p.Need, p.Budget, parts)
			}
		}},
		{"memory overrides", llama8b, Options{Type: policy.LLM, Devices: policy.GPU, Engine: "vllm", Context: -1, Memory: 20 * gib}, ShareOf(80*gib, 4, 0, 0), func(t *testing.T, p Plan) {
			if p.Share != 20*gib || p.Need != 20*gib || p.Parts() != "" || p.KVBytes < 3*gib {
				t.Errorf("%+v", p)
			}
		}},
		{"embedding", minilm, Options{Type: policy.Embedding, Devices: policy.CPU, Engine: "llamacpp"}, ShareOf(8*gib, 1, 0, 0), func(t *testing.T, p Plan) {
			if p.Kind != Plain || p.KVBytes != 0 || p.NBatch != 2048 || p.NUBatch != 2048 || p.Context != 4096 || p.Physical != 512 || p.Longest != 512 {
				t.Errorf("%+v", p)
			}
		}},
		{"embedding on a GPU", minilm, Options{Type: policy.Embedding, Devices: policy.GPU, Engine: "llamacpp", NBatch: 8192}, Share{}, func(t *testing.T, p Plan) {
			if p.Physical != 8192 || p.Context != 16_384 || p.Longest != 512 {
				t.Errorf("%+v", p)
			}
		}},
		{"sizes that contradict", minilm, Options{Type: policy.Embedding, Engine: "llamacpp", NBatch: 512, NUBatch: 1024, Context: 100}, Share{}, func(t *testing.T, p Plan) {
			if p.NUBatch != 512 || p.Context != 512 {
				t.Errorf("%+v", p)
			}
		}},
		{"a generative model that embeds", gemma, Options{Type: policy.Embedding, Engine: "llamacpp"}, Share{}, func(t *testing.T, p Plan) {
			if p.Kind != Plain || p.KVBytes != 0 || p.Need <= p.WeightsBytes {
				t.Errorf("%+v", p)
			}
		}},
		{"pictures", gemma, Options{Type: policy.LLM, Engine: "llamacpp", Context: 4000, Media: true, Projector: gib}, Share{}, func(t *testing.T, p Plan) {
			// As llama-server counts: 3 layers of 4 × 4096 cells and 15 of 4 × (512 + 512).
			if !p.Divided || p.Context != 4*4096 || p.Longest != 4096 || p.Parallel != 4 || p.KVBytes != 108<<20 || p.WeightsBytes != gemma.Weights+gib {
				t.Errorf("%+v", p)
			}
		}},
		{"pictures, a share for two sequences", gemma, Options{Type: policy.LLM, Engine: "llamacpp", Context: 32_768, Media: true}, ShareOf(600<<20, 1, 0, 0), func(t *testing.T, p Plan) {
			if p.Longest != 32_768 || p.Parallel != 2 || p.Context != 2*32_768 || p.Need > p.Share {
				t.Errorf("%+v", p)
			}
		}},
		{"pictures, the share filled", gemma, Options{Type: policy.LLM, Devices: policy.GPU, Engine: "llamacpp", Context: -1, Media: true}, ShareOf(gib, 1, 0, 0), func(t *testing.T, p Plan) {
			if p.Parallel != 4 || p.Longest < defaultContext || p.Context != 4*p.Longest || p.Need > p.Share {
				t.Errorf("%+v", p)
			}
		}},
		{"pictures, one sequence", gemma, Options{Type: policy.LLM, Devices: policy.GPU, Engine: "llamacpp", Context: -1, Media: true}, ShareOf(400<<20, 1, 0, 0), func(t *testing.T, p Plan) {
			if p.Parallel != 1 || p.Longest < defaultContext || p.Longest != p.Context || p.Need > p.Share {
				t.Errorf("%+v", p)
			}
		}},
		{"pictures, as many sequences as asked for", gemma, Options{Type: policy.LLM, Engine: "llamacpp", Context: 32_768, Parallel: 8, Media: true}, ShareOf(gib, 1, 0, 0), func(t *testing.T, p Plan) {
			if p.Parallel != 8 || p.Longest != 32_768 || len(p.Warnings) != 1 {
				t.Errorf("%+v", p)
			}
		}},
		{"embeddings of pictures", gemma, Options{Type: policy.Embedding, Engine: "llamacpp", Context: 8192, NUBatch: 2048, Media: true}, Share{}, func(t *testing.T, p Plan) {
			if !p.Divided || p.Parallel != 4 || p.Context != 8192 {
				t.Errorf("%+v", p)
			}
		}},
		{"pictures, no metadata", Meta{Weights: 1000}, Options{Type: policy.LLM, Engine: "llamacpp", Media: true}, Share{}, func(t *testing.T, p Plan) {
			if p.Parallel != 1 {
				t.Errorf("%+v", p)
			}
		}},
		{"no metadata", Meta{Weights: 1000}, Options{Type: policy.LLM, Engine: "vllm", Context: -1}, ShareOf(8*gib, 1, 0, 0), func(t *testing.T, p Plan) {
			if p.Kind != Plain || p.Context != 0 || p.NBatch != 0 || !strings.Contains(p.Reason, "no metadata") {
				t.Errorf("%+v", p)
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) { tt.want(t, Make(tt.meta, tt.opts, tt.share)) })
	}
}

func TestConfiguredValuesOverrideDefaults(t *testing.T) {
	for _, tt := range []struct{ in, want Options }{
		{Options{}, Options{NBatch: 2048, NUBatch: 2048, Context: 4096}},
		{Options{Context: 512}, Options{NBatch: 512, NUBatch: 512, Context: 512}},
		{Options{NUBatch: 4096}, Options{NBatch: 4096, NUBatch: 4096, Context: 8192}},
		{Options{NBatch: 256}, Options{NBatch: 256, NUBatch: 256, Context: 512}},
	} {
		tt.in.Type = policy.Embedding
		p := Make(minilm, tt.in, Share{})
		if err := tt.in.Validate(); err != nil || p.NBatch != tt.want.NBatch || p.NUBatch != tt.want.NUBatch || p.Context != tt.want.Context || p.Warnings != nil {
			t.Errorf("%+v: %+v, %v", tt.in, p, err)
		}
	}
	for _, o := range []Options{{NBatch: 5, NUBatch: 6}, {Type: policy.Embedding, NBatch: 600, Context: 500}} {
		if o.Validate() == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
}

// TestPlansDoNotDependOnTheOrderOfLoads: with slot limits a plan does not depend on what is loaded; without them, only
// on how many models are.
func TestPlansDoNotDependOnTheOrderOfLoads(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		budget, limit := rapid.Int64Range(1, 1<<40).Draw(t, "budget"), rapid.IntRange(1, 8).Draw(t, "limit")
		a, b := rapid.IntRange(0, 8).Draw(t, "loaded"), rapid.IntRange(0, 8).Draw(t, "loaded another time")
		if ShareOf(budget, limit, a, 0) != ShareOf(budget, limit, b, 0) {
			t.Fatal("the share depends on what is loaded")
		}
		if got := ShareOf(budget, -1, a, 0).of(0); got != budget/int64(a+1) {
			t.Fatalf("without a limit: %d", got)
		}
	})
}

// TestPlansKeepTheirInvariants: whatever the metadata says, nothing is negative, and an automatic context fits its
// share or is the minimum.
func TestPlansKeepTheirInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(0, 1<<20)
		m := Meta{
			Format: "gguf", Weights: rapid.Int64Range(0, 1<<42).Draw(t, "weights"), Layers: rapid.IntRange(0, 200).Draw(t, "layers"),
			Hidden: size.Draw(t, "hidden"), Vocab: size.Draw(t, "vocab"), Positions: size.Draw(t, "positions"), Causal: rapid.Bool().Draw(t, "causal"),
			Cache: Elements{int64(size.Draw(t, "k")), int64(size.Draw(t, "v"))}, Windowed: Elements{int64(size.Draw(t, "wk")), 0}, Window: size.Draw(t, "window"),
		}
		o := Options{
			Type: rapid.SampledFrom(policy.Types()).Draw(t, "type"), Engine: rapid.SampledFrom([]string{"llamacpp", "vllm"}).Draw(t, "engine"),
			Devices: rapid.SampledFrom([]policy.Devices{policy.CPU, policy.GPU}).Draw(t, "device"), Context: rapid.SampledFrom([]int{-1, 0, 5000}).Draw(t, "context"),
			NBatch: rapid.IntRange(0, 9000).Draw(t, "n_batch"), NUBatch: rapid.IntRange(0, 9000).Draw(t, "n_ubatch"),
			Parallel: rapid.IntRange(0, 9).Draw(t, "parallel"), Media: rapid.Bool().Draw(t, "media"), Projector: rapid.Int64Range(0, 1<<32).Draw(t, "projector"),
		}
		p := Make(m, o, ShareOf(rapid.Int64Range(0, 1<<42).Draw(t, "budget"), rapid.IntRange(-1, 5).Draw(t, "limit"), 1, 0))
		if p.Need < 0 || p.KVBytes < 0 || p.Context < 0 || p.NUBatch > p.NBatch || p.Physical >= p.NBatch+p.Parallel || p.Kind == Plain && p.KVBytes != 0 {
			t.Fatalf("%+v", p)
		}
		if p.Kind == Paged && o.Context <= 0 && p.Share > 0 && p.Need > p.Share && p.Context > minContext {
			t.Fatalf("over its share: %+v", p)
		}
		if p.Divided && m.Format != "" && p.Longest*p.Parallel > p.Context {
			t.Fatalf("sequences longer than their part: %+v", p)
		}
		if p.Kind == Plain && (p.Context < p.NBatch || p.Longest > p.Physical) {
			t.Fatalf("sizes contradict: %+v", p)
		}
		if o.Engine == "llamacpp" && (p.Parallel > p.Physical || p.Kind == Plain && p.Physical%p.Parallel != 0) {
			t.Fatalf("llama-server aborts: %+v", p)
		}
	})
}

// TestPlansMatchGoldenFiles compares whole command lines with testdata/argv.
func TestPlansMatchGoldenFiles(t *testing.T) {
	set := recipe.Shipped()
	long, err := Read(folder(t, `{"architectures":["BertModel"],"model_type":"bert","num_hidden_layers":12,"hidden_size":768,"num_attention_heads":12,
		"vocab_size":30522,"max_position_embeddings":8192}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		file, recipe string
		meta         Meta
		typ          policy.Type
		device       policy.Devices
		request      map[string]any
		share        Share
	}{
		{"llamacpp-gemma", "llamacpp", gemma, policy.LLM, policy.CPU, map[string]any{"ctx_size": 4096, "llamacpp_args": "-np 4"}, ShareOf(16*gib, 1, 0, 0)},
		{"llamacpp-gemma-automatic", "llamacpp", gemma, policy.LLM, policy.GPU, nil, ShareOf(2*gib, 2, 0, 0)},
		{"llamacpp-gemma-vision", "llamacpp", gemma, policy.LLM, policy.CPU, map[string]any{"ctx_size": 4096, "kv_unified": true}, ShareOf(16*gib, 1, 0, 0)},
		{"llamacpp-gemma-q8", "llamacpp", gemma, policy.LLM, policy.GPU, map[string]any{"ctx_size": 32_768, "cache_type_k": "q8_0", "cache_type_v": "q8_0"}, Share{}},
		{"llamacpp-minilm", "llamacpp", minilm, policy.Embedding, policy.CPU, nil, ShareOf(16*gib, 1, 0, 0)},
		{"llamacpp-minilm-gpu", "llamacpp", minilm, policy.Embedding, policy.GPU, map[string]any{"n_batch": 4096}, Share{}},
		{"llamacpp-reranker", "llamacpp", minilm, policy.Reranking, policy.CPU, nil, Share{}},
		{"llamacpp-unknown", "llamacpp", Meta{}, policy.LLM, policy.CPU, nil, ShareOf(16*gib, 1, 0, 0)},
		{"vllm-llama", "vllm", llama8b, policy.LLM, policy.GPU, nil, ShareOf(80*gib, 2, 0, 0)},
		{"vllm-llama-bytes", "vllm", llama8b, policy.LLM, policy.GPU, map[string]any{"ctx_size": 16384, "kv_cache_bytes": -1}, ShareOf(80*gib, 2, 0, 0)},
		{"vllm-llama-cpu", "vllm", llama8b, policy.LLM, policy.CPU, map[string]any{"ctx_size": 4096}, Share{Budget: 60 * gib, Total: 64 * gib, Paged: 1}},
		{"vllm-minilm", "vllm", minilm, policy.Embedding, policy.GPU, nil, ShareOf(80*gib, 2, 0, 0)},
		{"mistralrs-llama", "mistralrs", llama8b, policy.LLM, policy.GPU, nil, ShareOf(48*gib, 1, 0, 0)},
		{"mlx-lm-llama", "mlx-lm", llama8b, policy.LLM, policy.GPU, nil, ShareOf(48*gib, 1, 0, 0)},
		{"tei-minilm", "tei", minilm, policy.Embedding, policy.GPU, map[string]any{"n_batch": 16384}, Share{}},
		{"vllm-llama-total", "vllm", llama8b, policy.LLM, policy.GPU, nil, Share{Budget: 70 * gib, Total: 80 * gib, Paged: 2}},
		{"vllm-minilm-context", "vllm", minilm, policy.Embedding, policy.GPU, map[string]any{"ctx_size": 32_768}, Share{}},
		{"vllm-unknown-embedding", "vllm", Meta{}, policy.Embedding, policy.GPU, map[string]any{"ctx_size": 32_768}, Share{}},
		{"vllm-unknown", "vllm", Meta{Weights: gib}, policy.LLM, policy.GPU, map[string]any{"ctx_size": 16_384}, Share{}},
		{"openvino-llama", "openvino", llama8b, policy.LLM, policy.GPU, nil, ShareOf(24*gib, 1, 0, 0)},
		{"openvino-llama-npu", "openvino", llama8b, policy.LLM, policy.NPU, map[string]any{"n_parallel": 1, "openvino_args": "--max_prompt_len 4096"}, Share{}},
		{"tei-long", "tei", long, policy.Embedding, policy.GPU, nil, Share{}},
		{"tei-long-limits", "tei", long, policy.Embedding, policy.CPU, map[string]any{"ctx_size": 6144, "n_batch": 2048, "n_ubatch": 1024}, Share{}},
		{"tei-unknown", "tei", Meta{}, policy.Embedding, policy.GPU, nil, Share{}},
	} {
		t.Run(tt.file, func(t *testing.T) {
			argv, p := command(t, set[tt.recipe], tt.meta, tt.typ, tt.device, tt.request, tt.share, strings.HasSuffix(tt.file, "-vision"))
			text, err := json.MarshalIndent(p, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			kit.Golden(t, *update, filepath.Join("testdata", "argv", tt.file+".txt"), strings.Join(argv, "\n")+"\n\n"+string(text)+"\n")
		})
	}
}

// command returns the plan of a load with the owner's options, and its command line.
func command(t *testing.T, r recipe.Recipe, m Meta, typ policy.Type, d policy.Devices, owner map[string]any, s Share, media bool) (argv []string, p Plan) {
	t.Helper()
	given, err := r.ParseOptions(owner, recipe.Operator)
	if err != nil {
		t.Fatal(err)
	}
	opts := r.Effective(recipe.Layers{Catalog: given})
	o := OptionsOf(&r, typ, d, 0, opts)
	if o.Media = media; media {
		o.Projector = gib
	}
	p = Make(m, o, s)
	argv, err = engine.Argv(engine.Spec{
		Recipe: r, Model: "m", Checkpoint: "/models/m", Type: typ, Devices: d, Options: p.Apply(&r, opts), Host: "127.0.0.1", Port: 8001,
	})
	if err != nil {
		t.Fatal(err)
	}
	return argv, p
}

// TestDerivedRecipesPlanLikeTheirFamily: a recipe that inherits, at any depth, is planned and started like the one at
// the root.
func TestDerivedRecipesPlanLikeTheirFamily(t *testing.T) {
	for name, load := range map[string]struct {
		meta    Meta
		typ     policy.Type
		request map[string]any
	}{
		"llamacpp":  {minilm, policy.Embedding, map[string]any{"n_batch": 4096, "n_ubatch": 512}},
		"vllm":      {llama8b, policy.LLM, map[string]any{"ctx_size": 200_000}},
		"tei":       {minilm, policy.Embedding, map[string]any{"n_batch": 256}},
		"mistralrs": {llama8b, policy.LLM, nil},
	} {
		set, err := recipe.Shipped().With(map[string]recipe.Recipe{"child": {Inherit: name}, "grandchild": {Inherit: "child"}})
		if err != nil {
			t.Fatal(err)
		}
		argv, p := command(t, set[name], load.meta, load.typ, policy.GPU, load.request, ShareOf(80*gib, 2, 0, 0), false)
		for _, heir := range []string{"child", "grandchild"} {
			got, planned := command(t, set[heir], load.meta, load.typ, policy.GPU, load.request, ShareOf(80*gib, 2, 0, 0), false)
			if !slices.Equal(got, argv) || !reflect.DeepEqual(planned, p) {
				t.Errorf("%s of %s:\n%q\n%+v\nwant\n%q\n%+v", heir, name, got, planned, argv, p)
			}
		}
	}
}

// TestLongestIsBoundedByTheModel: vllm is never given a sequence longer than the model's own, unless its positions are
// stretched.
func TestLongestIsBoundedByTheModel(t *testing.T) {
	r := recipe.Shipped()["vllm"]
	stretched := llama8b
	stretched.Scaled = true
	for _, tt := range []struct {
		name    string
		meta    Meta
		request map[string]any
		want    string
	}{
		{"too long", llama8b, map[string]any{"ctx_size": 200_000}, "131072"},
		{"shorter", llama8b, map[string]any{"ctx_size": 8192}, "8192"},
		{"stretched by the model", stretched, map[string]any{"ctx_size": 200_000}, "200000"},
		{"stretched by arguments", llama8b, map[string]any{"ctx_size": 200_000, "vllm_args": `--hf-overrides {}`}, "200000"},
		{"stretched, but nobody asked", stretched, nil, "131072"},
	} {
		argv, _ := command(t, r, tt.meta, policy.LLM, policy.GPU, tt.request, ShareOf(800*gib, 1, 0, 0), false)
		if i := slices.Index(argv, "--max-model-len"); i < 0 || argv[i+1] != tt.want {
			t.Errorf("%s: %q, want %s", tt.name, argv, tt.want)
		}
	}
}

// TestVLLMGetsItsFractionOfTheDevice: a plan says so if the fraction that it gives is only that of the budget.
func TestVLLMGetsItsFractionOfTheDevice(t *testing.T) {
	r := recipe.Shipped()["vllm"]
	for _, tt := range []struct {
		name    string
		request map[string]any
		share   Share
		warned  bool
	}{
		{"unknown", nil, Share{Budget: 70 * gib, Paged: 1}, true},
		{"known", nil, Share{Budget: 70 * gib, Total: 80 * gib, Paged: 1}, false},
		{"no budget", nil, Share{Paged: 1}, false},
		{"set by somebody", map[string]any{"gpu_memory_utilization": 0.8}, Share{Budget: 70 * gib, Paged: 1}, false},
		{"set by arguments", map[string]any{"vllm_args": "--gpu-memory-utilization=0.8"}, Share{Budget: 70 * gib, Paged: 1}, false},
		{"bytes instead", map[string]any{"kv_cache_bytes": -1}, Share{Budget: 70 * gib, Paged: 1}, false},
	} {
		_, p := command(t, r, llama8b, policy.LLM, policy.GPU, tt.request, tt.share, false)
		if warned := strings.Contains(strings.Join(p.Warnings, "\n"), "gpu_memory_utilization"); warned != tt.warned {
			t.Errorf("%s: %q", tt.name, p.Warnings)
		}
	}
}
