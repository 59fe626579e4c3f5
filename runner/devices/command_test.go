package devices

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"reveille/infra/policy"
	"reveille/testenv"
	"reveille/testenv/kit"
)

// script writes a shell script as an executable.
func script(t *testing.T, name, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return file
}

// A detection ends within its limits even if programs hang, also with a child that holds their output open.
func TestHangingProgramIsLeftBehind(t *testing.T) {
	smi := script(t, "nvidia-smi", "exec sleep 1000")
	t.Setenv("PATH", filepath.Dir(smi)+":"+os.Getenv("PATH"))
	cfg := Config{
		Kinds: policy.GPU, Files: fstest.MapFS{}, LlamaServer: script(t, "llama-server", "echo Available devices:; sleep 5 & wait"),
		Run: Command{Limit: 100 * time.Millisecond}.Run,
	}
	found := make(chan Found, 1)
	go func() { found <- Detect(t.Context(), cfg) }()
	select {
	case f := <-found:
		if len(f.Missing) != 1 || !strings.Contains(f.Missing[0], "llama-server: does not exit within 100ms") || !strings.Contains(f.Missing[0], "nvidia-smi: does not exit within 100ms") {
			t.Errorf("missing %q", f.Missing)
		}
	case <-time.After(kit.Patience):
		t.Fatal("still looking")
	}
}

func TestCommandLimitsTimeAndOutput(t *testing.T) {
	patient := Command{Limit: kit.Patience}
	out, err := patient.Run(t.Context(), script(t, "endless", "yes 0123456789abcde | head -n 100000"))
	if err != nil || len(out) != maxOutput {
		t.Errorf("%d bytes, %v", len(out), err)
	}
	t.Setenv("SECRET", "x")
	patient.Env = func(string) []string { return []string{"PATH=" + os.Getenv("PATH"), "A=b"} }
	if out, err := patient.Run(t.Context(), script(t, "env", `echo "$A$SECRET"; exit 9`)); string(out) != "b\n" || err == nil {
		t.Errorf("%q, %v", out, err)
	}
	if _, err := (Command{}).Run(t.Context(), "reveille-no-such-program"); err == nil || err.Error() != "not installed" {
		t.Error(err)
	}
}

// The real engine, in a build for processors, lists no GPU.
func TestRealEngineListsDevices(t *testing.T) {
	f := Detect(t.Context(), Config{Kinds: policy.GPU, Files: fstest.MapFS{}, LlamaServer: testenv.Engines(t).LlamaServer, Run: Command{Limit: kit.Patience}.Run})
	if len(f.Missing) != 1 || !strings.Contains(f.Missing[0], "llama-server: lists none") {
		t.Errorf("%+v", f)
	}
}
