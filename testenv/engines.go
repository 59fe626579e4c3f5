package testenv

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// EngineFiles are the pinned engines' programs. Their libraries lie beside them, where they
// look for them.
type EngineFiles struct {
	LlamaServer string
}

// ModelFiles are the model files of the default catalog, which testenv/local/models.yaml
// describes.
type ModelFiles struct {
	Gemma          string // llm, hidden size 640; a base model, so its text is poor
	GemmaVision    string // projector for Gemma, 448 pixels, random weights
	GemmaVision896 string // the same at 896 pixels: four times the encoder work
	Tiny           string // llm, hidden size 256, random weights
	TinyVision     string // projector for Tiny, 448 pixels, random weights
	TinyAudio      string // projector for Tiny, 30 s of sound at a time, random weights
	MiniLM         string // embedding, 384 dimensions
	Reranker       string // reranking, random head
}

// Engines returns the pinned engines, fetching them if they are not there yet: once per
// machine, checked by digest, and one process at a time.
func Engines(t testing.TB) EngineFiles {
	t.Helper()
	return EngineFiles{LlamaServer: filepath.Join(cached(t), "engines", "llama-server", "bin", "llama-server")}
}

// Models returns the model files, fetching them like Engines.
func Models(t testing.TB) ModelFiles {
	t.Helper()
	folder := filepath.Join(cached(t), "models")
	in := func(name string) string { return filepath.Join(folder, name) }
	return ModelFiles{
		Gemma:          in("gemma-3-270m-q4_k_m.gguf"),
		GemmaVision:    in("gemma-3-270m-mmproj.gguf"),
		GemmaVision896: in("gemma-3-270m-mmproj-896.gguf"),
		Tiny:           in("tiny-gemma.gguf"),
		TinyVision:     in("tiny-mmproj.gguf"),
		TinyAudio:      in("tiny-audio-mmproj.gguf"),
		MiniLM:         in("minilm-l6-v2.gguf"),
		Reranker:       in("minilm-reranker.gguf"),
	}
}

// Python returns an interpreter that has the pinned openai client.
func Python(t testing.TB) string {
	t.Helper()
	return filepath.Join(cached(t, "--tests", "--python-only"), "venv", "bin", "python")
}

// cached runs the fetch script, once per process and list of arguments, and returns the
// folder .cache. Where everything is there the script takes a tenth of a second.
func cached(t testing.TB, args ...string) string {
	t.Helper()
	root := Root(t)
	fetch, _ := fetches.LoadOrStore(fmt.Sprint(args), sync.OnceValue(func() error { return runFetch(root, args) }))
	if err := fetch.(func() error)(); err != nil {
		t.Fatal("testenv:", err)
	}
	return filepath.Join(root, ".cache")
}

// fetches remembers this process's runs of the script: arguments → sync.OnceValue function.
var fetches sync.Map

func runFetch(root string, args []string) error {
	python, err := exec.LookPath("python3")
	if err != nil {
		return fmt.Errorf("python3 is not installed; get it with: apt-get install python3 python3-pip")
	}
	cmd := exec.Command(python, append([]string{"-B", filepath.Join(root, "testenv", "local", "fetch.py")}, args...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("fetch.py: %w\n%s", err, out)
	}
	return nil
}
