package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"reveille/gateway/setup"
	"reveille/infra/catalog"
	"reveille/infra/recipe"
	"reveille/infra/term"
	"reveille/runner/engine"
)

// schemaFile is the name of the schema in the folder of the models file, which refers to it.
const schemaFile = "models.schema.json"

// Init is `gateway init [FOLDER ...]`.
type Init struct {
	Folders []string `arg:"" optional:"" help:"Folders with GGUF files. Default: the caches of llama.cpp and Hugging Face."`

	File       string   `help:"File to write; its schema is written to the same folder." default:"models.yaml"`
	Stdout     bool     `help:"Print the file instead."`
	EnginesDir []string `help:"Folders to look for llama-server in, besides this program's own and PATH."`
}

// Run looks at the machine and writes a models file that describes it. It overwrites none.
func (c *Init) Run(ctx context.Context, out io.Writer) error {
	if _, err := os.Lstat(c.File); !c.Stdout && err == nil {
		return fmt.Errorf("%s exists: name another file with --file, or use --stdout", c.File)
	}
	var s setup.Scan
	for _, dir := range c.Folders {
		if err := s.Folder(dir); err != nil {
			return err
		}
	}
	if len(c.Folders) == 0 {
		home, _ := os.UserHomeDir()
		for _, dir := range setup.Caches(home, os.Getenv) {
			if err := s.Folder(dir); err != nil {
				s.Skipped = append(s.Skipped, err.Error())
			}
		}
	}
	machine := setup.Look(ctx, c.EnginesDir)
	if c.Stdout {
		return s.Write(out, machine, schemaFile)
	}
	var text bytes.Buffer
	if err := s.Write(&text, machine, schemaFile); err != nil {
		return err
	}
	if err := writeNew(c.File, text.Bytes()); err != nil {
		return err
	}
	if err := writeNew(filepath.Join(filepath.Dir(c.File), schemaFile), []byte(catalog.Schema)); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	fmt.Fprintf(term.Writer(out), "Devices: %s\n%s has %s.", machine.Devices, c.File, Count(len(s.Models), "model"))
	if len(s.Models) == 0 {
		fmt.Fprint(out, " No GGUF files were found: name their folder, or write the file by hand.")
	}
	if n := len(s.Skipped); n > 0 {
		fmt.Fprintf(out, " %s left out: see its end.", Count(n, "file"))
	}
	fmt.Fprint(out, "\n\n")
	llamacpp := recipe.Shipped()[recipe.LlamaCpp]
	if _, err := (engine.Finder{Dirs: c.EnginesDir}).Find(&llamacpp, ""); err != nil {
		fmt.Fprintf(out, "llama-server is neither in PATH nor in the folder of this program: get it from https://github.com/ggml-org/llama.cpp/releases\nand name its folder with --engines-dir.\n\n")
	}
	_, err := fmt.Fprintf(out, "Next:\n  gateway check %[1]s --fit      says what fits\n  gateway run --models %[1]s     serves at http://127.0.0.1:8080\n", c.File)
	return err
}

// writeNew writes a file that must not exist.
func writeNew(name string, text []byte) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Close())
}

// Schema is `gateway schema`.
type Schema struct{}

// Run prints the JSON Schema of models files.
func (Schema) Run(_ context.Context, out io.Writer) error {
	_, err := io.WriteString(out, catalog.Schema)
	return err
}
