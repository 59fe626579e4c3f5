package cli

import (
	"context"
	"fmt"
	"io"
)

// Health is `gateway health`.
type Health struct{ Remote }

// Run returns an error unless the gateway serves and reads the pool's state.
func (c *Health) Run(ctx context.Context, out io.Writer) error {
	var answer struct {
		Status string `json:"status"`
	}
	if err := c.call(ctx, "GET", "/ready", nil, &answer); err != nil {
		return err
	}
	if c.JSON {
		return print(out, answer)
	}
	_, err := fmt.Fprintln(out, answer.Status)
	return err
}
