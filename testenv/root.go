package testenv

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// Root is the module's folder: the nearest one with a go.mod, from the working folder
// upward.
func Root(t testing.TB) string {
	t.Helper()
	dir, err := findRoot()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func findRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("testenv: no go.mod in the working folder or above")
		}
		dir = parent
	}
}
