// Package cli holds the commands that look at a models file or at a running gateway.
package cli

import (
	"errors"
	"fmt"
	"io"

	"reveille/infra/catalog"
)

// Check is `gateway check FILE`.
type Check struct {
	File   string `arg:"" optional:"" help:"The models file." type:"existingfile"`
	Schema bool   `help:"Print the JSON Schema of models files, for editors."`
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
	if err := cat.Explain(out, warnings); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "\n%s is valid: %d models, %d hosts, %d warnings\n", c.File, len(cat.Models), len(cat.Hosts), len(warnings))
	return err
}
