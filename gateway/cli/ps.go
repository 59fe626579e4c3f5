package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	xterm "golang.org/x/term"

	"reveille/gateway/manage"
	"reveille/infra/policy"
	"reveille/infra/term"
	"reveille/runner/devices"
	"reveille/runner/sandbox"
)

// PS is `gateway ps`.
type PS struct {
	Remote
	Watch bool `short:"w" help:"Show it again every two seconds, until Ctrl-C."`
}

// maxFound is how much of a host's devices is shown, in bytes.
const maxFound = 2000

// maxReason is how much of the reason of a failed start is shown, in bytes.
const maxReason = 200

// devicesOf are a copy's devices, with the GPUs that it uses where it was given some of them.
func devicesOf(m manage.LoadedModel) string {
	var plan struct {
		GPUs []int `json:"gpus"`
	}
	_ = json.Unmarshal(m.Plan, &plan) // none: any GPU
	out := strings.Fields(m.Device)
	if n := len(plan.GPUs); n > 0 && n <= policy.MaxGPUs {
		out = slices.DeleteFunc(out, func(d string) bool { return d == policy.GPU.String() })
		for _, card := range plan.GPUs {
			out = append(out, fmt.Sprintf("gpu:%d", card))
		}
	}
	return strings.Join(out, " ")
}

// watchEvery is the pause between two looks of --watch.
const watchEvery = 2 * time.Second

// clearScreen moves a terminal's cursor to the top left corner and erases what follows.
const clearScreen = "\x1b[H\x1b[2J"

// Run prints hosts, models and the queue. With --watch it does so until ctx ends, in the same place if out is a
// terminal; after the first time, an error is shown in place of the pool.
func (c *PS) Run(ctx context.Context, out io.Writer) error {
	if !c.Watch {
		return c.once(ctx, out)
	}
	before := ""
	if f, ok := out.(*os.File); ok && xterm.IsTerminal(int(f.Fd())) {
		before = clearScreen
	}
	for first := true; ; first = false {
		var page bytes.Buffer
		err := c.once(ctx, &page)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			if first {
				return err
			}
			fmt.Fprintln(term.Writer(&page), err)
		}
		if _, err := io.WriteString(out, before+page.String()); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(watchEvery):
		}
	}
}

// once prints the pool once.
func (c *PS) once(ctx context.Context, out io.Writer) error {
	var h manage.HealthReport
	if printed, err := c.Remote.show(ctx, out, "GET", "/v1/health", nil, &h); printed || err != nil {
		return err
	}
	on := map[string]int{}
	for _, m := range slices.Concat(h.Loaded, h.Retired) {
		on[m.Runner]++
	}
	w := term.Table(out)
	fmt.Fprintln(w, "HOST\tSTATE\tDEVICES\tMODELS\tSANDBOX")
	for _, r := range h.Runners {
		var box sandbox.Report
		_ = json.Unmarshal(r.Sandbox, &box) // a host that is not up has none
		if box.Mode != sandbox.Off && len(box.Missing) > 0 {
			box.Mode += ", without " + strings.Join(box.Missing, " ")
		}
		state := string(r.State)
		if r.PowerOffPending {
			state += ", not known to be off"
		}
		if r.Unproven {
			state += ", sleep is not proven"
		}
		if r.Boot != nil {
			state += ", " + r.Boot.State + " " + ago(r.Boot.Since)
			if r.Boot.Reason != "" {
				state += ": " + term.Line(r.Boot.Reason, maxReason)
			}
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\n", r.ID, state, r.Devices, on[r.ID], box.Mode)
	}
	fmt.Fprintln(w, "\nHOST\tFOUND\tNOT FOUND")
	for _, r := range h.Runners {
		var found devices.Found
		_ = json.Unmarshal(r.Found, &found)
		fmt.Fprintf(w, "%s\t%s\t%s\n", r.ID, term.Line(found.String(), maxFound), term.Line(strings.Join(found.Missing, "; "), maxFound))
	}
	fmt.Fprintln(w, "\nMODEL\tTYPE\tSTATE\tHOST\tDEVICE\tRECIPE\tPID\tUSED\tNOTE")
	row := func(m manage.LoadedModel, state, note string) {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\n", m.Name, m.Type, state, m.Runner, devicesOf(m), m.Recipe, m.PID, ago(m.LastUse), note)
	}
	for _, m := range h.Loaded {
		state, note := "loaded", ""
		if m.Busy {
			state = "busy"
		}
		if m.Pinned {
			note = "pinned"
		}
		row(m, state, note)
	}
	for _, m := range h.Retired {
		row(m, "retired", "its entry changed: it finishes its requests")
	}
	for _, m := range h.Loading {
		fmt.Fprintf(w, "%s\t%s\t%s\t\t\t\t\t%s\t%d waiting\n", m.Name, m.Type, m.State, ago(m.Since), m.Waiting)
	}
	if err := w.Flush(); err != nil || h.Queue == 0 {
		return err
	}
	_, err := fmt.Fprintf(out, "\n%s waiting\n", Count(h.Queue, "request"))
	return err
}

// ago is a Unix time as people say it.
func ago(unix float64) string {
	if unix == 0 {
		return "-"
	}
	d := time.Since(time.UnixMilli(int64(unix * 1000)))
	return d.Round(time.Second).String() + " ago"
}
