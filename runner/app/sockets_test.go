package app

import (
	"os"
	"path/filepath"
	"testing"
)

// What a killed runner left is gone with the next start; nothing else is.
func TestSocketDirOfAKilledRunnerIsRemoved(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	record := filepath.Join(t.TempDir(), "sockets-h")
	first, err := socketDir(record)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(first, "mm.sock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	second, err := socketDir(record)
	if err != nil || second == first {
		t.Fatal(second, err)
	}
	if _, err := os.Stat(first); !os.IsNotExist(err) {
		t.Errorf("the first folder: %v", err)
	}
	if info, err := os.Stat(second); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the second folder: %v %v", info, err)
	}
	foreign := t.TempDir()
	if err := os.WriteFile(record, []byte(foreign), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := socketDir(record); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(foreign); err != nil {
		t.Errorf("a folder of somebody else: %v", err)
	}
	if _, err := socketDir(filepath.Join(record, "no")); err == nil {
		t.Error("a record that cannot be written was passed over")
	}
	if left, _ := filepath.Glob(filepath.Join(os.TempDir(), socketPrefix+"*")); len(left) != 2 {
		t.Errorf("folders: %v, want two", left)
	}
}
