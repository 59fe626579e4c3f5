package manage

import (
	"bufio"
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"reveille/gateway/api"
	"reveille/gateway/models"
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
	life string            // another one with each process
}

// logSources lists this gateway, the runners that are awake, and the engines of loaded models, in this order.
func logSources(snap *state.Snapshot) []logSource {
	out := []logSource{{name: gatewayLog}}
	for _, name := range slices.Sorted(maps.Keys(snap.Hosts)) {
		if h := snap.Hosts[name]; h.State == policy.Ready || h.State == policy.Draining {
			out = append(out, logSource{"runner " + name, h, rpc.PathLog, h.Fields["boot"]})
		}
	}
	for _, m := range everyLoaded(snap) {
		out = append(out, logSource{m.ID + " on " + m.Host, snap.Hosts[m.Host], rpc.PathLogs + m.ID, strconv.Itoa(m.PID)})
	}
	return out
}

// everyLoaded lists the loaded copies by host and name.
func everyLoaded(snap *state.Snapshot) []*state.ModelRecord {
	var out []*state.ModelRecord
	for _, host := range slices.Sorted(maps.Keys(snap.Hosts)) {
		h := snap.Hosts[host]
		for _, id := range slices.Sorted(maps.Keys(h.Models)) {
			if m := h.Loaded(id); m != nil {
				out = append(out, m)
			}
		}
	}
	return out
}

// wantedLogs are the sources that a request's query wants: the one that it names, or all.
func (s *Service) wantedLogs(r *web.Request, snap *state.Snapshot) ([]logSource, error) {
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
	return nil, api.Newf(api.InvalidRequest, "There is no such log now. There are: %s.", strings.Join(names, ", ")).WithParam("source")
}

// Logs is GET /logs: the logs of this gateway, the runners and the loaded models' engines, one after the other.
func (s *Service) Logs(r *web.Request) error {
	snap, _ := s.dir.Fresh()
	sources, err := s.wantedLogs(r, snap)
	if err != nil {
		return err
	}
	var call relay.Call
	watch := r.Watch(func() { call.Cancel(relay.ErrGone) })
	defer watch.Stop()
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
		} else if text, err = s.answerOf(&call, "GET", src.host, src.path, r.ID, maxLog); errors.Is(err, relay.ErrGone) {
			return r.UnlessLeft(err)
		} else if err != nil {
			continue // one host that does not answer must not hide the others' logs
		}
		out = append(append(out, "==> "+src.name+" <==\n"...), text...)
	}
	r.Send(fasthttp.StatusOK, web.TextPlain, out)
	return nil
}

// LogsStreamModel is GET /logs/stream/{id}: it follows the log of one model's engine until that ends or the reader leaves.
func (s *Service) LogsStreamModel(r *web.Request) error {
	m, err := s.dir.Named(&r.Key, r.Match.ID)
	if err != nil {
		return err
	}
	snap, _ := s.dir.Fresh()
	copies := snap.Copies(m.ID)
	if len(copies) == 0 {
		return api.Newf(api.ModelNotLoaded, "The model '%s' is not loaded.", m.ID)
	}
	call := new(relay.Call)
	resp, err := s.dir.Ask(call, "GET", snap.Hosts[copies[0].Host], followed(rpc.PathLogs+m.ID, !r.Asks("no-history")), r.ID, 0)
	if err != nil {
		return err
	}
	if r.Match.Head || resp.Status() != fasthttp.StatusOK {
		status := resp.Status()
		_ = resp.Close()
		if status != fasthttp.StatusOK {
			return api.Newf(api.ModelNotLoaded, "The model '%s' is not loaded.", m.ID)
		}
		r.Send(fasthttp.StatusOK, web.TextPlain, nil)
		return nil
	}
	watch := r.Watch(func() { call.Cancel(relay.ErrGone) })
	resp.OnEnd = func(error) { watch.Stop() }
	r.Answered(fasthttp.StatusOK)
	resp.SendTo(r.Ctx)
	r.Ctx.SetContentType(web.TextPlain)
	return nil
}

// followed returns the runner's path of a log that it follows.
func followed(path string, history bool) string {
	path += "?follow=1"
	if !history {
		path += "&no-history=1"
	}
	return path
}

