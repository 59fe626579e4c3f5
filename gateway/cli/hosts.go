package cli

import (
	"context"
	"io"
	"net/url"
)

// Wake is `gateway wake NAME`.
type Wake struct {
	Remote
	Name string `arg:"" help:"The host."`
}

// Run wakes the host and waits until it is awake.
func (c *Wake) Run(ctx context.Context, out io.Writer) error {
	return c.report(ctx, out, hostPath(c.Name, "wake"), map[string]any{})
}

// Sleep is `gateway sleep NAME`.
type Sleep struct {
	Remote
	Name  string `arg:"" help:"The host."`
	Force bool   `help:"Cut open requests immediately."`
}

// Run unloads the host's models, puts it to sleep and waits until it is off.
func (c *Sleep) Run(ctx context.Context, out io.Writer) error {
	return c.report(ctx, out, hostPath(c.Name, "sleep"), map[string]any{"force": c.Force})
}

// Forget is `gateway forget NAME`.
type Forget struct {
	Remote
	Name string `arg:"" help:"The host."`
}

// Run removes the host from the pool.
func (c *Forget) Run(ctx context.Context, out io.Writer) error {
	return c.report(ctx, out, hostPath(c.Name, "forget"), map[string]any{})
}

func hostPath(name, verb string) string {
	return "/v1/internal/hosts/" + url.PathEscape(name) + "/" + verb
}
