package system

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"reveille/testenv"
	"reveille/testenv/calls"
)

// The file that gateway init writes serves: a model that it found answers.
func TestInitServes(t *testing.T) {
	t.Parallel()
	files := testenv.Models(t)
	dir := t.TempDir()
	if err := os.Symlink(files.MiniLM, filepath.Join(dir, "link.gguf")); err != nil { // out of the folder: left out
		t.Fatal(err)
	}
	if err := os.Link(files.Gemma, filepath.Join(dir, "gemma.gguf")); err != nil {
		t.Skip("hard links:", err)
	}
	cmd := exec.CommandContext(t.Context(), testenv.Build(t, "gateway"), "init", "--stdout", dir)
	cmd.Stderr = os.Stderr
	text, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	s := testenv.Start(t, testenv.Spec{Models: string(text)})
	got := calls.Post(t.Context(), http.DefaultClient, s.URL+"/v1/completions", `{"model":"gemma","prompt":"a","max_tokens":4}`)
	if !got.OK() {
		t.Error(got)
	}
}
