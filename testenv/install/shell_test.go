package install

import (
	"bytes"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"reveille/testenv"
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
	for program, want := range map[string]string{"gateway": "gateway logs [<source> ...] [flags]", "runner": "--runner-addr string", "warmer": "--once"} {
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

// Shells ask the program what may follow, by scripts that they can read.
func TestCompletion(t *testing.T) {
	gateway := testenv.Build(t, "gateway")
	for typed, want := range map[string]string{
		"lo": "logs load", "completion f": "fish", "serve --api-keys-f": "--api-keys-file", "run --log-level ": "debug info warn error", "key r": "revoke",
	} {
		found := strings.Fields(output(t, gateway, append([]string{"__completeNoDesc"}, strings.Split(typed, " ")...)...))
		if got := strings.Join(found[:len(found)-1], " "); got != want { // the last is for the script
			t.Errorf("%s: %q, want %q", typed, got, want)
		}
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if _, err := exec.LookPath(shell); err != nil {
			continue // the next shell
		}
		check := exec.Command(shell, "-n")
		check.Stdin = strings.NewReader(output(t, gateway, "completion", shell))
		if out, err := check.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", shell, err, out)
		}
	}
}