// LogsStream is GET /logs/stream: it follows the logs of this gateway, the runners and the engines, including those that
// start later, or the one that the query names, until the reader leaves. Each line begins with its source.
func (s *Service) LogsStream(r *web.Request) error {
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
	f := &follower{ // the request is recycled before the stream runs
		s: s, id: r.ID, only: r.Query("source"), history: !r.Asks("no-history"), lines: make(chan []byte, 64), ended: make(chan brokenLog),
		open: map[string]string{}, read: map[string]string{},
	}
	r.Answered(fasthttp.StatusOK)
	r.Ctx.SetStatusCode(fasthttp.StatusOK)
	r.Ctx.SetContentType(web.TextPlain)
	r.Ctx.Response.ImmediateHeaderFlush = true
	r.Ctx.SetBodyStreamWriter(func(w *bufio.Writer) {
		defer watch.Stop()
		defer cancel()
		f.run(ctx, w)
	})
	return nil
}

// follower merges logs. run's goroutine owns open, read and the writer; one goroutine per source reads.
type follower struct {
	s       *Service
	id      string // of the request
	only    string // the source that is followed, "" for all
	history bool   // include earlier lines; what starts later is followed from its start
	lines   chan []byte
	ended   chan brokenLog
	work    sync.WaitGroup
	open    map[string]string // the life of each source that is followed, to notice a new process
	read    map[string]string // the same of those whose history is not to be repeated
}

// brokenLog is a log that broke off.
type brokenLog struct {
	name, life string
	read       bool // some of it was read
}

// followAgain is the pause before a log that broke off is followed again.
const followAgain = time.Second

// run writes lines until ctx ends or the reader is gone, and waits for its goroutines.
func (f *follower) run(ctx context.Context, w *bufio.Writer) {
	ctx, cancel := context.WithCancel(ctx)
	defer f.work.Wait()
	defer cancel()
	mirror := f.s.cfg.Mirror
	changed := mirror.Changed()
	again := time.NewTicker(followAgain)
	defer again.Stop()
	var off []brokenLog
	f.join(ctx)
	f.history = true
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
			changed = mirror.Changed()
			f.join(ctx)
		case e := <-f.ended:
			off = append(off, e)
		case <-again.C:
			for _, e := range off {
				if f.open[e.name] != e.life {
					continue
				}
				delete(f.open, e.name)
				if e.read {
					f.read[e.name] = e.life
				}
			}
			off = nil
			f.join(ctx)
		case line := <-f.lines:
			_, _ = w.Write(line)
			if len(f.lines) == 0 && w.Flush() != nil {
				return
			}
		}
	}
}

// join follows the sources that are not yet followed. Of those that broke off, it does not repeat lines already read.
func (f *follower) join(ctx context.Context) {
	for _, src := range logSources(f.s.cfg.Mirror.Snapshot()) {
		if life, there := f.open[src.name]; there && life == src.life || f.only != "" && f.only != src.name {
			continue
		}
		f.open[src.name] = src.life
		life, known := f.read[src.name]
		history := f.history && !(known && life == src.life)
		f.work.Go(func() {
			if src.host == nil {
				f.followRing(ctx, f.s.cfg.Ring, history)
				return
			}
			select {
			case f.ended <- brokenLog{src.name, src.life, f.followRunner(ctx, src, history)}:
			case <-ctx.Done():
			}
		})
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
	var call relay.Call
	defer context.AfterFunc(ctx, func() { call.Cancel(relay.ErrGone) })()
	resp, err := f.s.dir.Ask(&call, "GET", src.host, followed(src.path, history), f.id, 0)
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

var errRefused = errors.New("the host refused")

// answerOf makes a call to a host and returns its response, which may have at most max bytes.
func (s *Service) answerOf(call *relay.Call, method string, h *state.HostRecord, path, id string, max int) ([]byte, error) {
	resp, err := s.dir.Ask(call, method, h, path, id, models.AskWait)
	if err != nil {
		return nil, err
	}
	defer resp.Close()
	if resp.Status() != fasthttp.StatusOK {
		return nil, errRefused
	}
	return resp.AppendBody(nil, max)
}
