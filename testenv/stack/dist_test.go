package stack

import (
	"archive/zip"
	"crypto/sha256"
	"debug/elf"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"reveille/testenv"
)

// library is the encoder cache's library for hosts.
const library = "libreveille_mm_linux_amd64.so"

// dist makes a folder with some of what `make dist` makes, by its names, but with this computer's programs under all of them:
// machines and functions of the emulator run here, whatever they are called.
func dist(t *testing.T, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		program, _, _ := strings.Cut(strings.TrimSuffix(name, ".zip"), "_")
		target := filepath.Join(dir, name)
		if !strings.HasSuffix(name, ".zip") {
			if err := os.Symlink(testenv.Build(t, program), target); err != nil {
				t.Fatal(err)
			}
			continue
		}
		pack := filepath.Join(testenv.Root(t), "terraform", "pack.py")
		out, err := exec.CommandContext(t.Context(), testenv.Python(t), "-B", pack, testenv.Build(t, program), target).CombinedOutput()
		if err != nil {
			t.Fatalf("pack.py: %v\n%s", err, out)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, library), []byte("a library that nothing here loads"), 0o600); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(files)
	var sums strings.Builder
	for _, f := range files {
		fmt.Fprintf(&sums, "%x  %s\n", digest(t, f), filepath.Base(f))
	}
	if err := os.WriteFile(filepath.Join(dir, "SHA256SUMS"), []byte(sums.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func digest(t *testing.T, file string) []byte {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		t.Fatal(err)
	}
	return h.Sum(nil)
}

// unpack takes the program out of a function's code, and holds the code against the digest that the service tells.
func unpack(t *testing.T, archive, digestOfService string) string {
	t.Helper()
	if got := base64.StdEncoding.EncodeToString(digest(t, archive)); got != digestOfService {
		t.Fatalf("%s has digest %s, the function's code %s", archive, got, digestOfService)
	}
	z, err := zip.OpenReader(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	if len(z.File) != 1 || z.File[0].Name != "bootstrap" || z.File[0].Mode().Perm() != 0o755 {
		t.Fatalf("%s holds %+v, want bootstrap alone", archive, z.File)
	}
	in, err := z.File[0].Open()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	target := filepath.Join(t.TempDir(), "bootstrap")
	out, err := os.OpenFile(target, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(out, in)
	if err := errors.Join(err, out.Close()); err != nil {
		t.Fatal(err)
	}
	return target
}

// TestWarmerIsAlwaysThatOfTheFunction: make image and make release build for other processors too, into the same
// folder.
func TestWarmerIsAlwaysThatOfTheFunction(t *testing.T) {
	folder := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "make", "--no-print-directory", "dist", "DIST="+folder, "DIST_ARCHES=amd64", "PROGRAMS=warmer", "CC_amd64=none")
	cmd.Dir = testenv.Root(t)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("make dist: %v\n%s", err, out)
	}
	archive := filepath.Join(folder, "warmer.zip")
	program, err := elf.Open(unpack(t, archive, base64.StdEncoding.EncodeToString(digest(t, archive))))
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	if program.Machine != elf.EM_AARCH64 {
		t.Errorf("the function's program is for %v", program.Machine)
	}
}
