package sandbox

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestPythonEnvironments starts a script of a Python environment that only its owner can read, as environments below a
// home folder are. It needs its interpreter, which is a link to another, the packages of both, and a helper of Exec.
func TestPythonEnvironments(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not installed")
	}
	s := newBox(t, Config{})
	needs(t, s, Files)
	w, perms := scene(t, false)
	top := filepath.Dir(filepath.Dir(w.Model))
	env := filepath.Join(top, "env")
	if out, err := exec.Command(python, "-m", "venv", "--without-pip", env).CombinedOutput(); err != nil {
		t.Skipf("python3 cannot make environments: %v\n%s", err, out)
	}
	packages, _ := filepath.Glob(filepath.Join(env, "lib", "python3*", "site-packages"))
	if len(packages) != 1 {
		t.Fatalf("packages are in %v", packages)
	}
	helpers := filepath.Join(top, "helpers")
	perms.Program, perms.Exec = filepath.Join(env, "bin", "engine"), []string{helpers}
	err = errors.Join(
		os.WriteFile(filepath.Join(packages[0], "own.py"), []byte("word = 'own package'\n"), 0o600),
		os.WriteFile(perms.Program, []byte("#!"+env+"/bin/python\n"+`
import json, own, subprocess, sys
print(own.word, json.dumps([]), subprocess.run([sys.argv[1]], capture_output=True, text=True).stdout.strip())
print(open(sys.argv[2]).read())
`), 0o700),
		os.Mkdir(helpers, 0o700), os.WriteFile(filepath.Join(helpers, "help"), []byte("#!/bin/sh\necho helped\n"), 0o700))
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	cmd := exec.Command(perms.Program, filepath.Join(helpers, "help"), w.Secret)
	cmd.Stdout, cmd.Stderr, cmd.Dir = &out, &out, w.Dir
	release, err := s.Start(cmd, perms, nil)
	defer release()
	if err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if !strings.Contains(out.String(), "own package [] helped\n") || !strings.Contains(out.String(), "PermissionError") {
		t.Errorf("the script wrote %q, want its package's word, a helper's, and that a secret is not readable", out.String())
	}
}
