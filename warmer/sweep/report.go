package sweep

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
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
	Drop     Kind = "drop"     // nobody waits for a load
	Stranded Kind = "stranded" // a host did not register after its wake, or has been lost for long
	Forget   Kind = "forget"   // a host outside the catalogue has shown no sign of life for long
	Orphan   Kind = "orphan"   // a machine runs without a runner
	Recall   Kind = "recall"   // a drain whose sweep is gone is cancelled
)

// Result is the outcome of an action.
type Result string

// Results.
const (
	Planned    Result = "planned"    // dry run: nothing was done
	Queued     Result = "queued"     // a ticket was created
	Done       Result = "done"       // it was done
	CalledOff  Result = "called off" // work arrived, or the other side did not agree
	Refused    Result = "refused"    // no host can take it
	Unfinished Result = "unfinished" // a machine is shutting down; a later sweep continues
	Failed     Result = "failed"     // see Error; a later sweep tries again
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

// Host is the traffic of one host at the end of a sweep.
type Host struct {
	Name     string           `json:"host"`
	State    policy.HostState `json:"state"`
	Models   int              `json:"models"`
	InFlight int              `json:"in_flight"`
	Queued   int              `json:"queued"`
	Requests float64          `json:"requests_total"` // answered since the pool was created
	Idle     float64          `json:"idle_seconds"`   // since its last activity; 0 while it is asleep or serving
	Up       float64          `json:"up_seconds"`     // since its registration; 0 while it is asleep

	PowerOffPending bool `json:"power_off_pending"` // it is asleep, and its machine is not known to be off
}

// Model is the traffic of a model on a host at the end of a sweep.
type Model struct {
	Name     string            `json:"model"`
	Host     string            `json:"host"`
	State    policy.ModelState `json:"state"` // unloaded means that it has served there before
	InFlight int               `json:"in_flight"`
	Requests float64           `json:"requests_total"` // answered since the pool was created
	Idle     float64           `json:"idle_seconds"`   // since its last use; 0 while it is serving or unloaded
}

// Report lists the findings and actions of a sweep. Times are by the state store's clock.
type Report struct {
	At       time.Time          `json:"at"`
	Pool     string             `json:"pool"`
	DryRun   bool               `json:"dry_run"`
	Actions  []Action           `json:"actions"`
	Hosts    []Host             `json:"hosts"`
	Models   []Model            `json:"models"`             // loaded ones, and those that have served and may be loaded again
	Running  *int               `json:"running,omitempty"`  // machines billed by their cloud; nil if unknown
	Counters map[string]float64 `json:"counters,omitempty"` // of the pool, since it was created
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

// Table writes the report for people: actions and reasons, then the traffic.
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
		fmt.Fprintln(t, "\nHOST\tSTATE\tMODELS\tIN FLIGHT\tQUEUED\tREQUESTS\tIDLE\tUP")
	}
	for _, h := range r.Hosts {
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%d\t%.0f\t%s\t%s\n", h.Name, h.State, h.Models, h.InFlight, h.Queued, h.Requests, span(h.Idle), span(h.Up))
	}
	if len(r.Models) > 0 {
		fmt.Fprintln(t, "\nMODEL\tHOST\tSTATE\tIN FLIGHT\tREQUESTS\tIDLE")
	}
	for _, m := range r.Models {
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%.0f\t%s\n", m.Name, m.Host, m.State, m.InFlight, m.Requests, span(m.Idle))
	}
	return t.Flush()
}

func dash(s string) string { return cmp.Or(s, "-") }

// oneLine keeps a driver's message from breaking the table.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

func span(seconds float64) string {
	if seconds <= 0 {
		return "-"
	}
	return (time.Duration(seconds) * time.Second).String()
}

// reportTraffic adds the traffic to the report.
func (r *run) reportTraffic(ctx context.Context) error {
	s, err := r.store.Snapshot(ctx)
	if err != nil {
		return err
	}
	requests, err := r.store.Traffic(ctx)
	if err != nil {
		return err
	}
	r.report.At = r.now(s).UTC()
	hosts := slices.Collect(maps.Keys(s.Hosts))
	for _, h := range r.catalog.Hosts {
		if s.Hosts[h.Name] == nil {
			hosts = append(hosts, h.Name)
		}
	}
	slices.Sort(hosts)
	for _, name := range hosts {
		h := s.Hosts[name]
		if h == nil {
			h = &state.HostRecord{Name: name, State: policy.Asleep}
		}
		r.observeHost(s, h, requests)
	}
	r.report.Counters, err = r.store.Stats(ctx)
	return err
}

// observeHost adds the traffic of a host and its models to the report.
func (r *run) observeHost(s *state.Snapshot, h *state.HostRecord, requests map[state.CopyID]float64) {
	since := func(ms int64, busy bool) float64 {
		if ms <= 0 || busy {
			return 0
		}
		return max(0, float64(s.NowMS-ms)/1000)
	}
	out := Host{Name: h.Name, State: h.State, Models: len(h.Models), Queued: len(h.Queue), PowerOffPending: h.PowerOffPending()}
	var models []string
	for id, rec := range h.Models {
		if rec.Retired != "" { // a process that is not a model of its own
			out.InFlight += rec.InFlight
			continue
		}
		models = append(models, id)
	}
	for at, n := range requests {
		if at.Host != h.Name {
			continue
		}
		out.Requests += n
		if _, known := r.catalog.Model(at.Model); known && h.Models[at.Model] == nil {
			models = append(models, at.Model)
		}
	}
	slices.Sort(models)
	for _, id := range models {
		m := Model{Name: id, Host: h.Name, State: "unloaded", Requests: requests[state.CopyID{Host: h.Name, Model: id}]}
		if rec := h.Models[id]; rec != nil {
			m.State, m.InFlight, m.Idle = rec.State, rec.InFlight, since(rec.UsedMS, rec.InFlight > 0)
		}
		out.InFlight += m.InFlight
		r.report.Models = append(r.report.Models, m)
	}
	if h.State == policy.Ready || h.State == policy.Draining {
		out.Idle, out.Up = since(h.ActiveMS, out.InFlight > 0), since(int64(h.Generation/1000), false)
	}
	r.report.Hosts = append(r.report.Hosts, out)
}

var _ Store = (*state.Store)(nil)
