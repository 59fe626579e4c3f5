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

	"reveille/infra/policy"
	"reveille/infra/term"
	"reveille/runner/devices"
)

// PS is `gateway ps`.
type PS struct {
	Remote
	Watch bool `short:"w" help:"Show it again every two seconds, until Ctrl-C."`
}

// health is what ps reads of GET /v1/health.
type health struct {
	Models  []modelCopy `json:"all_models_loaded"`
	Retired []modelCopy `json:"models_retired"`
	Loading []struct {
		Name    string  `json:"model_name"`
		Type    string  `json:"type"`
		State   string  `json:"state"`
		Since   float64 `json:"since"`
		Waiting int     `json:"waiting"`
	} `json:"models_loading"`
	Waiting int `json:"queue_length"`
	Runners []struct {
		ID      string `json:"id"`
		State   string `json:"state"`
		Devices string `json:"devices"`
		PowerOn bool   `json:"power_off_pending"`
		Sandbox struct {
			Mode    string   `json:"mode"`
			Missing []string `json:"missing"`
		} `json:"sandbox"`
		Found devices.Found `json:"found"`
		Boot  struct {
			State  string  `json:"state"`
			Reason string  `json:"reason"`
			Since  float64 `json:"since"`
		} `json:"boot"`
	} `json:"runners"`
}

// maxFound is how much of a host's devices is shown, in bytes.
const maxFound = 2000

// maxReason is how much of the reason of a failed start is shown, in bytes.
const maxReason = 200

type modelCopy struct {
	Name    string  `json:"model_name"`
	Type    string  `json:"type"`
	Device  string  `json:"device"`
	Runner  string  `json:"runner"`
	PID     int     `json:"pid"`
	LastUse float64 `json:"last_use"`
	Busy    bool    `json:"is_busy"`
	Pinned  bool    `json:"pinned"`
	Recipe  string  `json:"recipe"`
	Plan    struct {
		GPUs []int `json:"gpus"`
	} `json:"plan"`
}

// devices are the copy's devices, with the GPUs that it uses where it was given some of them.
func (m modelCopy) devices() string {
	out := strings.Fields(m.Device)
	if n := len(m.Plan.GPUs); n > 0 && n <= policy.MaxGPUs {
		out = slices.DeleteFunc(out, func(d string) bool { return d == policy.GPU.String() })
		for _, card := range m.Plan.GPUs {
			out = append(out, fmt.Sprintf("gpu:%d", card))
		}
	}
	return strings.Join(out, " ")
}

// watchEvery is the pause between two looks of --watch.
const watchEvery = 2 * time.Second

// clearScreen moves a terminal's cursor to the top left corner and erases what follows.
const clearScreen = "\x1b[H\x1b[2J"

// Run prints hosts, models and the queue. With --watch it does so until ctx ends, in the same place if out is a terminal; after
// the first time, an error is shown in place of the pool.
func (c *PS) Run(ctx context.Context, out io.Writer) error {
	if !c.Watch {
		return c.show(ctx, out)
	}
	before := ""
	if f, ok := out.(*os.File); ok && xterm.IsTerminal(int(f.Fd())) {
		before = clearScreen
	}
	for first := true; ; first = false {
		var page bytes.Buffer
		err := c.show(ctx, &page)
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

// show prints the pool once.
func (c *PS) show(ctx context.Context, out io.Writer) error {
	var raw json.RawMessage
	if err := c.call(ctx, "GET", "/v1/health", nil, &raw); err != nil {
		return err
	}
	if c.JSON {
		return print(out, raw)
	}
	var h health
	if err := json.Unmarshal(raw, &h); err != nil {
		return err
	}
	on := map[string]int{}
	for _, m := range slices.Concat(h.Models, h.Retired) {
		on[m.Runner]++
	}
	w := term.Table(out)
	fmt.Fprintln(w, "HOST\tSTATE\tDEVICES\tMODELS\tSANDBOX")
	for _, r := range h.Runners {
		box := r.Sandbox.Mode
		if box != "off" && len(r.Sandbox.Missing) > 0 {
			box += ", without " + strings.Join(r.Sandbox.Missing, " ")
		}
		if r.PowerOn {
			r.State += ", not known to be off"
		}
		if r.Boot.State != "" {
			r.State += ", " + r.Boot.State + " " + ago(r.Boot.Since)
		}
		if r.Boot.Reason != "" {
			r.State += ": " + term.Line(r.Boot.Reason, maxReason)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\n", r.ID, r.State, r.Devices, on[r.ID], box)
	}
	for i, r := range h.Runners {
		if i == 0 {
			fmt.Fprintln(w, "\nHOST\tFOUND\tNOT FOUND")
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", r.ID, term.Line(r.Found.String(), maxFound), term.Line(strings.Join(r.Found.Missing, "; "), maxFound))
	}
	fmt.Fprintln(w, "\nMODEL\tTYPE\tSTATE\tHOST\tDEVICE\tRECIPE\tPID\tUSED\tNOTE")
	row := func(m modelCopy, state, note string) {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\n", m.Name, m.Type, state, m.Runner, m.devices(), m.Recipe, m.PID, ago(m.LastUse), note)
	}
	for _, m := range h.Models {
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
	if err := w.Flush(); err != nil || h.Waiting == 0 {
		return err
	}
	_, err := fmt.Fprintf(out, "\n%s waiting\n", count(h.Waiting, "request"))
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
