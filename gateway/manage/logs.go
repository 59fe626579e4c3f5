package manage

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"reveille/gateway/api"
	"reveille/gateway/web"
	"reveille/infra/logring"
	"reveille/infra/policy"
	"reveille/infra/relay"
	"reveille/infra/rpc"
	"reveille/infra/state"
)

// maxLog bounds one log in a listing; no further log is added to a listing above it.
const maxLog = 8 << 20

// gatewayLog is the source of this gateway's own log.
const gatewayLog = "gateway"

// logSource is a log of the pool: this gateway's, a runner's or an engine's.
type logSource struct {
	name string            // gateway, "runner HOST" or "MODEL on HOST"
	host *state.HostRecord // where it is read, nil for this gateway
	path string            // of it at the runner
	life string            // another one with each process; an engine's changes once it is loaded
	read bool              // a follower could read it
}

func (l logSource) key() [2]string { return [2]string{l.name, l.life} }

// logSources lists this gateway, the runners that are awake, and the engines of models that are loading or loaded, in
// this order.
func logSources(snap *state.Snapshot) []logSource {
	out := []logSource{{name: gatewayLog}}
	for _, name := range slices.Sorted(maps.Keys(snap.Hosts)) {
		if h := snap.Hosts[name]; h.State == policy.Ready || h.State == policy.Draining {
			out = append(out, logSource{name: "runner " + name, host: h, path: rpc.PathLog, life: h.Fields["boot"]})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(snap.Hosts)) {
		h := snap.Hosts[name]
		for _, id := range slices.Sorted(maps.Keys(h.Models)) {
			life := ""
			if h.Loaded(id) != nil {
				life = strconv.Itoa(h.Models[id].PID)
			} else if h.State == policy.Ready && h.Models[id].State == policy.ModelLoading {
				life = "load " + h.Models[id].Fields["ticket"]
			}
			if life != "" {
				out = append(out, logSource{name: id + " on " + name, host: h, path: rpc.PathLogs + id, life: life})
			}
		}
	}
	return out
}

// requestedLogs are the sources that a request's query wants: the one that it names, or all.
func (s *Service) requestedLogs(r *web.Request, snap *state.Snapshot) ([]logSource, error) {
	all := logSources(snap)
	want := r.Query("source")
	if want == "" {
		return all, nil
	}
	names := make([]string, len(all))
	for i, src := range all {
		if names[i] = src.name; src.name == want {
			return all[i : i+1], nil
		}
	}
	return nil, api.Newf(api.InvalidRequest, "Unknown log. Available: %s.", strings.Join(names, ", ")).WithParam("source")
}

// Logs is GET /logs: the logs of this gateway, the runners and the engines, one after the other. The log of an
// engine that exited less than 15 minutes ago is sent if it is the one that the query names.
func (s *Service) Logs(r *web.Request) error {
	snap, _ := s.registry.Fresh()
	sources, unknown := s.requestedLogs(r, snap)
	if unknown != nil { // the log of an engine that has exited may still be there
		id, host, _ := strings.Cut(r.Query("source"), " on ")
		m, err := s.registry.Named(&r.Key, id)
		if h := snap.Hosts[host]; err == nil && h != nil && h.State == policy.Ready {
			sources = []logSource{{name: m.ID + " on " + host, host: h, path: rpc.PathLogs + m.ID}}
		}
	}
	ctx, stop := r.ClientContext()
	defer stop()
	var out []byte
	for _, src := range sources {
		if len(out) >= maxLog {
			break
		}
		var text []byte
		if src.host == nil {
			for _, l := range s.cfg.Ring.Tail(-1) {
				text = append(append(text, l.Text...), '\n')
			}
		} else if body, err := s.registry.Fetch(ctx, "GET", src.host, src.path, r.ID, maxLog); err == nil {
			text, unknown = body, nil
		} else if errors.Is(err, relay.ErrClientGone) {
			return r.UnlessClientGone(err)
		} else {
			continue // one host that does not respond must not hide the others' logs
		}
		out = append(append(out, "==> "+src.name+" <==\n"...), text...)
	}
	if unknown != nil {
		return unknown
	}
	r.Send(fasthttp.StatusOK, web.TextPlain, out)
	return nil
}

// LogsStreamModel is GET /logs/stream/{id}: LogsStream of the log of one model's engine.
func (s *Service) LogsStreamModel(r *web.Request) error {
	m, err := s.registry.Named(&r.Key, r.Match.ID)
	if err != nil {
		return err
	}
	snap, _ := s.registry.Fresh()
	copies := snap.Copies(m.ID)
	if len(copies) == 0 {
		return api.Newf(api.ModelNotLoaded, "The model '%s' is not loaded.", m.ID)
	}
	return s.streamLogs(r, m.ID+" on "+copies[0].Host)
}

// LogsStream is GET /logs/stream: it follows the logs of this gateway, the runners and the engines, including those
// that start later, or the one that the query names, until the reader leaves. Each line starts with its source.
func (s *Service) LogsStream(r *web.Request) error {
	snap, _ := s.registry.Fresh()
	if _, err := s.requestedLogs(r, snap); err != nil {
		return err
	}
	return s.streamLogs(r, r.Query("source"))
}

func (s *Service) streamLogs(r *web.Request, only string) error {
	if r.Match.Head {
		r.Send(fasthttp.StatusOK, web.TextPlain, nil)
		return nil
	}
	ctx, cancel := context.WithCancel(s.cfg.Lifetime)
	watch := r.Watch(cancel)
	f := &follower{s: s, id: r.ID, key: r.Key.Digest, only: only, lines: make(chan []byte, 64), ended: make(chan logSource)}
	history := !r.QueryFlag("no-history") // the request is recycled before the stream runs
	r.CountResponse(fasthttp.StatusOK)
	r.Ctx.SetStatusCode(fasthttp.StatusOK)
	r.Ctx.SetContentType(web.TextPlain)
	r.Stream(func(w *bufio.Writer) {
		defer watch.Stop()
		defer cancel()
		f.run(ctx, w, history)
	})
	return nil
}

// follower merges logs: one goroutine per source reads, run's writes.
type follower struct {
	s     *Service
	id    string // of the request
	key   [sha256.Size]byte
	only  string // the source that is followed, "" for all
	lines chan []byte
	ended chan logSource // that are not followed any more
	work  sync.WaitGroup
}

// rescanEvery is the pause between two scans for sources that are new, or broke off.
const rescanEvery = time.Second

// run writes lines until ctx ends, the reader is gone or its key is withdrawn, and waits for its goroutines. What starts
// later is followed from its start, and what breaks off is followed again, without the lines that were read.
func (f *follower) run(ctx context.Context, w *bufio.Writer, history bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer f.work.Wait()
	defer cancel()
	look := time.NewTicker(rescanEvery)
	defer look.Stop()
	open, read := map[string]bool{}, map[[2]string]bool{} // the names that are followed; the keys that need no past
	for {
		for _, src := range logSources(f.s.cfg.Mirror.Snapshot()) {
			key := src.key()
			if open[src.name] || f.only != "" && f.only != src.name {
				continue
			}
			open[src.name], read[key] = true, read[key] || !history
			past := !read[key]
			f.work.Go(func() { f.follow(ctx, src, past) })
		}
		history = true
		for waits := true; waits; {
			select {
			case <-ctx.Done():
				return
			case <-look.C:
				if f.s.cfg.Keys.Withdrawn(f.key) {
					return
				}
				waits = false
			case src := <-f.ended:
				delete(open, src.name)
				read[src.key()] = read[src.key()] || src.read
			case line := <-f.lines:
				_, _ = w.Write(line)
				if len(f.lines) == 0 && w.Flush() != nil {
					return
				}
			}
		}
	}
}

// follow reads a log until it ends or breaks off.
func (f *follower) follow(ctx context.Context, src logSource, history bool) {
	if src.host == nil {
		f.followRing(ctx, f.s.cfg.Ring, history)
		return
	}
	src.read = f.followRunner(ctx, src, history)
	select {
	case f.ended <- src:
	case <-ctx.Done():
	}
}

// followRing follows this gateway's log until ctx ends.
func (f *follower) followRing(ctx context.Context, ring *logring.Ring, history bool) {
	past, next, cancel := ring.Subscribe(-1)
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

// followRunner reads a log at a runner to its end and reports whether it could.
func (f *follower) followRunner(ctx context.Context, src logSource, history bool) (read bool) {
	var canceler relay.Canceler
	defer context.AfterFunc(ctx, func() { canceler.Cancel(relay.ErrClientGone) })()
	path := src.path + "?follow=1"
	if !history {
		path += "&no-history=1"
	}
	resp, err := f.s.registry.Ask(&canceler, "GET", src.host, path, f.id, 0)
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
