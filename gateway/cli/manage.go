package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
)

// Load is `gateway load NAME`.
type Load struct {
	Remote
	Name        string `arg:"" help:"The model."`
	CtxSize     int    `help:"Context in tokens, -1 automatic; 0 leaves it."`
	SaveOptions bool   `help:"Keep these options for later loads."`
}

// Run loads the model.
func (c *Load) Run(ctx context.Context, out io.Writer) error {
	body := map[string]any{"model_name": c.Name}
	if c.CtxSize != 0 {
		body["ctx_size"] = c.CtxSize
	}
	if c.SaveOptions {
		body["save_options"] = true
	}
	return c.report(ctx, out, "/v1/load", body, c.modelState(c.Name))
}

// Unload is `gateway unload [NAME]`.
type Unload struct {
	Remote
	Name  string `arg:"" optional:"" help:"The model; all of them when absent."`
	Force bool   `help:"Cut open requests at once."`
}

// Run unloads.
func (c *Unload) Run(ctx context.Context, out io.Writer) error {
	body := map[string]any{}
	if c.Name != "" {
		body["model_name"] = c.Name
	}
	if c.Force {
		body["force"] = true
	}
	return c.report(ctx, out, "/v1/unload", body, nil)
}

// Pin is `gateway pin NAME`.
type Pin struct {
	Remote
	Name string `arg:"" help:"The model."`
}

// Run pins.
func (c *Pin) Run(ctx context.Context, out io.Writer) error {
	return c.report(ctx, out, "/v1/internal/pin", map[string]any{"model_name": c.Name, "pinned": true}, nil)
}

// Unpin is `gateway unpin NAME`.
type Unpin struct {
	Remote
	Name string `arg:"" help:"The model."`
}

// Run unpins.
func (c *Unpin) Run(ctx context.Context, out io.Writer) error {
	return c.report(ctx, out, "/v1/internal/pin", map[string]any{"model_name": c.Name, "pinned": false}, nil)
}

// report makes a management call and prints its outcome, and until then the progress that look returns; nil prints none.
func (r Remote) report(ctx context.Context, out io.Writer, path string, body any, look func(context.Context) string) error {
	var answer map[string]any
	end := r.progress(ctx, out, look)
	err := r.call(ctx, "POST", path, body, &answer)
	end()
	if err != nil {
		return err
	}
	if r.JSON {
		return print(out, answer)
	}
	line := fmt.Sprint(answer["message"])
	if list, ok := answer["unloaded"].([]any); ok && len(list) > 0 {
		names := make([]string, len(list))
		for i, n := range list {
			names[i] = fmt.Sprint(n)
		}
		line += ": " + strings.Join(names, ", ")
	}
	if ms, ok := answer["load_ms"].(float64); ok {
		line += fmt.Sprintf(" (%.1f s)", ms/1000)
	}
	_, err = fmt.Fprintln(out, line)
	return err
}
