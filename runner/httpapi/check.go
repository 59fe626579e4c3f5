package httpapi

import (
	"encoding/json"
	"time"

	"github.com/valyala/fasthttp"

	"reveille/infra/rpc"
	"reveille/runner/host"
)

// A looping engine computes for all its requests in one loop, as llama-server does. LoopPath returns a path (GET) that
// the loop itself answers between two iterations, without computing a sequence; "" if there is none.
type looping interface{ LoopPath() string }

func loopPath(e host.Engine) string {
	if l, ok := e.(looping); ok {
		return l.LoopPath()
	}
	return ""
}

// load is the input that requests give to an engine's loop.
type load struct{ bytes, media int }

// readBy is how many prompt bytes an engine must read within --first-byte to count as alive. A batch of 2,048 tokens takes one
// iteration.
const readBy = 8 << 10

// iteration returns how long one iteration of an engine's loop may take, given the first-byte limit and its input.
func (l load) iteration(firstByte time.Duration) time.Duration {
	if l.media > 0 {
		return LongAnswer * firstByte // an encoder without a GPU may take minutes for the images of one iteration
	}
	most := 2 * firstByte // an iteration reads one batch at most, however long the prompts are
	if l.bytes >= 2*readBy {
		return most
	}
	return min(firstByte/4+firstByte*time.Duration(l.bytes)/readBy, most)
}

// input returns the request's load, zero for an engine without a loop.
func (x *exchange) input() load {
	if loopPath(x.ref.Engine) == "" {
		return load{}
	}
	l := load{bytes: x.size}
	if x.ref.Model.MMProj != "" && x.holdsMedia() {
		l.media = 1
	}
	return l
}

// began adds to an engine's load, and has its loop watched while it has any.
func (w *watchdog) began(model string, e host.Engine, l load) {
	if l == (load{}) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	sum := w.loads[e]
	w.loads[e] = load{sum.bytes + l.bytes, sum.media + l.media}
	if _, watched := w.watched[e]; !watched && !w.closed {
		w.watched[e] = struct{}{}
		w.work.Go(func() { w.watchLoop(model, e) })
	}
}

// watchLoop checks an engine's loop at intervals while it has a load. The client of a request that hangs the loop may neither
// leave nor time out.
func (w *watchdog) watchLoop(model string, e host.Engine) {
	tick := time.NewTicker(w.limit)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-e.Done():
		case <-w.life.Done():
		}
		w.mu.Lock()
		_, busy := w.loads[e]
		if over := !busy || w.life.Err() != nil || ended(e); over {
			delete(w.watched, e)
			w.mu.Unlock()
			return
		}
		w.mu.Unlock()
		w.checkLoop(model, e)
	}
}

// ended reports whether an engine's process has ended.
func ended(e host.Engine) bool {
	select {
	case <-e.Done():
		return true
	default:
		return false
	}
}

// ended undoes began: at once after a complete answer, otherwise after the longest iteration, since the loop drops abandoned
// requests only between iterations.
func (w *watchdog) ended(e host.Engine, l load, complete bool) {
	if l == (load{}) {
		return
	}
	if !complete {
		time.AfterFunc(load{bytes: 2 * readBy, media: l.media}.iteration(w.limit), func() { w.ended(e, l, true) })
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	sum := w.loads[e]
	if sum = (load{sum.bytes - l.bytes, sum.media - l.media}); sum == (load{}) {
		delete(w.loads, e)
		return
	}
	w.loads[e] = sum
}

// checkLoop returns when the engine's loop has answered, or when the engine was ended because its loop did not answer
// within the time of an iteration. Callers share a check in progress, because its answer, still to come, proves that
// the loop runs after their call.
func (w *watchdog) checkLoop(model string, e host.Engine) {
	path := loopPath(e)
	if path == "" {
		return
	}
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return
	}
	done, running := w.checks[e]
	if !running {
		done = make(chan struct{})
		w.checks[e] = done
		limit := w.loads[e].iteration(w.limit)
		w.work.Go(func() {
			defer close(done)
			w.probeLoop(model, e, path, limit)
			w.mu.Lock()
			defer w.mu.Unlock()
			delete(w.checks, e)
		})
	}
	w.mu.Unlock()
	<-done
}

// check answers a gateway that suspects a model's engine of hanging or of having crashed.
func (s *Server) check(ctx *fasthttp.RequestCtx, model string) {
	if _, ok := s.authorised(ctx, ""); !ok {
		return
	}
	for _, e := range s.cfg.Host.EnginesOf(model) {
		s.watchdog.checkLoop(model, e)
	}
	answer := rpc.Check{}
	if at := s.cfg.Host.Crashed(model); !at.IsZero() {
		ms := time.Since(at).Milliseconds()
		answer.CrashedMS = &ms
	}
	body, _ := json.Marshal(answer) // a number always marshals
	ctx.SetContentType("application/json")
	ctx.SetBody(body)
}
