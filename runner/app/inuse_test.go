package app

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A machine is in use while a command of the owner exits with 0, somebody is logged in and active, a program inhibits
// sleep or a GPU works.
func TestUseCheck(t *testing.T) {
	bin := t.TempDir()
	t.Setenv("PATH", bin+":/bin:/usr/bin")
	program := func(name, body string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+body+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	const idle = `printf 'b true\ns "shutdown:handle-lid-switch"\n'`
	for name, c := range map[string]struct{ setting, sleep, logind, gpus, want string }{
		"off":                       {setting: "off", sleep: "x", logind: `printf 'b false\n'`},
		"no way to sleep":           {logind: `printf 'b false\n'`},
		"idle":                      {sleep: "x", logind: idle, gpus: "printf '3\n0\n'"},
		"a session":                 {sleep: "x", logind: `printf 'b false\ns ""\n'`, want: "session"},
		"a session, without sleep":  {setting: "auto", logind: `printf 'b false\ns ""\n'`, want: "session"},
		"an inhibitor":              {sleep: "x", logind: `printf 'b true\ns "shutdown:sleep"\n'`, want: "inhibits"},
		"a game":                    {sleep: "x", logind: idle, gpus: "printf '3\n97\n'", want: "97%"},
		"no logind, no GPU":         {sleep: "x", logind: "exit 1", gpus: "exit 9"},
		"a command":                 {setting: "true", logind: "exit 1", want: "true says so"},
		"a command of several":      {setting: `sh -c "exit 3"`, logind: `printf 'b false\n'`},
		"a command that was killed": {setting: `sh -c 'kill -9 $$'`, logind: "exit 1", want: "killed"},
	} {
		t.Run(name, func(t *testing.T) {
			program("busctl", c.logind)
			program("nvidia-smi", c.gpus)
			check, err := Settings{AwakeWhile: c.setting, SleepCommand: c.sleep}.useCheck()
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			if check != nil {
				got = check(t.Context())
			}
			if !strings.Contains(got, c.want) || c.want == "" && got != "" {
				t.Errorf("in use: %q, want %q", got, c.want)
			}
		})
	}
	for _, bad := range []string{"no-such-program-here", `sh -c "`, " "} {
		if _, err := (Settings{AwakeWhile: bad}).useCheck(); err == nil || !strings.Contains(err.Error(), "--awake-while") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
