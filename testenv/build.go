package testenv

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"reveille/testenv/kit"
)

// Build compiles one of the module's programs and returns the binary's path. pkg is
// relative to the module, for example "gateway" or "testenv/standin". Binaries are
// kept in .cache/testbin, those with the race detector in its folder race: each process
// builds each program once, which takes no time where nothing changed, and a running
// program's file is replaced, never overwritten. The encoder cache's interposer is put
// beside them, where there is a C compiler.
func Build(t testing.TB, pkg string) string {
	t.Helper()
	root := Root(t)
	if _, err := once(interposer, func() (string, error) { return buildInterposer(root) }); err != nil && !errors.Is(err, exec.ErrNotFound) {
		t.Fatal("testenv:", err)
	}
	binary, err := once(pkg, func() (string, error) { return goBuild(root, pkg) })
	if err != nil {
		t.Fatal("testenv:", err)
	}
	return binary
}

// NeedInterposer skips a test of the encoder cache where its interposer cannot be built.
func NeedInterposer(t testing.TB) {
	t.Helper()
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip("testenv: no C compiler, so no encoder cache")
	}
}

// Standin is Build of the stand-in engine.
func Standin(t testing.TB) string {
	t.Helper()
	return Build(t, "testenv/standin")
}

// once builds what goes by a name, once in this process.
func once(name string, build func() (string, error)) (string, error) {
	b, _ := builds.LoadOrStore(name, sync.OnceValues(build))
	return b.(func() (string, error))()
}

// builds remembers this process's builds: name → sync.OnceValues function. It only grows,
// and what it holds is the same for every caller.
var builds sync.Map

func goBuild(root, pkg string) (string, error) {
	args := []string{"build", "-tags", "lambda.norpc,grpcnotrace"} // as the Makefile
	if kit.Race {
		args = append(args, "-race")
	}
	return replace(binaries(root), path.Base(pkg), root, func(fresh string) *exec.Cmd {
		return exec.Command("go", append(args, "-o", fresh, "./"+pkg)...)
	})
}

// buildInterposer builds the interposer unless it is newer than its sources. Without a C
// compiler it fails with exec.ErrNotFound.
func buildInterposer(root string) (string, error) {
	const sources = "runner/mmcache/interpose"
	target := filepath.Join(binaries(root), interposer)
	files, err := os.ReadDir(filepath.Join(root, filepath.FromSlash(sources)))
	if err != nil {
		return "", err
	}
	built, err := os.Stat(target)
	current := err == nil
	for _, f := range files {
		info, err := f.Info()
		current = current && err == nil && info.ModTime().Before(built.ModTime())
	}
	if current {
		return target, nil
	}
	if _, err := exec.LookPath("cc"); err != nil {
		return "", errors.Join(err, os.RemoveAll(target))
	}
	return replace(binaries(root), interposer, root, func(fresh string) *exec.Cmd { return exec.Command("sh", sources+"/build.sh", fresh) })
}

// interposer is the file name under which runners look for it.
const interposer = "libreveille_mm.so"

// binaries is the folder of this process's programs. Runners look for engines beside
// themselves, so programs with and without the race detector do not share one.
func binaries(root string) string {
	if kit.Race {
		return filepath.Join(root, ".cache", "testbin", "race")
	}
	return filepath.Join(root, ".cache", "testbin")
}

// replace puts what a command, run in root, writes into dir in one step.
func replace(dir, name, root string, command func(fresh string) *exec.Cmd) (string, error) {
	target := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return "", err
	}
	fresh := fmt.Sprintf("%s.%d", target, os.Getpid())
	defer os.Remove(fresh)
	cmd := command(fresh)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return target, os.Rename(fresh, target)
}
