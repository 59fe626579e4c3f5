package front

import (
	"bufio"
	"bytes"
	"context"
	"sync"

	"github.com/valyala/fasthttp"

	"reveille/infra/relay"
	"reveille/infra/state"
)

// logsStream follows the logs of all engines, those that start later included, until the reader leaves. Each line is
// led by its model.
func (s *Server) logsStream(r *request) error {
	if r.hit.Head {
		r.send(fasthttp.StatusOK, textPlain, nil)
		return nil
	}
	ctx, cancel := context.WithCancel(s.life)
	watch := s.watcher.Arm(r.ctx.Conn(), cancel)
	asker := &request{s: s, id: r.id} // the request itself is void when the stream runs
	_, _ = s.look()
	history := !r.asks("no-history")
	s.m.answer(r.routeName(), fasthttp.StatusOK)
	r.ctx.SetStatusCode(fasthttp.StatusOK)
	r.ctx.SetContentType(textPlain)
	r.ctx.Response.ImmediateHeaderFlush = true
	r.ctx.SetBodyStreamWriter(func(w *bufio.Writer) {
		defer watch.Stop()
		defer cancel()
		f := &follower{asker: asker, history: history, lines: make(chan []byte, 64), open: map[copyKey]int{}}
		f.run(ctx, w)
	})
	return nil
}

// follower joins the logs of engines into one. run's goroutine owns open and the writer; one goroutine a copy reads.
type follower struct {
	asker   *request
	history bool // begin with what was written before; engines that start later are told from their start
	lines   chan []byte
	work    sync.WaitGroup
	open    map[copyKey]int // process ids of those that are followed, so that a new engine is followed anew
}

// run writes lines until ctx ends or the reader is gone, and waits for its goroutines.
func (f *follower) run(ctx context.Context, w *bufio.Writer) {
	ctx, cancel := context.WithCancel(ctx)
	defer f.work.Wait()
	defer cancel()
	mirror := f.asker.s.cfg.Mirror
	for changed := mirror.Changed(); ; {
		f.join(ctx, mirror.Snapshot())
		f.history = true
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				return
			case <-changed:
				changed, waiting = mirror.Changed(), false
			case line := <-f.lines:
				_, _ = w.Write(line)
				if len(f.lines) == 0 && w.Flush() != nil {
					return
				}
			}
		}
	}
}

// join follows the engines that are not followed yet.
func (f *follower) join(ctx context.Context, snap *state.Snapshot) {
	for _, m := range everyLoaded(snap) {
		key := copyKey{m.Host, m.ID}
		if pid, there := f.open[key]; there && pid == m.PID {
			continue
		}
		f.open[key] = m.PID
		host, path := snap.Hosts[m.Host], logPath(m.ID, f.history)
		f.work.Go(func() { f.follow(ctx, host, m.ID, path) })
	}
}

// follow reads one engine's log to its end.
func (f *follower) follow(ctx context.Context, host *state.HostRecord, model, path string) {
	var call relay.Call
	defer context.AfterFunc(ctx, func() { call.Cancel(relay.ErrGone) })()
	resp, err := f.asker.ask(&call, host, path, "")
	if err != nil {
		return
	}
	defer resp.Close()
	if resp.Status() != fasthttp.StatusOK {
		return
	}
	prefix := []byte("[" + model + "] ")
	lines := bufio.NewScanner(resp)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := append(bytes.Join([][]byte{prefix, lines.Bytes()}, nil), '\n')
		select {
		case f.lines <- line:
		case <-ctx.Done():
			return
		}
	}
}
