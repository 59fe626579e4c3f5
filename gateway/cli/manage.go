package cli

import (
	"context"
	"encoding/json"
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
	var raw json.RawMessage
	err := c.call(ctx, "POST", "/v1/load", body, &raw)
	end()
	if <-told; err != nil {
		return err
	}
	return c.outcome(out, raw)
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
	return r.outcome(out, raw)
}

// outcome prints the answer to a management call.
func (r Remote) outcome(out io.Writer, raw json.RawMessage) error {
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
