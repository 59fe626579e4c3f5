package engine

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"reveille/infra/policy"
	"reveille/infra/recipe"
	"reveille/testenv/kit"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestArgvMatchesGoldenFiles compares argument vectors and the recipe's own variables with testdata/argv, one argument
// on a line.
func TestArgvMatchesGoldenFiles(t *testing.T) {
	set := recipe.Shipped()
	type opts = recipe.Options
	for _, tt := range []struct {
		file, recipe string
		spec         Spec // what differs from the usual
		owner        map[string]any
	}{
		{"llamacpp-llm", "llamacpp", Spec{Type: policy.LLM}, opts{"ctx_size": 4096, "llamacpp_args": `-np 4 --override-kv "a=str:b c"`}},
		{"llamacpp-llm-defaults", "llamacpp", Spec{Type: policy.LLM}, nil},
		{"llamacpp-vision-cpu", "llamacpp", Spec{Type: policy.LLM, MMProj: "/models/mm.gguf", Devices: policy.CPU}, nil},
		{"llamacpp-embedding", "llamacpp", Spec{Type: policy.Embedding}, opts{"n_batch": 2048, "n_ubatch": 512, "n_parallel": 8, "llamacpp_backend": "cuda"}},
		{"llamacpp-reranking", "llamacpp", Spec{Type: policy.Reranking}, nil},
		{"flm-llm", "flm", Spec{Type: policy.LLM, Checkpoint: "qwen3:4b"}, opts{"ctx_size": 8192}},
		{"flm-audio", "flm", Spec{Type: policy.Audio, Checkpoint: "whisper-v3:turbo"}, nil},
		{"flm-embedding", "flm", Spec{Type: policy.Embedding, Checkpoint: "embed-gemma:300m"}, nil},
		{"ryzenai-llm", "ryzenai-llm", Spec{Type: policy.LLM, Checkpoint: "/models/phi"}, opts{"ctx_size": 4096}},
		{"oga-hybrid", "oga-hybrid", Spec{Type: policy.LLM, Checkpoint: "/models/phi"}, nil},
		{"oga-npu", "oga-npu", Spec{Type: policy.LLM, Checkpoint: "/models/phi"}, nil},
		{"oga-cpu", "oga-cpu", Spec{Type: policy.LLM, Checkpoint: "/models/phi"}, nil},
		{"whispercpp", "whispercpp", Spec{Type: policy.Audio, Devices: policy.CPU}, opts{"whispercpp_args": "--convert -t 8"}},
		{"whispercpp-npu", "whispercpp", Spec{Type: policy.Audio}, opts{"whispercpp_backend": "npu"}},
		{"sd-cpp", "sd-cpp", Spec{Type: policy.Image}, opts{"steps": 20, "cfg_scale": 7.5, "width": 512, "height": 768}},
		{"kokoro", "kokoro", Spec{Type: policy.TTS}, opts{"voices": "/models/voices.bin"}},
		{"vllm-llm", "vllm", Spec{Type: policy.LLM, Checkpoint: "Qwen/Qwen3-4B"}, opts{"ctx_size": 16384, "n_parallel": 64, "vllm_args": "--enforce-eager"}},
		{"vllm-neuron", "vllm-neuron", Spec{Type: policy.LLM, Devices: policy.NPU, Checkpoint: "/models/qwen3-4b"}, opts{"ctx_size": 4096, "n_parallel": 4, "vllm_args": "--tensor-parallel-size 2"}},
		{"openvino-npu", "openvino", Spec{Type: policy.LLM, Devices: policy.NPU, Checkpoint: "/models/qwen3-8b-int4-cw-ov"}, opts{"openvino_args": "--max_prompt_len 4096 --kv_cache_precision u8"}},
		{"openvino-embedding", "openvino", Spec{Type: policy.Embedding, Checkpoint: "/models/bge-m3-ov"}, opts{"openvino_backend": "cpu"}},
		{"vllm-embedding", "vllm", Spec{Type: policy.Embedding, Checkpoint: "BAAI/bge-m3"}, nil},
		{"llamacpp-vision-gpus", "llamacpp", Spec{Type: policy.LLM, MMProj: "/models/mm.gguf", GPUs: GPUs{Count: 2, Names: "Vulkan1,Vulkan2"}}, nil},
		{"vllm-gpus", "vllm", Spec{Type: policy.LLM, Checkpoint: "Qwen/Qwen3-32B", GPUs: GPUs{Count: 4, Env: map[string]string{"CUDA_VISIBLE_DEVICES": "0,1,2,3"}}}, nil},
		{"tei", "tei", Spec{Type: policy.Embedding, Checkpoint: "BAAI/bge-m3"}, opts{"n_batch": 16384}},
		{"mistralrs", "mistralrs", Spec{Type: policy.LLM, Checkpoint: "Qwen/Qwen3-4B"}, opts{"n_parallel": 16}},
		{"upstream", "upstream", Spec{Type: policy.LLM, Checkpoint: "org/model"}, opts{"url": "http://other:8000", "workload": "deployment/vllm"}},
		{"transformers", "transformers", Spec{Type: policy.LLM, Devices: policy.CPU, Checkpoint: "/models/qwen3-4b"}, nil},
		{"mlx-lm", "mlx-lm", Spec{Type: policy.LLM, Devices: policy.CPU, Checkpoint: "/models/qwen3-4b"}, opts{"n_parallel": 8}},
		{"infinity", "infinity", Spec{Type: policy.Embedding, Devices: policy.CPU, Checkpoint: "/models/bge-m3"}, opts{"n_batch": 64}},
		{"faster-whisper", "faster-whisper", Spec{Type: policy.Audio, Checkpoint: "/models/whisper-small"}, nil},
		{"local-tts", "local-tts", Spec{Type: policy.TTS, Checkpoint: "/models/voice"}, nil},
		{"standin", "standin", Spec{Type: policy.Image}, opts{"args": "--load-time 300ms"}},
	} {
		t.Run(tt.file, func(t *testing.T) {
			s := tt.spec
			s.Recipe = set[tt.recipe]
			s.Model, s.Host, s.Port, s.APIKey = "my-model", "127.0.0.1", 8001, "KEY"
			if s.Checkpoint == "" {
				s.Checkpoint = "/models/m.gguf"
			}
			owner, err := s.Recipe.ParseOptions(tt.owner, recipe.Operator)
			if err != nil {
				t.Fatal(err)
			}
			s.Options = s.Recipe.Effective(recipe.Layers{Catalog: owner})
			argv, err := Argv(s)
			if err != nil {
				t.Fatal(err)
			}
			env, err := Environ(s, nil)
			if err != nil {
				t.Fatal(err)
			}
			got := strings.Join(argv, "\n") + "\n"
			for _, kv := range env {
				got += "env " + kv + "\n"
			}
			kit.Golden(t, *update, filepath.Join("testdata", "argv", tt.file+".txt"), got)
		})
	}
	if !*update {
		for name, r := range set { // a new recipe gets a golden file
			if m, _ := filepath.Glob(filepath.Join("testdata", "argv", name+"*.txt")); len(m) == 0 {
				t.Errorf("recipe %s has no golden file", r.Name)
			}
		}
	}
}

