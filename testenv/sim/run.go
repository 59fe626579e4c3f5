package sim

import (
	"testing"
	"testing/synctest"
	"time"

	"reveille/testenv/check"
)

// How often hosts are looked at: in quiet times, and at others.
const (
	sampleEvery  = 250 * time.Millisecond
	sampleSeldom = time.Second
)

// Report is what a run showed.
type Report struct {
	Violations []check.Violation // none: all promises were kept
	History    []check.Event
	Requests   int // that were made
	Outcomes   map[string]int
	Spawns     int
	Virtual    time.Duration // how long the pool lived

	// The same while the scenario's own requests were served: without those that look whether the pool still works.
	Last         int // step
	Before       map[string]int
	SpawnsBefore int

	Judged map[int]check.Judged // by invariant
}

// Run runs a scenario in a bubble of its own. It ends at the first violation. t is for the bubble alone: violations are
// reported, not failed.
func Run(t *testing.T, s Scenario) Report { return run(t, s, func(*world) {}) }

// run is Run for a test that looks at the world when it has ended.
func run(t *testing.T, s Scenario, look func(*world)) Report {
	var out Report
	synctest.Test(t, func(t *testing.T) {
		w, err := newWorld(s)
		if err != nil {
			t.Fatal(err)
		}
		w.run()
		w.end()
		out = w.report()
		look(w)
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
	w.work.Go(w.warmer.run)
	if !w.advance(time.Second) {
		return
	}
	if w.scenario.MinLoaded > 0 {
		w.disturb(24*time.Hour, "min_loaded")
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
	return w.until(d, func() bool { return false })
}

// until is advance that ends as soon as something is so. While promises for quiet times are suspended it looks less
// often.
func (w *world) until(most time.Duration, so func() bool) bool {
	for end := time.Now().Add(most); ; {
		synctest.Wait()
		w.sample()
		w.judgeKeys()
		if len(w.broken()) > 0 {
			return false
		}
		left := time.Until(end)
		if left <= 0 || so() {
			return true
		}
		every := sampleEvery
		if !w.calm() {
			every = sampleSeldom
		}
		time.Sleep(min(left, every))
	}
}

// calmDown mends everything, lets all requests end, and looks whether the pool still does its work.
func (w *world) calmDown() {
	w.mend()
	served := w.served()
	if w.until(2*time.Minute+w.scenario.settle(), func() bool { return w.calm() && served() }) && served() {
		w.works()
	}
}

// served returns a function that reports whether all requests made so far have ended.
func (w *world) served() func() bool {
	done := make(chan struct{})
	go func() {
		w.clients.Wait()
		close(done)
	}()
	return func() bool {
		select {
		case <-done:
			return true
		default:
			return false
		}
	}
}

// works asks every gateway for every model once more.
func (w *world) works() {
	w.mu.Lock()
	w.step++
	w.mu.Unlock()
	for i, m := range w.models().Models {
		w.request(w.gateway(i+1), m.ID, Step{Op: Request, For: hold, Serve: 100 * time.Millisecond})
		if !w.advance(3 * time.Second) {
			return
		}
	}
	if !w.until(hold+time.Second, w.served()) {
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
	w.warmer.end(false)
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
	out := Report{Violations: w.checker.Violations(), Judged: w.checker.Judged(), History: w.history, Requests: w.requests, Outcomes: map[string]int{}, Before: map[string]int{}}
	out.Last = len(w.scenario.Steps) + 1
	for _, e := range w.history {
		switch e.Kind {
		case check.Outcome:
			if e.Model != "" {
				continue // of an explicit load, no request
			}
			out.Outcomes[e.Text]++
			if e.Step <= out.Last {
				out.Before[e.Text]++
			}
		case check.Spawn:
			out.Spawns++
			if e.Step <= out.Last {
				out.SpawnsBefore++
			}
		}
		out.Virtual = e.At
	}
	return out
}
