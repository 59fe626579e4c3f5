package cli

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"reveille/infra/catalog"
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
	watched, end := context.WithCancel(ctx)
	told := make(chan struct{})
	go func() {
		defer close(told)
		c.progress(watched, out)
	}()
	var done outcome
	printed, err := c.show(ctx, out, "POST", "/v1/load", body, &done)
	end()
	if <-told; printed || err != nil {
		return err
	}
	return done.print(out)
}

// progressEvery is the pause between two looks at a load.
const progressEvery = time.Second

// progress prints where the load is whenever that changes, until ctx ends.
func (c *Load) progress(ctx context.Context, out io.Writer) {
	for told := ""; !c.JSON; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(progressEvery):
		}
		var m struct {
			Status struct {
				State    string `json:"value"`
				Host     string
				Position int
				Done     int64 `json:"bytes_done"`
				Total    int64 `json:"bytes_total"`
			}
		}
		if c.call(ctx, "GET", "/v1/models/"+url.PathEscape(c.Name), nil, &m) != nil || ctx.Err() != nil {
			continue
		}
		line := m.Status.State
		if m.Status.Host != "" {
			line += " on " + m.Status.Host
		}
		if m.Status.Position > 0 {
			line += fmt.Sprintf(", position %d", m.Status.Position)
		}
		if m.Status.Total > 0 {
			line += fmt.Sprintf(", %s of %s", catalog.FormatSize(m.Status.Done), catalog.FormatSize(m.Status.Total))
		}
		if line != told {
			fmt.Fprintln(out, line)
			told = line
		}
	}
}

// Unload is `gateway unload [NAME]`.
type Unload struct {
	Remote
	Name  string `arg:"" optional:"" help:"The model; all of them when absent."`
	Force bool   `help:"Cut open requests immediately."`
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
	var done outcome
	if printed, err := r.show(ctx, out, "POST", path, body, &done); printed || err != nil {
		return err
	}
	return done.print(out)
}

// outcome is the response to a management call.
type outcome struct {
	Message  string
	Unloaded []string
	LoadMS   float64 `json:"load_ms"`
}

func (o outcome) print(out io.Writer) error {
	if len(o.Unloaded) > 0 {
		o.Message += ": " + strings.Join(o.Unloaded, ", ")
	}
	if o.LoadMS > 0 {
		o.Message += fmt.Sprintf(" (%.1f s)", o.LoadMS/1000)
	}
	_, err := fmt.Fprintln(out, o.Message)
	return err
}
