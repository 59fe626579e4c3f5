package install

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"reveille/testenv"
	"reveille/testenv/kit"
)

// bold is how a terminal of old prints bold and underlined letters: over one another.
var bold = regexp.MustCompile(".\x08")

// need skips a test of a program of the system that is not there.
func need(t *testing.T, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		t.Skipf("%s is not installed", program)
	}
}

// Every program's manual page has no mistake that groff warns of, and is the same each time.
func TestManualPages(t *testing.T) {
	need(t, "groff")
	for program, want := range map[string]string{"gateway": "gateway logs [<source> ...] [flags]", "runner": "--runner-addr=VALUE", "warmer": "--once"} {
		page := output(t, testenv.Build(t, program), "--man")
		if page != output(t, testenv.Build(t, program), "--man") {
			t.Errorf("%s: two pages differ", program)
		}
		groff := exec.Command("groff", "-man", "-ww", "-K", "utf8", "-Tutf8", "-P-c")
		var text, mistakes bytes.Buffer
		groff.Stdin, groff.Stdout, groff.Stderr = strings.NewReader(page), &text, &mistakes
		if err := groff.Run(); err != nil || mistakes.Len() > 0 {
			t.Errorf("%s: %v\n%s", program, err, &mistakes)
		}
		if plain := bold.ReplaceAllString(text.String(), ""); !strings.Contains(plain, want) || !strings.Contains(plain, "ENVIRONMENT") {
			t.Errorf("%s: without %q:\n%s", program, want, plain)
		}
	}
}

func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).Output()
	if err != nil {
		t.Fatal(name, args, err)
	}
	return string(out)
}

// lockedBuffer is what a program has written so far.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// An interactive bash that has read the script completes commands, flags and their values at the Tab key.
func TestCompletionInBash(t *testing.T) {
	need(t, "script")
	gateway := testenv.Build(t, "gateway")
	rc := filepath.Join(t.TempDir(), "rc")
	if err := os.WriteFile(rc, []byte("PS1='ready> '\nsource <(gateway completion bash)\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	shell := exec.Command("script", "--quiet", "--flush", "--return", "--command", "bash --noprofile --rcfile "+rc+" -i", os.DevNull)
	shell.Env = append(os.Environ(), "PATH="+filepath.Dir(gateway)+":"+os.Getenv("PATH"), "TERM=dumb", "HISTFILE=", "INPUTRC="+os.DevNull)
	var screen lockedBuffer
	shell.Stdout = &screen
	keys, err := shell.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = keys.Close()
		_ = shell.Wait() // the shell's status is that of its last command
	})
	kit.Eventually(t, "a prompt", func() bool { return strings.Contains(screen.String(), "ready> ") })
	for typed, want := range map[string]string{
		"gateway lo\t\t": "load  logs", "gateway compl\t": "gateway completion ", "gateway completion f\t": "gateway completion fish ",
		"gateway serve --api-keys-f\t": "gateway serve --api-keys-file ", "gateway run --log-level d\t": "gateway run --log-level debug ",
	} {
		from := len(screen.String())
		if _, err := io.WriteString(keys, typed); err != nil {
			t.Fatal(err)
		}
		kit.Eventually(t, want, func() bool { return strings.Contains(screen.String()[from:], want) })
		if _, err := io.WriteString(keys, "\x15"); err != nil { // clears the line
			t.Fatal(err)
		}
	}
}
