package ui

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"reveille/gateway/costs"
	"reveille/infra/catalog"
	"reveille/infra/policy"
	"reveille/infra/state"
)

// The timeline's span and its bounds.
const (
	historyStep     = 10 * time.Second
	historySteps    = 360 // an hour
	maxEvents       = 2000
	maxStateChanges = 4000 // changes of hosts' states
)

// History keeps the last hour of what this gateway has seen, within fixed bounds. It is safe for concurrent use.
type History struct {
	mu      sync.Mutex
	began   time.Time
	steps   [historySteps]bucket
	events  []Event
	changes []StateChange
	last    map[string]string // state by host
}

// bucket counts the responses of one step.
type bucket struct {
	step            int64 // number since the epoch
	requests        int
	cold            int
	timedFirstBytes int           // responses whose first byte was timed
	firstByteSum    time.Duration // their sum
}

// Event is one load, eviction, unload or failure. At is in Unix milliseconds.
type Event struct {
	At     int64  `json:"at"`
	Host   string `json:"host"`
	Kind   string `json:"kind"` // load, evict, unload, failed
	Model  string `json:"model"`
	LoadMS int64  `json:"load_ms,omitempty"`
}

// StateChange is a host's change to a state.
type StateChange struct {
	At    int64  `json:"at"`
	Host  string `json:"host"`
	State string `json:"state"`
}

// NewHistory starts an empty history.
func NewHistory(now time.Time) *History { return &History{began: now, last: map[string]string{}} }

// CountResponse counts a complete response: the time to its first byte, 0 if unknown, and whether it waited for a load.
func (h *History) CountResponse(now time.Time, first time.Duration, cold bool) {
	step := now.UnixNano() / int64(historyStep)
	h.mu.Lock()
	defer h.mu.Unlock()
	t := &h.steps[step%historySteps]
	if t.step != step {
		*t = bucket{step: step}
	}
	t.requests++
	if cold {
		t.cold++
	}
	if first > 0 {
		t.timedFirstBytes++
		t.firstByteSum += first
	}
}

// OnEvent records an event of the pool.
func (h *History) OnEvent(now time.Time, e state.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	at := now.UnixMilli()
	switch e.Kind {
	case "host":
		h.recordChangeLocked(at, e.Host, e.State)
	case "ticket":
		r := e.Record()
		switch {
		case r.Kind == "unload":
			if r.State == state.TicketReady {
				h.recordEventLocked(Event{At: at, Host: e.Host, Kind: "unload", Model: e.Model})
			}
		case r.State == state.TicketReady && r.LoadMS > 0:
			for id := range strings.SplitSeq(r.Evicted, ",") {
				if id != "" {
					h.recordEventLocked(Event{At: at, Host: e.Host, Kind: "evict", Model: id})
				}
			}
			h.recordEventLocked(Event{At: at, Host: e.Host, Kind: "load", Model: e.Model, LoadMS: r.LoadMS})
		case r.State == state.TicketFailed:
			h.recordEventLocked(Event{At: at, Host: e.Host, Kind: "failed", Model: e.Model})
		}
	}
}

