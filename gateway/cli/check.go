// Package cli holds the commands that look at a models file or at a running gateway.
package cli

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"reveille/infra/catalog"
	"reveille/runner/engine"
)

// Check is `gateway check FILE`.
type Check struct {
	File   string `arg:"" optional:"" help:"The models file." type:"existingfile"`
	Schema bool   `help:"Print the JSON Schema of models files, for editors."`

	EnginesDir []string `help:"Folders to look for engine programs in, besides this program's own and PATH."`
}

// Run validates the file and explains it. All mistakes are reported in one go.
func (c *Check) Run(out io.Writer) error {
	if c.Schema {
		_, err := io.WriteString(out, catalog.Schema)
		return err
	}
	if c.File == "" {
		return errors.New("name the models file: gateway check models.yaml")
	}
	cat, warnings, err := catalog.Load(c.File)
	if err != nil {
		return err
	}
	for _, missing := range MissingPrograms(cat, c.EnginesDir) {
		warnings = append(warnings, catalog.Problem{Text: missing})
	}
	if err := cat.Explain(out, warnings); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "\n%s is valid: %d models, %d hosts, %d warnings\n", c.File, len(cat.Models), len(cat.Hosts), len(warnings))
	return err
}

// MissingPrograms tells of each engine program that the models need and that is not on this machine, where one of the
// catalogue's hosts is this machine.
func MissingPrograms(c *catalog.Catalog, dirs []string) (missing []string) {
	if len(c.Hosts) > 0 && !slices.ContainsFunc(c.Hosts, func(h *catalog.Host) bool { return h.Driver == catalog.DriverLocal }) {
		return nil
	}
	find := engine.Finder{Dirs: dirs}
	for _, m := range c.Models {
		r := c.Recipes[m.Recipe]
		if r.Program() == "" {
			continue
		}
		if _, err := find.Find(&r, ""); err != nil && !slices.Contains(missing, err.Error()) {
			missing = append(missing, err.Error())
		}
	}
	return missing
}
