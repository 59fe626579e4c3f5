package manage

import (
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/valyala/fasthttp"

	"reveille/gateway/api"
	"reveille/gateway/models"
	"reveille/gateway/web"
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
	e := api.Newf(api.InvalidRequest, "There is no such log now. There are: %s.", strings.Join(names, ", "))
	e.Param = "source"
	return nil, e
}

// logs returns the logs of this gateway, the runners and the loaded models' engines, one after the other.
func (s *Service) logs(r *web.Request) error {
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
		heading := "==> " + src.name + " <==\n"
		if src.host == nil {
			out = append(out, heading...)
			for _, l := range s.cfg.Ring.Tail(-1) {
				out = append(append(out, l.Text...), '\n')
			}
			continue
		}
		resp, err := s.dir.Ask(&call, src.host, src.path, "", r.ID, models.AskWait)
		if errors.Is(err, relay.ErrGone) {
			return r.UnlessLeft(err)
		}
		if err != nil {
			continue // one host that does not answer must not hide the others' logs
		}
		if resp.Status() == fasthttp.StatusOK {
			if text, err := resp.AppendBody(nil, maxLog); err == nil {
				out = append(append(out, heading...), text...)
			}
		}
		_ = resp.Close()
	}
	r.Send(fasthttp.StatusOK, web.TextPlain, out)
	return nil
}

// logsStreamModel follows the log of one model's engine until that ends or the reader leaves.
func (s *Service) logsStreamModel(r *web.Request) error {
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
	resp, err := s.dir.Ask(call, snap.Hosts[copies[0].Host], followed(rpc.PathLogs+m.ID, !r.Asks("no-history")), "", r.ID, 0)
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
