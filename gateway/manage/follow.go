package manage

import (
	"bufio"
	"bytes"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"reveille/gateway/web"
	"reveille/infra/relay"
	"reveille/infra/state"
)

// logsStream follows the logs of all engines, including those that start later, until the reader leaves. Each line begins with
// its model.
func (s *Service) logsStream(r *web.Request) error {
	if r.Hit.Head {
		r.Send(fasthttp.StatusOK, web.TextPlain, nil)
		return nil
	}
	ctx, cancel := context.WithCancel(s.cfg.Life)
	watch := r.Watch(cancel)
	id := r.ID // the request is recycled before the stream runs
	_, _ = s.dir.Fresh()
	history := !r.Asks("no-history")
	r.Answered(fasthttp.StatusOK)
	r.Ctx.SetStatusCode(fasthttp.StatusOK)
	r.Ctx.SetContentType(web.TextPlain)
	r.Ctx.Response.ImmediateHeaderFlush = true
	r.Ctx.SetBodyStreamWriter(func(w *bufio.Writer) {
		defer watch.Stop()
		defer cancel()
		f := &follower{s: s, id: id, history: history, lines: make(chan []byte, 64), ended: make(chan followed), open: map[state.Copy]int{}}
		f.run(ctx, w)
	})
	return nil
}

// follower merges the logs of engines. run's goroutine owns open and the writer; one goroutine per copy reads.
type follower struct {
	s       *Service
	id      string // of the request
	history bool   // include earlier lines; engines that start later are followed from their start
	lines   chan []byte
	ended   chan followed // the logs that broke off
	work    sync.WaitGroup
	open    map[state.Copy]int // process ids of the followed engines, to notice a new engine
}

// followed is one engine whose log was followed.
type followed struct {
	state.Copy
	pid  int
	read bool // some of it was read, so its history is not repeated
}

// followAgain is the pause before a log that broke off is followed again.
const followAgain = time.Second

// run writes lines until ctx ends or the reader is gone, and waits for its goroutines.
func (f *follower) run(ctx context.Context, w *bufio.Writer) {
	ctx, cancel := context.WithCancel(ctx)
	defer f.work.Wait()
	defer cancel()
	mirror := f.s.cfg.Mirror
	var broken, known []followed // logs that broke off, and those of them that are followed again now
	var again <-chan time.Time
	for changed := mirror.Changed(); ; {
		f.join(ctx, mirror.Snapshot(), known)
		f.history, known = true, nil
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				return
			case <-changed:
				changed, waiting = mirror.Changed(), false
			case e := <-f.ended:
				broken = append(broken, e)
				if again == nil {
					again = time.After(followAgain)
				}
			case <-again:
				again, waiting = nil, false
				known, broken = broken, nil
				for _, e := range known {
					if f.open[e.Copy] == e.pid {
						delete(f.open, e.Copy)
					}
				}
			case line := <-f.lines:
				_, _ = w.Write(line)
				if len(f.lines) == 0 && w.Flush() != nil {
					return
				}
			}
		}
	}
}

// join follows the engines that are not yet followed. For those in known, which broke off, it does not repeat lines
// already read.
func (f *follower) join(ctx context.Context, snap *state.Snapshot, known []followed) {
	for _, m := range everyLoaded(snap) {
		e := followed{state.Copy{Host: m.Host, Model: m.ID}, m.PID, true}
		if pid, there := f.open[e.Copy]; there && pid == m.PID {
			continue
		}
		f.open[e.Copy] = m.PID
		host, path := snap.Hosts[m.Host], logPath(m.ID, f.history && !slices.Contains(known, e))
		f.work.Go(func() {
			e.read = f.follow(ctx, host, m.ID, path)
			select {
			case f.ended <- e:
			case <-ctx.Done():
			}
		})
	}
}

// follow reads one engine's log to its end and reports whether it could.
func (f *follower) follow(ctx context.Context, host *state.HostRecord, model, path string) (read bool) {
	var call relay.Call
	defer context.AfterFunc(ctx, func() { call.Cancel(relay.ErrGone) })()
	resp, err := f.s.dir.Ask(&call, host, path, "", f.id, 0)
	if err != nil {
		return false
	}
	defer resp.Close()
	if resp.Status() != fasthttp.StatusOK {
		return false
	}
	prefix := []byte("[" + model + "] ")
	lines := bufio.NewScanner(resp)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := append(bytes.Join([][]byte{prefix, lines.Bytes()}, nil), '\n')
		select {
		case f.lines <- line:
		case <-ctx.Done():
			return true
		}
	}
	return true
}
