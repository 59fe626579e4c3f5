// Package cli holds the commands that look at a models file or at a running gateway.
package cli

import (
	"fmt"
	"io"

	"reveille/infra/catalog"
)

// Check is `gateway check FILE`.
type Check struct {
	File string `arg:"" help:"The models file." type:"existingfile"`
}

// Run validates the file and explains it. All mistakes are reported in one go.
func (c *Check) Run(out io.Writer) error {
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
