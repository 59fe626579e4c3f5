package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/shirou/gopsutil/v4/process"

	"reveille/infra/relay"
	"reveille/runner/host"
)

const (
	strayTick  = time.Second // between two readings of an engine's CPU time
	strayShare = 0.1         // of a core: an idle engine uses next to nothing, a stray thread what a busy machine leaves it
)

var errStray = errors.New("it computes, although no sequence is in progress and no answer goes out")

// probeLoop ends an engine whose loop does not answer in the time of an iteration. It also ends one whose loop idles
// for that long while another of its threads computes and nobody gets an answer. Such a thread reads a grammar, a
// template or an image that keeps it busy for ever; the end of its request does not stop it.
//
// Answers to other requests say nothing about the loop, because the connection threads answer errors and reads while
// the loop hangs. So probeLoop always asks the loop itself.
func (w *watchdog) probeLoop(model string, e host.Engine, path string, limit time.Duration) {
	began := time.Now()
	var at time.Time
	var used float64
	var heard uint64
	for {
		idle, err := w.idle(e, path, limit)
		if errors.Is(err, relay.ErrTimeout) && w.life.Err() == nil {
			w.endSilent(model, e, err)
			return
		}
		if err != nil {
			w.awaitEnd(e, err)
			return
		}
		now, cpu := time.Now(), cpuTime(e)
		switch {
		case !idle, cpu < 0:
			return
		case at.IsZero(): // nothing to compare with
		case cpu-used < strayShare*now.Sub(at).Seconds(), e.Client().Heard() != heard:
			return
		case now.Sub(began) >= limit:
			w.endSilent(model, e, errStray)
			return
		}
		at, used, heard = now, cpu, e.Client().Heard()
		if !w.sleep(e, strayTick) {
			return
		}
	}
}

// awaitEnd gives an engine that refused a connection a moment to end.
func (w *watchdog) awaitEnd(e host.Engine, err error) {
	if !errors.Is(err, errProbe) {
		w.sleep(e, minProbe)
	}
}

// sleep waits, and reports whether the engine and the watchdog are still alive.
func (w *watchdog) sleep(e host.Engine, d time.Duration) bool {
	ctx, cancel := context.WithTimeout(w.life, d)
	defer cancel()
	select {
	case <-e.Done():
		return false
	case <-ctx.Done():
		return w.life.Err() == nil
	}
}

// idle asks an engine's loop, and reports whether it computes none of its sequences (slots, as llama-server calls them).
func (w *watchdog) idle(e host.Engine, path string, limit time.Duration) (bool, error) {
	body, err := w.ask(e, "GET", path, nil, limit)
	if err != nil {
		return false, err
	}
	var slots []struct {
		Processing *bool `json:"is_processing"`
	}
	if json.Unmarshal(body, &slots) != nil || len(slots) == 0 {
		return false, nil
	}
	for _, s := range slots {
		if s.Processing == nil || *s.Processing {
			return false, nil
		}
	}
	return true, nil
}

// cpuTime returns the CPU time of an engine's process in seconds, negative if the system does not report it.
func cpuTime(e host.Engine) float64 {
	p, err := process.NewProcess(int32(e.PID()))
	if err != nil {
		return -1
	}
	t, err := p.Times()
	if err != nil {
		return -1
	}
	return t.User + t.System
}
