package sweep

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"reveille/infra/policy"
	"reveille/infra/state"
	"reveille/infra/term"
)

// Kind is the kind of an action.
type Kind string

// Kinds of actions.
const (
	Unload   Kind = "unload"   // a model has been idle for too long
	Sleep    Kind = "sleep"    // a host has no work
	Warm     Kind = "warm"     // a model is scheduled to be loaded now
	Wake     Kind = "wake"     // a host is woken for a scheduled or abandoned load
	Lost     Kind = "lost"     // a host has been silent for too long
	Drop     Kind = "drop"     // no request waits for a load
	Stranded Kind = "stranded" // a host did not register after its wake, or has been lost for long
	Forget   Kind = "forget"   // a host outside the catalog has sent no heartbeat for long
	Orphan   Kind = "orphan"   // a machine runs without a runner
	Recall   Kind = "recall"   // a drain whose sweep is gone is canceled
)

// Result is the outcome of an action.
type Result string

// Results.
const (
	Planned    Result = "planned"    // dry run: nothing was done
	Queued     Result = "queued"     // a ticket was created
	Done       Result = "done"       // it was done
	CalledOff  Result = "called off" // work arrived, or the runner did not confirm
	Refused    Result = "refused"    // no host can take it, or the host does not sleep now
	Unfinished Result = "unfinished" // a machine is shutting down; a later sweep continues
	Failed     Result = "failed"     // see Error; a later sweep retries
)

// Action is one thing that a sweep did or would do, and why.
type Action struct {
	Kind   Kind   `json:"action"`
	Host   string `json:"host,omitempty"`
	Model  string `json:"model,omitempty"`
	Reason string `json:"reason"`
	Result Result `json:"result"`
	Error  string `json:"error,omitempty"`
}

// Host is a host at the end of a sweep.
type Host struct {
	Name     string           `json:"host"`
	State    policy.HostState `json:"state"`
	Models   int              `json:"models"`
	InFlight int              `json:"in_flight"`
	Queued   int              `json:"queued"`

	PowerOffPending bool `json:"power_off_pending"` // it is asleep, and its machine is not known to be off
}

// Report lists the findings and actions of a sweep. Times are by the state store's clock.
type Report struct {
	At      time.Time `json:"at"`
	Pool    string    `json:"pool"`
	DryRun  bool      `json:"dry_run"`
	Actions []Action  `json:"actions"`
	Hosts   []Host    `json:"hosts"`
	Running *int      `json:"running,omitempty"` // machines billed by their cloud; nil if unknown
}

// Failures returns the number of failed actions.
func (r Report) Failures() int {
	n := 0
	for _, a := range r.Actions {
		if a.Result == Failed {
			n++
		}
	}
	return n
}

// Table writes the report as text: actions and reasons, then the hosts.
func (r Report) Table(w io.Writer) error {
	t := term.Table(w)
	if len(r.Actions) == 0 {
		fmt.Fprintln(t, "nothing to do")
	} else {
		fmt.Fprintln(t, "ACTION\tHOST\tMODEL\tRESULT\tREASON")
		for _, a := range r.Actions {
			why := a.Reason
			if a.Error != "" {
				why += ": " + a.Error
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", a.Kind, dash(a.Host), dash(a.Model), a.Result, oneLine(why))
		}
	}
	if len(r.Hosts) > 0 {
		fmt.Fprintln(t, "\nHOST\tSTATE\tMODELS\tIN FLIGHT\tQUEUED")
	}
	for _, h := range r.Hosts {
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%d\n", h.Name, h.State, h.Models, h.InFlight, h.Queued)
	}
	return t.Flush()
}

func dash(s string) string { return cmp.Or(s, "-") }

// oneLine removes line breaks from a driver's message.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// reportFirst reports the hosts as they are before the sweep acts.
func (r *run) reportFirst(ctx context.Context) error {
	if r.observe == nil {
		return nil
	}
	if err := r.reportHosts(ctx); err != nil {
		return err
	}
	r.observe(*r.report)
	return nil
}

// reportHosts puts the hosts into the report.
func (r *run) reportHosts(ctx context.Context) error {
	s, err := r.store.Snapshot(ctx)
	if err != nil {
		return err
	}
	r.report.At, r.report.Hosts = r.now(s).UTC(), nil
	for _, h := range r.catalog.Hosts {
		if s.Hosts[h.Name] == nil {
			r.report.Hosts = append(r.report.Hosts, Host{Name: h.Name, State: policy.Asleep})
		}
	}
	for name, h := range s.Hosts {
		one := Host{Name: name, State: h.State, Queued: len(h.Queue), PowerOffPending: h.PowerOffPending()}
		for _, m := range h.Models {
			one.InFlight += m.InFlight
			if m.Retired == "" { // otherwise it is only a retired copy
				one.Models++
			}
		}
		r.report.Hosts = append(r.report.Hosts, one)
	}
	slices.SortFunc(r.report.Hosts, func(a, b Host) int { return strings.Compare(a.Name, b.Name) })
	return nil
}

var _ Store = (*state.Store)(nil)
