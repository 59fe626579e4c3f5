package install

import (
	"os/exec"
	"strings"
	"testing"

	"reveille/testenv"
)

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