// OnSnapshot takes over the states of the hosts from a snapshot, since events may be lost.
func (h *History) OnSnapshot(now time.Time, s *state.Snapshot) {
	if s.Taken.IsZero() {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, rec := range s.Hosts {
		h.recordChangeLocked(now.UnixMilli(), name, string(rec.State))
	}
	for name := range h.last {
		if s.Hosts[name] == nil {
			delete(h.last, name)
		}
	}
}

func (h *History) recordChangeLocked(at int64, host, to string) {
	switch policy.HostState(to) {
	case policy.Asleep, policy.Waking, policy.Ready, policy.Draining, policy.Lost:
	default:
		return
	}
	if host == "" || h.last[host] == to || h.last[host] == "" && len(h.last) >= maxStateChanges {
		return
	}
	h.last[host] = to
	h.changes = bounded(append(h.changes, StateChange{at, host, to}), maxStateChanges)
}

func (h *History) recordEventLocked(m Event) { h.events = bounded(append(h.events, m), maxEvents) }

// bounded drops the oldest entries.
func bounded[T any](list []T, max int) []T {
	if len(list) <= max {
		return list
	}
	return append(list[:0], list[len(list)-max:]...)
}

// Timeline is the last hour. Times are Unix milliseconds on this gateway's clock.
type Timeline struct {
	From   int64          `json:"from"`
	To     int64          `json:"to"`
	Step   int64          `json:"step"`
	Since  int64          `json:"since"` // when this gateway started to watch
	Rate   []int          `json:"rate"`  // responses in each step
	Cold   []int          `json:"cold"`  // of them, those that waited for a load
	First  []int64        `json:"first"` // mean ms to the first byte, -1 without any
	Hosts  []HostTimeline `json:"hosts"`
	Spent  float64        `json:"spent"`  // what the hosts' time awake cost, by price
	Always float64        `json:"always"` // what it would have cost if all of the catalog had been on all the time
	Month  costs.Report   `json:"month"`  // by host, from the pool's counters
}

// HostTimeline is a host's last hour.
type HostTimeline struct {
	Host    string        `json:"host"`
	Awake   int64         `json:"awake"` // milliseconds in which it was on
	Price   float64       `json:"price,omitempty"`
	Changes []StateChange `json:"turns"`
	Events  []Event       `json:"marks"`
}

// Timeline makes the view of the last hour, and of the month. Its last step has just started; times awake and costs are
// those up to it.
func (h *History) Timeline(now time.Time, cat *catalog.Catalog, month costs.Report) Timeline {
	h.mu.Lock()
	defer h.mu.Unlock()
	step := now.UnixNano() / int64(historyStep)
	out := Timeline{
		To: (step + 1) * historyStep.Milliseconds(), Step: historyStep.Milliseconds(), Since: h.began.UnixMilli(),
		Rate: make([]int, historySteps), Cold: make([]int, historySteps), First: make([]int64, historySteps), Hosts: []HostTimeline{}, Month: month,
	}
	out.From = out.To - historySteps*out.Step
	for i := range historySteps {
		at := step + 1 - historySteps + int64(i)
		t := h.steps[at%historySteps]
		out.First[i] = -1
		if t.step != at {
			continue
		}
		out.Rate[i], out.Cold[i] = t.requests, t.cold
		if t.timedFirstBytes > 0 {
			out.First[i] = t.firstByteSum.Milliseconds() / int64(t.timedFirstBytes)
		}
	}
	strips := map[string]*HostTimeline{}
	strip := func(host string) *HostTimeline {
		if strips[host] == nil {
			strips[host] = &HostTimeline{Host: host, Changes: []StateChange{}, Events: []Event{}}
		}
		return strips[host]
	}
	for _, t := range h.changes {
		s := strip(t.Host)
		if t.At < out.From { // the state at the beginning of the span
			s.Changes = append(s.Changes[:0], StateChange{out.From, t.Host, t.State})
		} else if t.At < out.To {
			s.Changes = append(s.Changes, t)
		}
	}
	for _, m := range h.events {
		if m.At >= out.From && m.At < out.To {
			s := strip(m.Host)
			s.Events = append(s.Events, m)
		}
	}
	full := out.To - out.Step
	watched := float64(full-max(out.From, out.Since)) / 3.6e6
	for _, entry := range cat.Hosts {
		strip(entry.Name).Price = entry.Price // also of a host that never woke
	}
	for _, s := range strips {
		s.Awake = awake(s.Changes, full)
		out.Spent += s.Price * float64(s.Awake) / 3.6e6
		out.Always += s.Price * max(0, watched)
		out.Hosts = append(out.Hosts, *s)
	}
	slices.SortFunc(out.Hosts, func(a, b HostTimeline) int { return cmp.Compare(a.Host, b.Host) })
	if len(out.Hosts) > maxHosts {
		out.Hosts = out.Hosts[:maxHosts]
	}
	return out
}

// awake returns for how many milliseconds a host was not asleep up to end.
func awake(turns []StateChange, end int64) (ms int64) {
	for i, t := range turns {
		until := end
		if i+1 < len(turns) {
			until = min(turns[i+1].At, end)
		}
		if t.State != string(policy.Asleep) {
			ms += max(0, until-t.At)
		}
	}
	return ms
}
