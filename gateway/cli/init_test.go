package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"reveille/infra/catalog"
	"reveille/testenv"
)

// TestInit: the file that init writes is valid, has its schema beside it, and is never overwritten.
func TestInit(t *testing.T) {
	files := testenv.Models(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "models.yaml")
	var out bytes.Buffer
	c := Init{Folders: []string{filepath.Dir(files.Gemma)}, File: file, EnginesDir: []string{t.TempDir()}}
	if err := c.Run(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	written, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if schema, err := os.ReadFile(filepath.Join(dir, "models.schema.json")); err != nil || string(schema) != catalog.Schema {
		t.Error("the schema is not beside the file:", err)
	}
	if !strings.Contains(out.String(), "gateway check "+file+" --fit") || !strings.Contains(out.String(), "get it from") {
		t.Errorf("it said: %s", &out)
	}
	if err := c.Run(t.Context(), &out); err == nil || !strings.Contains(err.Error(), "exists") {
		t.Errorf("a file that exists: %v", err)
	}
	if now, err := os.ReadFile(file); err != nil || !bytes.Equal(now, written) {
		t.Error("the file changed:", err)
	}
	out.Reset()
	c.Stdout = true
	if err := c.Run(t.Context(), &out); err != nil || out.String() != string(written) {
		t.Errorf("--stdout: %v", err)
	}
	out.Reset()
	if err := (&Check{File: file, Fit: true}).Run(t.Context(), &out); err != nil || !strings.Contains(out.String(), "FITS") || !strings.Contains(out.String(), "yes") {
		t.Errorf("%v: %s", err, &out)
	}
	link := filepath.Join(dir, "link.yaml")
	if err := os.Symlink(filepath.Join(dir, "elsewhere"), link); err != nil {
		t.Fatal(err)
	}
	if err := (&Init{Folders: c.Folders, File: link}).Run(t.Context(), &out); err == nil {
		t.Error("a dangling link was followed")
	}
}
