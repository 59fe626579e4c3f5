package install

import (
	"os"
	"path/filepath"
	"testing"

	"reveille/testenv"
)

// read reads a file below infra/install.
func read(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(testenv.Root(t), "infra/install", file))
	if err != nil {
		t.Fatal(err)
	}
	return text
}
