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
	printed, err := c.show(ctx, out, "GET", "/ready", nil, &answer)
	if printed || err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, answer.Status)
	return err
}
