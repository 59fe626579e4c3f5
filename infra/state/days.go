package state

import (
	"context"
	"strconv"
	"strings"
	"time"
)

// dayUser is what a day counts requests of: a model or an API key.
type dayUser struct{ kind, name string }

// Kinds of counters of a day.
const (
	dayPool  = "pool"
	dayHost  = "host"
	dayModel = "model"
	dayKey   = "key"
)

// A Day is what a pool did on a day of UTC. Names beyond the limit of a day are counted together as "".
type Day struct {
	Counted time.Duration // how much of it sweeps have counted for the hosts
	Hosts   map[string]HostDay
	Models  map[string]UseDay
	Keys    map[string]UseDay // by the id of an API key, NoKey for requests without one
}

// HostDay is what a host did on a day. Its times are those between two sweeps, so its wakes and sleeps are up to that
// time early or late.
type HostDay struct {
	Awake, Idle time.Duration // idle: awake without an open request
	Cost        float64       // of the time awake, by the price at that time
	// Wakes that ended with a registration, that the driver refused, and that did not end in time.
	Ready, Failed, Overdue int64
}

// UseDay is what the gateways answered on a day with a model or for an API key.
type UseDay struct {
	Requests      int64
	Took          time.Duration // sum of the requests' durations
	Input, Output int64         // tokens
}

// NoKey is the id of requests without an API key.
const NoKey = "none"

// HostOn is a host that is on, for CountHours.
type HostOn struct {
	Name   string
	Unused time.Duration // since it was last active
	Price  float64       // of an hour
}

// CountHours adds the time since its last call, by any process and at most max, to the counters of the day.
func (s *Store) CountHours(ctx context.Context, max time.Duration, on []HostOn) error {
	args := make([]any, 0, 1+3*len(on))
	args = append(args, max.Milliseconds())
	for _, h := range on {
		args = append(args, h.Name, h.Unused.Milliseconds(), strconv.FormatFloat(h.Price, 'f', -1, 64))
	}
	_, err := s.eval(ctx, "hours", args...)
	return err
}

// Day returns the counters of the day that t is in, which are kept for 62 more days.
func (s *Store) Day(ctx context.Context, t time.Time) (Day, error) {
	raw, err := s.hash(ctx, s.keys.day(t))
	if err != nil {
		return Day{}, err
	}
	d := Day{Hosts: map[string]HostDay{}, Models: map[string]UseDay{}, Keys: map[string]UseDay{}}
	for field, text := range raw {
		kind, rest, _ := strings.Cut(field, ":")
		what, name, _ := strings.Cut(rest, ":")
		n, err := strconv.ParseFloat(text, 64)
		if err != nil || !finite(n) {
			continue
		}
		switch kind {
		case dayPool:
			d.Counted = milliseconds(n)
		case dayHost:
			h := d.Hosts[name]
			h.set(what, n)
			d.Hosts[name] = h
		case dayModel:
			addUse(d.Models, what, name, n)
		case dayKey:
			addUse(d.Keys, what, name, n)
		}
	}
	return d, nil
}

func addUse(of map[string]UseDay, what, name string, n float64) {
	u := of[name]
	u.set(what, n)
	of[name] = u
}

// Awake returns how long each host was awake.
func (d Day) Awake() map[string]time.Duration {
	out := make(map[string]time.Duration, len(d.Hosts))
	for name, h := range d.Hosts {
		out[name] = h.Awake
	}
	return out
}

func (h *HostDay) set(what string, n float64) {
	switch what {
	case "awake_ms":
		h.Awake = milliseconds(n)
	case "idle_ms":
		h.Idle = milliseconds(n)
	case "cost":
		h.Cost = n
	case "ready":
		h.Ready = int64(n)
	case "failed":
		h.Failed = int64(n)
	case "overdue":
		h.Overdue = int64(n)
	}
}

func (u *UseDay) set(what string, n float64) {
	switch what {
	case "requests":
		u.Requests = int64(n)
	case "ms":
		u.Took = milliseconds(n)
	case "input":
		u.Input = int64(n)
	case "output":
		u.Output = int64(n)
	}
}

func milliseconds(n float64) time.Duration { return time.Duration(n * float64(time.Millisecond)) }