func TestArgvRefusesInvalidSpecs(t *testing.T) {
	set := recipe.Shipped()
	for _, tt := range []struct {
		name, recipe string
		spec         Spec
		want         string
	}{
		{"a type the engine does not serve", "whispercpp", Spec{Type: policy.LLM}, `does not serve models of type "llm"`},
		{"a checkpoint that is a flag", "vllm", Spec{Type: policy.LLM, Checkpoint: "--trust-remote-code"}, "hyphen"},
		{"a projector that is a flag", "llamacpp", Spec{Type: policy.LLM, Checkpoint: "m", MMProj: "--rpc"}, "hyphen"},
		{"a name that is a flag", "llamacpp", Spec{Type: policy.LLM, Checkpoint: "m", Model: "-v"}, "hyphen"},
		{"an address that is a flag", "llamacpp", Spec{Type: policy.LLM, Checkpoint: "m", Host: "-v"}, "hyphen"},
		{"a number out of range", "sd-cpp", Spec{Type: policy.Image, Options: recipe.Options{"steps": int64(-1)}}, "1 to 1000"},
		{"a NUL", "llamacpp", Spec{Type: policy.LLM, Checkpoint: "a\x00b"}, "NUL"},
		{"broken quotes", "llamacpp", Spec{Type: policy.LLM, Options: recipe.Options{"llamacpp_args": "'"}}, "quote"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.spec.Recipe = set[tt.recipe]
			if _, err := Argv(tt.spec); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("err = %v, want one with %q", err, tt.want)
			}
		})
	}
}

