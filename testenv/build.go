package testenv

import (
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"sync"
	"testing"
)

// Build compiles one of the module's programs and returns the binary's path. pkg is
// relative to the module, for example "gateway" or "testenv/standin". Binaries are
// kept in .cache/testbin, one per race setting: each process builds each program once,
// which takes no time where nothing changed, and a running program's file is replaced,
// never overwritten.
func Build(t testing.TB, pkg string) string {
	t.Helper()
	root := Root(t)
	build, _ := builds.LoadOrStore(pkg, sync.OnceValues(func() (string, error) { return goBuild(root, pkg) }))
	binary, err := build.(func() (string, error))()
	if err != nil {
		t.Fatal("testenv:", err)
	}
	return binary
}

// Standin is Build of the stand-in engine.
func Standin(t testing.TB) string {
	t.Helper()
	return Build(t, "testenv/standin")
}

// builds remembers this process's builds: package → sync.OnceValues function. It only
// grows, and what it holds is the same for every caller.
var builds sync.Map

func goBuild(root, pkg string) (string, error) {
	folder := filepath.Join(root, ".cache", "testbin")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", err
	}
	target := filepath.Join(folder, path.Base(pkg))
	args := []string{"build"}
	if raceEnabled {
		target += "-race"
		args = append(args, "-race")
	}
	fresh := fmt.Sprintf("%s.%d", target, os.Getpid())
	defer os.Remove(fresh)
	cmd := exec.Command("go", append(args, "-o", fresh, "./"+pkg)...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build ./%s: %w\n%s", pkg, err, out)
	}
	return target, os.Rename(fresh, target)
}
