package catalog

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/goccy/go-yaml/ast"
)

// Load reads and checks the file at path as Parse does. It also warns of checkpoints and projectors that are paths and
// do not exist for this process (the hosts may have them). It wraps an error of reading the file; any other error is of
// type [Problems].
func Load(path string) (*Catalog, Warnings, error) {
	data, err := readBounded(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil, fmt.Errorf("models file: %w; gateway init writes one", err)
	case err != nil:
		return nil, nil, fmt.Errorf("models file: %w", err)
	}
	return load(path, data)
}

func load(path string, data []byte) (*Catalog, Warnings, error) {
	c, rep, err := parse(path, data)
	if err != nil {
		return nil, nil, err
	}
	missingFiles(c, rep)
	if len(c.Models) == 0 {
		rep.warn("", "for example: models: {my-model: {checkpoint: /path/to/model.gguf, device: cpu}}", "no models")
	}
	sortProblems(rep.warnings)
	return c, rep.warnings, nil
}

// Parse makes a catalogue from the text of a models.yaml; name is the file's name in problems. An empty text is a
// catalogue without models. The error, if any, is of type [Problems]: everything that is wrong, in the order of the
// file, up to 100 problems. (A text that is not YAML has only one.) Parse does no I/O. Only tests call it.
func Parse(name string, data []byte) (*Catalog, Warnings, error) {
	c, rep, err := parse(name, data)
	if err != nil {
		return nil, nil, err
	}
	sortProblems(rep.warnings)
	return c, rep.warnings, nil
}

func parse(name string, data []byte) (*Catalog, *report, error) {
	rep := &report{file: name, at: map[yamlPath]position{"": {1, 1}}}
	r := &reader{nodes: nodes{report: rep, anchors: map[string]ast.Node{}}}
	root := r.parseYAML(data)
	if len(rep.problems) == 0 {
		r.file(root)
		check(&r.draft, rep)
	}
	if len(rep.problems) > 0 {
		sortProblems(rep.problems)
		return nil, nil, rep.problems
	}
	c := r.draft.Catalog
	c.seal()
	return &c, rep, nil
}

// seal completes a catalogue whose content is final.
func (c *Catalog) seal() {
	c.buildIndex()
	c.Version = c.hash()
}

// missingFiles warns of files that models name by path and that do not exist here.
func missingFiles(c *Catalog, r *report) {
	look := func(p yamlPath, what, file string) {
		if cp := ParseCheckpoint(file); file != "" && cp.Scheme == SchemePath {
			if _, err := os.Stat(file); err != nil {
				r.warn(p, "relative to the working directory, on the host that loads it", "no %s %s here", what, clip(file))
			}
		}
	}
	for _, m := range c.Models {
		p := modelPath(m.ID)
		if rc := c.Recipes[m.Recipe]; rc.NeedsFile() {
			look(p.child("checkpoint"), "checkpoint", m.Checkpoint)
		}
		look(p.child("mmproj"), "projector", m.MMProj)
	}
}

// readBounded reads a file, but not much more of it than Parse accepts.
func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxFile+1))
}
