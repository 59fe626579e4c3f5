package sim

import (
	"testing"
	"testing/synctest"
	"time"

	"reveille/testenv/check"
)

// sampleEvery is how often hosts are looked at.
const sampleEvery = 250 * time.Millisecond

// Report is what a run showed.
type Report struct {
	Violations []check.Violation // none: all promises were kept
	History    []check.Event
	Requests   int // that were made
	Outcomes   map[string]int
	Spawns     int
	Virtual    time.Duration // how long the pool lived

	// The same while the scenario's own requests were served: without those that look whether the pool still works.
	Before       map[string]int
	SpawnsBefore int
}

// Run runs a scenario in a bubble of its own. It ends at the first violation. t is for the bubble alone: violations are
// reported, not failed.
func Run(t *testing.T, s Scenario) Report {
	var out Report
	synctest.Test(t, func(t *testing.T) {
		w, err := newWorld(s)
		if err != nil {
			t.Fatal(err)
		}
		w.run()
		w.end()
		out = w.report()
	})
	return out
}

func (w *world) run() {
	for _, g := range w.gateways {
		g.start()
	}
	for i, r := range w.runners {
		if !w.scenario.Hosts[i].Asleep {
			r.start()
		}
	}
	if !w.advance(time.Second) {
		return
	}
	for i, s := range w.scenario.Steps {
		w.mu.Lock()
		w.step = i + 1
		w.mu.Unlock()
		operations[s.Op](w, s)
		if !w.advance(s.After) {
			return
		}
	}
	w.mu.Lock()
	w.step++
	w.mu.Unlock()
	w.calmDown()
}

// advance lets the pool run, looking at it; false when a promise was broken.
func (w *world) advance(d time.Duration) bool {
	for end := time.Now().Add(d); ; {
		synctest.Wait()
		w.sample()
		if len(w.broken()) > 0 {
			return false
		}
		left := time.Until(end)
		if left <= 0 {
			return true
		}
		time.Sleep(min(left, sampleEvery))
	}
}

// calmDown mends everything, lets all requests end, and looks whether the pool still does its work.
func (w *world) calmDown() {
	w.mu.Lock()
	w.refusing, w.noWake, w.parts = false, map[string]int{}, map[[2]int]bool{}
	w.mu.Unlock()
	w.orders.mu.Lock()
	clear(w.orders.fail)
	w.orders.mu.Unlock()
	for _, g := range w.gateways {
		if l := g.current(); l != nil {
			l.link.mu.Lock()
			l.link.latency = 0
			l.link.mu.Unlock()
			l.link.heal()
		}
		g.start()
	}
	for _, r := range w.runners {
		if l := r.current(); l != nil {
			l.link.heal()
		}
	}
	done := make(chan struct{})
	go func() {
		w.clients.Wait()
		close(done)
	}()
	for range 12 {
		if !w.advance(10 * time.Second) {
			return
		}
		select {
		case <-done:
			if w.advance(settle) {
				w.works()
			}
			return
		default:
		}
	}
}

// works asks every gateway for every model once more.
func (w *world) works() {
	w.mu.Lock()
	w.step++
	w.mu.Unlock()
	for i := range modelNames {
		w.request(w.gateway(i+1), modelNames[i], Step{For: hold, Serve: 100 * time.Millisecond})
		if !w.advance(3 * time.Second) {
			return
		}
	}
	if !w.advance(hold) {
		return
	}
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.checker.Finish()
}

// end stops everything, so that the bubble can close.
func (w *world) end() {
	w.mu.Lock()
	w.ending = true
	w.mu.Unlock()
	for _, g := range w.gateways {
		g.crash()
	}
	for _, r := range w.runners {
		r.crash()
	}
	w.opLink.kill()
	w.clients.Wait()
	w.work.Wait()
	_ = w.operator.Close()
	w.redis.Close()
	time.Sleep(15 * time.Minute) // timers that come to nothing
	synctest.Wait()
}

func (w *world) report() Report {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := Report{Violations: w.checker.Violations(), History: w.history, Requests: w.requests, Outcomes: map[string]int{}, Before: map[string]int{}}
	for _, e := range w.history {
		switch e.Kind {
		case check.Outcome:
			if e.Model != "" {
				continue // of an explicit load, no request
			}
			out.Outcomes[e.Text]++
			if e.Step <= len(w.scenario.Steps)+1 {
				out.Before[e.Text]++
			}
		case check.Spawn:
			out.Spawns++
			if e.Step <= len(w.scenario.Steps)+1 {
				out.SpawnsBefore++
			}
		}
		out.Virtual = e.At
	}
	return out
}
