package testenv

import (
	"os/exec"
	"path/filepath"
	"testing"
)

func TestPythonHasTheClient(t *testing.T) {
	if out, err := exec.Command(Python(t), "-c", "import openai").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

func TestFetchScripts(t *testing.T) {
	cmd := exec.Command("python3", "-B", "-m", "unittest")
	cmd.Dir = filepath.Join(Root(t), "testenv", "local")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
