package testenv

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// minSecret is the length from which a secret cannot stand in a log by chance.
const minSecret = 16

// secretsOf returns what a program with these arguments and variables, NAME=VALUE, must tell nobody: the runner secret, the
// API keys, the passwords of Redis URLs, and what it keeps in its state folder.
func secretsOf(args, env []string) map[string]string {
	out := map[string]string{}
	add := func(what, secret string) {
		if len(secret) >= minSecret && !strings.HasPrefix(secret, "sha256:") {
			out[secret] = what
		}
	}
	setting := func(name, value string) {
		switch name {
		case "runner-secret", "admin-key", "hf-token":
			add(name, value)
		case "redis-url":
			if _, rest, ok := strings.Cut(value, "://"); ok {
				if user, _, ok := strings.Cut(rest, "@"); ok {
					_, password, _ := strings.Cut(user, ":")
					add("redis password", password)
				}
			}
		case "api-keys-file":
			text, _ := os.ReadFile(value) // a test may have removed it
			for line := range strings.Lines(string(text)) {
				if f := strings.Fields(line); len(f) > 0 && !strings.HasPrefix(f[0], "#") {
					add("API key", f[0])
				}
			}
		case "state-dir":
			for _, file := range []string{"runner-secret", "admin-key"} {
				text, _ := os.ReadFile(filepath.Join(value, file)) // not every program has each
				add(file, strings.TrimSpace(string(text)))
			}
		}
	}
	for i, arg := range args {
		name, value, joined := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		if !joined && i+1 < len(args) {
			value = args[i+1]
		}
		setting(name, value)
	}
	for _, v := range env {
		name, value, _ := strings.Cut(v, "=")
		if name, ok := strings.CutPrefix(name, "REVEILLE_"); ok {
			setting(strings.ReplaceAll(strings.ToLower(name), "_", "-"), value)
		}
	}
	return out
}

// checkLog fails the test if a program's log tells of a crash or a data race, or holds one of its secrets.
func checkLog(t testing.TB, name, log string, secrets map[string]string) {
	t.Helper()
	for _, bad := range []string{"DATA RACE", "panic:", "fatal error:"} {
		if strings.Contains(log, bad) {
			t.Errorf("testenv: %q in the log of %s", bad, name)
		}
	}
	for secret, what := range secrets {
		if strings.Contains(log, secret) {
			t.Errorf("testenv: the %s is in the log of %s", what, name)
		}
	}
}