// A command that does not name the weights needs no file.
func TestCommandWithoutModelNeedsNoFile(t *testing.T) {
	over, err := recipe.Parse([]byte("bare: {command: [bare, [--port, '{port}']], types: llm, health_path: /health}\nnamed: {command: [named, '{model}'], types: llm, health_path: /health}\n"))
	if err != nil {
		t.Fatal(err)
	}
	set, err := recipe.Shipped().With(over)
	if err != nil {
		t.Fatal(err)
	}
	for name, need := range map[string]bool{"bare": false, "named": true, "standin": false, "llamacpp": true} {
		err := CheckFiles(Spec{Recipe: set[name]}, nil)
		if (err != nil) != need {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestClientOptionsCannotAddArguments: arguments and free texts of requests and saved options, however they got there,
// put no word on a command line.
func TestClientOptionsCannotAddArguments(t *testing.T) {
	for name, r := range recipe.Shipped() {
		s := Spec{Recipe: r, Type: r.Types[0], Model: "m", Checkpoint: "/m", Host: "127.0.0.1", Port: 1}
		outside := recipe.Options{recipe.MergeArgs: true}
		for option, spec := range r.Options {
			if spec.Kind == recipe.KindArgs || spec.Kind == recipe.KindString && len(spec.Values) == 0 {
				outside[option] = "/etc/passwd"
			}
		}
		s.Options = r.Effective(recipe.Layers{})
		want, err := Argv(s)
		if err != nil {
			t.Fatal(err)
		}
		s.Options = r.Effective(recipe.Layers{Request: outside, Saved: outside})
		if got, err := Argv(s); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v; want %q", name, got, err, want)
		}
		for option, spec := range r.Options {
			if spec.Kind != recipe.KindArgs {
				continue
			}
			s.Options = r.Effective(recipe.Layers{Catalog: recipe.Options{option: "--own"}, Request: outside})
			if got, err := Argv(s); err != nil || !slices.Contains(got, "--own") || slices.Contains(got, "/etc/passwd") {
				t.Errorf("%s: the operator's arguments become %q, %v", name, got, err)
			}
		}
	}
}

func TestArgvUsesTheSocket(t *testing.T) {
	s := Spec{Recipe: recipe.Shipped()["llamacpp"], Type: policy.LLM, Model: "m", Checkpoint: "/m.gguf", Socket: "/run/e.sock"}
	s.Recipe.Listen = recipe.ListenSocket
	argv, err := Argv(s)
	i := slices.Index(argv, "--host")
	if err != nil || i < 0 || argv[i+1] != "/run/e.sock" || slices.Contains(argv, "--port") {
		t.Errorf("argv = %q, %v", argv, err)
	}
}

func TestURLsOfSocketAndPort(t *testing.T) {
	s := Spec{Recipe: recipe.Shipped()["llamacpp"], Host: "::1", Port: 8001}
	if got := s.BaseURL(); got != "http://[::1]:8001" {
		t.Errorf("BaseURL = %q", got)
	}
	if got := s.HealthURL(); got != "http://[::1]:8001/health" {
		t.Errorf("HealthURL = %q", got)
	}
}

func TestFinderSearchesInOrder(t *testing.T) {
	dir := t.TempDir()
	file := func(path string, mode os.FileMode) string {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	configured, cuda := file("conf/llama-server", 0o755), file("conf/cuda", 0o755)
	inDirs, nextTo, inPath := file("dirs/eng-a", 0o755), file("self/eng-b", 0o755), file("path/eng-c", 0o755)
	file("dirs/eng-b", 0o644) // not executable: passed over
	t.Setenv("PATH", filepath.Join(dir, "path"))
	f := Finder{
		Paths: map[string]string{"llamacpp": configured, "llamacpp:cuda": cuda, "broken": filepath.Join(dir, "no")},
		Dirs:  []string{filepath.Join(dir, "dirs")},
		Self:  filepath.Join(dir, "self", "runner"),
	}
	for _, tt := range []struct{ name, recipe, command, backend, want string }{
		{"configured", "llamacpp", "llama-server", "", configured},
		{"configured for a backend", "llamacpp", "llama-server", "cuda", cuda},
		{"another backend", "llamacpp", "llama-server", "cpu", configured},
		{"a path as command", "x", inPath, "", inPath},
		{"in a folder", "x", "eng-a", "", inDirs},
		{"next to the program", "x", "eng-b", "", nextTo},
		{"in PATH", "x", "eng-c", "", inPath},
		{"nowhere", "x", "eng-d", "", ""},
		{"configured wrongly", "broken", "eng-a", "", ""},
		{"a path that is not there", "x", filepath.Join(dir, "no"), "", ""},
		{"no command", "x", "", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := recipe.Recipe{Name: tt.recipe, Command: []recipe.Group{{tt.command}}}
			got, err := f.Find(&r, tt.backend)
			if got != tt.want || (err == nil) != (tt.want != "") {
				t.Errorf("Find = %q, %v; want %q", got, err, tt.want)
			}
		})
	}
}

func TestLibraryPathIncludesTheProgramsFolder(t *testing.T) {
	with, without := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(with, "libllama.so.1"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, program string
		env, want     []string
	}{
		{"added", with + "/eng", nil, []string{"LD_LIBRARY_PATH=" + with}},
		{"put first", with + "/eng", []string{"A=1", "LD_LIBRARY_PATH=/x"}, []string{"A=1", "LD_LIBRARY_PATH=" + with + ":/x"}},
		{"no libraries", without + "/eng", []string{"LD_LIBRARY_PATH=/x"}, []string{"LD_LIBRARY_PATH=/x"}},
		{"none at all", without + "/eng", nil, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := withLibraryPath(tt.env, tt.program); !slices.Equal(got, tt.want) {
				t.Errorf("env = %q, want %q", got, tt.want)
			}
		})
	}
}

// TestPrivateFolder: infinity makes its cache in the engine's own folder, the only one that it may write in a sandbox.
func TestPrivateFolder(t *testing.T) {
	env, err := Environ(Spec{Recipe: recipe.Shipped()["infinity"], Type: policy.Embedding, dir: "/run/engine-1"}, nil)
	if err != nil || !slices.Contains(env, "INFINITY_HOME=/run/engine-1") {
		t.Errorf("%q, %v", env, err)
	}
}
