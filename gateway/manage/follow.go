package manage

import (
	"bufio"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"reveille/gateway/web"
	"reveille/infra/relay"
	"reveille/infra/state"
)

// logsStream follows the logs of this gateway, the runners and the engines, including those that start later, or the one that
// the query names, until the reader leaves. Each line begins with its source.
func (s *Service) logsStream(r *web.Request) error {
	if r.Match.Head {
		r.Send(fasthttp.StatusOK, web.TextPlain, nil)
		return nil
	}
	snap, _ := s.dir.Fresh()
	if _, err := s.wantedLogs(r, snap); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(s.cfg.Life)
	watch := r.Watch(cancel)
	id, only := r.ID, r.Query("source") // the request is recycled before the stream runs
	history := !r.Asks("no-history")
	r.Answered(fasthttp.StatusOK)
	r.Ctx.SetStatusCode(fasthttp.StatusOK)
	r.Ctx.SetContentType(web.TextPlain)
	r.Ctx.Response.ImmediateHeaderFlush = true
	r.Ctx.SetBodyStreamWriter(func(w *bufio.Writer) {
		defer watch.Stop()
		defer cancel()
		f := &follower{s: s, id: id, only: only, history: history, lines: make(chan []byte, 64), ended: make(chan broken), open: map[string]string{}}
		f.run(ctx, w)
	})
	return nil
}

// follower merges logs. run's goroutine owns open and the writer; one goroutine per source reads.
type follower struct {
	s       *Service
	id      string // of the request
	only    string // the source that is followed, "" for all
	history bool   // include earlier lines; what starts later is followed from its start
	lines   chan []byte
	ended   chan broken // the logs that broke off
	work    sync.WaitGroup
	open    map[string]string // the lives of the sources that are followed, to notice a new process
}

// broken is a source whose log broke off.
type broken struct {
	name string
	life string
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
	var off, known []broken // logs that broke off, and those of them that are followed again now
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
				off = append(off, e)
				if again == nil {
					again = time.After(followAgain)
				}
			case <-again:
				again, waiting = nil, false
				known, off = off, nil
				for _, e := range known {
					if f.open[e.name] == e.life {
						delete(f.open, e.name)
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

// join follows the sources that are not yet followed. For those in known, which broke off, it does not repeat lines already
// read.
func (f *follower) join(ctx context.Context, snap *state.Snapshot, known []broken) {
	for _, src := range logSources(snap) {
		if life, there := f.open[src.name]; there && life == src.life || f.only != "" && f.only != src.name {
			continue
		}
		f.open[src.name] = src.life
		e := broken{src.name, src.life, true}
		history := f.history && !slices.Contains(known, e)
		f.work.Go(func() {
			if src.host == nil {
				f.own(ctx, history)
				return
			}
			e.read = f.follow(ctx, src, history)
			select {
			case f.ended <- e:
			case <-ctx.Done():
			}
		})
	}
}

// own follows this gateway's log until ctx ends.
func (f *follower) own(ctx context.Context, history bool) {
	past, next, cancel := f.s.cfg.Ring.Subscribe(-1)
	defer cancel()
	if !history {
		past = nil
	}
	for _, l := range past {
		if !f.line(ctx, gatewayLog, []byte(l.Text)) {
			return
		}
	}
	for {
		select {
		case l := <-next:
			if !f.line(ctx, gatewayLog, []byte(l.Text)) {
				return
			}
		case <-ctx.Done():
			return
		}
	}
}

// follow reads a log at a runner to its end and reports whether it could.
func (f *follower) follow(ctx context.Context, src logSource, history bool) (read bool) {
	var call relay.Call
	defer context.AfterFunc(ctx, func() { call.Cancel(relay.ErrGone) })()
	resp, err := f.s.dir.Ask(&call, src.host, followed(src.path, history), "", f.id, 0)
	if err != nil {
		return false
	}
	defer resp.Close()
	if resp.Status() != fasthttp.StatusOK {
		return false
	}
	lines := bufio.NewScanner(resp)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() && f.line(ctx, src.name, lines.Bytes()) {
	}
	return true
}

// line passes a line on, unless ctx has ended.
func (f *follower) line(ctx context.Context, source string, text []byte) bool {
	line := slices.Concat([]byte("["+source+"] "), text, []byte("\n"))
	select {
	case f.lines <- line:
		return true
	case <-ctx.Done():
		return false
	}
}
