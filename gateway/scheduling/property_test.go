package scheduling

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"reveille/infra/policy"

	"pgregory.net/rapid"
)

// act is one event in a pool with two gates.
type act struct {
	kind  int
	gate  int
	model string
	n     int
	after time.Duration
}

const (
	arrive = iota
	depart
	failLoads
	loseHost
	wakeFails
	storeAway
	storeEmptied
	eventsLost
	staleOnes
	evict
	kinds
)

// TestEveryWaiterHasOneOutcome plays arrivals, departures and faults in any order and checks the invariants: one
// outcome for each waiter, in time; one Acquire in progress for a model at a gateway; nothing left behind.
func TestEveryWaiterHasOneOutcome(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		acts := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) act {
			kind := rapid.IntRange(0, 2*kinds).Draw(rt, "kind")
			if kind >= kinds {
				kind = arrive
			}
			return act{
				kind: kind, gate: rapid.IntRange(0, 1).Draw(rt, "gate"),
				model: fmt.Sprint("m", rapid.IntRange(0, 3).Draw(rt, "model")),
				n:     rapid.IntRange(0, 20).Draw(rt, "n"),
				after: time.Duration(rapid.IntRange(0, 4000).Draw(rt, "ms")) * time.Millisecond,
			}
		}), 1, 40).Draw(rt, "acts")
		var wrong string
		synctest.Test(t, func(t *testing.T) { wrong = play(t, acts) })
		if wrong != "" {
			rt.Fatal(wrong)
		}
	})
}

// play performs the acts and returns what went wrong.
func play(t *testing.T, acts []act) string {
	p := newPool("a", "b")
	p.hosts["b"].State = "asleep"
	wakeWorks := true
	change := func(c *Config) {
		c.WakeLimit = time.Minute
		c.Waker = wakerFunc(func(_ context.Context, host string) error {
			time.Sleep(300 * time.Millisecond)
			p.mu.Lock()
			works := wakeWorks
			p.mu.Unlock()
			if !works {
				return context.DeadlineExceeded
			}
			p.setState(host, "ready")
			return nil
		})
	}
	gates := []*rig{start(t, p, change), start(t, p, change)}
	type held struct {
		w     *Waiter
		limit time.Duration
	}
	var all []held
	for _, a := range acts {
		time.Sleep(a.after)
		g := gates[a.gate]
		switch a.kind {
		case arrive:
			limit := time.Duration(a.n+1) * time.Second
			for i := range a.n%3 + 1 {
				ask := WaitRequest{Model: a.model, Limit: limit, Background: a.n == 13}
				if i == 1 {
					ask.Refused = []string{"a"}
				}
				if w, err := g.Enter(ask); err == nil {
					all = append(all, held{w, limit})
				}
			}
		case depart:
			if len(all) > 0 {
				all[a.n%len(all)].w.Leave(a.n%2 == 0)
			}
		case failLoads:
			p.set(func() {
				code := []string{"", "model_load_error", "model_file_not_found", "draining"}[a.n%4]
				p.outcome = func(string, int) map[string]string { return map[string]string{"code": code} }
			})
		case loseHost:
			p.setState([]string{"a", "b"}[a.n%2], []policy.HostState{"lost", "asleep", "ready"}[a.n%3])
		case wakeFails:
			p.set(func() { wakeWorks = a.n%2 == 0 })
		case storeAway:
			p.set(func() { p.down = a.n%2 == 0 })
		case storeEmptied:
			p.set(func() {
				clear(p.tickets)
				clear(p.ops)
				for _, h := range p.hosts {
					h.Queue, h.Loading = nil, ""
				}
				p.epoch += "+"
				p.rev++
			})
		case eventsLost:
			p.set(func() { p.mute = a.n%2 == 0 })
		case staleOnes:
			p.set(func() { p.stale = a.n })
		case evict:
			p.set(func() {
				for _, h := range p.hosts {
					delete(h.Models, a.model)
				}
				p.rev++
			})
		}
	}
	for i, h := range all {
		select {
		case <-h.w.Done():
		case <-time.After(h.limit + time.Second - min(h.limit, time.Since(h.w.entered))):
			return fmt.Sprintf("waiter %d has no outcome after %v", i, time.Since(h.w.entered))
		}
		r, info, err := h.w.Result()
		if (err == nil) != (r.Addr != "") {
			return fmt.Sprintf("waiter %d: endpoint %+v with error %v", i, r, err)
		}
		if info.Waited > h.limit+time.Second {
			return fmt.Sprintf("waiter %d: outcome after %v of %v", i, info.Waited, h.limit)
		}
	}
	p.set(func() { p.down = false; wakeWorks = true })
	time.Sleep(10 * time.Minute)
	p.mu.Lock()
	doubled := p.doubled
	p.mu.Unlock()
	if doubled {
		return "two Acquires for a model were under way at one gateway"
	}
	for i, g := range gates {
		g.Gate.mu.Lock()
		left := fmt.Sprint(g.waiting, len(g.groups), len(g.allGroups), len(g.Gate.tickets), len(g.wakes))
		g.Gate.mu.Unlock()
		if left != "0 0 0 0 0" {
			return fmt.Sprintf("gate %d keeps (waiters groups all tickets wakes) %s", i, left)
		}
	}
	return ""
}
