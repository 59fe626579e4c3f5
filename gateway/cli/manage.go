package cli

import (
	"context"
	"encoding/json"
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
	return c.report(ctx, out, "/v1/load", body)
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
	return c.report(ctx, out, "/v1/unload", body)
}

// Pin is `gateway pin NAME`.
type Pin struct {
	Remote
	Name string `arg:"" help:"The model."`
}

// Run pins.
func (c *Pin) Run(ctx context.Context, out io.Writer) error {
	return c.report(ctx, out, "/v1/internal/pin", map[string]any{"model_name": c.Name, "pinned": true})
}

// Unpin is `gateway unpin NAME`.
type Unpin struct {
	Remote
	Name string `arg:"" help:"The model."`
}

// Run unpins.
func (c *Unpin) Run(ctx context.Context, out io.Writer) error {
	return c.report(ctx, out, "/v1/internal/pin", map[string]any{"model_name": c.Name, "pinned": false})
}

// report makes a management call and prints its outcome.
func (r Remote) report(ctx context.Context, out io.Writer, path string, body any) error {
	var raw json.RawMessage
	if err := r.call(ctx, "POST", path, body, &raw); err != nil {
		return err
	}
	if r.JSON {
		return print(out, raw)
	}
	var answer struct {
		Message  string
		Unloaded []string
		LoadMS   float64 `json:"load_ms"`
	}
	if err := json.Unmarshal(raw, &answer); err != nil {
		return err
	}
	if len(answer.Unloaded) > 0 {
		answer.Message += ": " + strings.Join(answer.Unloaded, ", ")
	}
	if answer.LoadMS > 0 {
		answer.Message += fmt.Sprintf(" (%.1f s)", answer.LoadMS/1000)
	}
	_, err := fmt.Fprintln(out, answer.Message)
	return err
}
