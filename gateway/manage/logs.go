package manage

import (
	"errors"
	"maps"
	"slices"

	"github.com/valyala/fasthttp"

	"reveille/gateway/api"
	"reveille/gateway/models"
	"reveille/gateway/web"
	"reveille/infra/relay"
	"reveille/infra/rpc"
	"reveille/infra/state"
)

// maxLog bounds one engine's log in a listing; no further log is added to a listing above it.
const maxLog = 8 << 20

// logs returns the output of the loaded models' engines, one after the other.
func (s *Service) logs(r *web.Request) error {
	snap, _ := s.dir.Fresh()
	var call relay.Call
	watch := r.Watch(func() { call.Cancel(relay.ErrGone) })
	defer watch.Stop()
	var out []byte
	for _, m := range everyLoaded(snap) {
		if len(out) >= maxLog {
			break
		}
		resp, err := s.dir.Ask(&call, snap.Hosts[m.Host], rpc.PathLogs+m.ID, "", r.ID, models.AskWait)
		if errors.Is(err, relay.ErrGone) {
			return r.UnlessLeft(err)
		}
		if err != nil {
			continue // one host that does not answer must not hide the others' logs
		}
		if resp.Status() == fasthttp.StatusOK {
			if text, err := resp.AppendBody(nil, maxLog); err == nil {
				out = append(append(append(out, "==> "...), m.ID+" on "+m.Host...), " <==\n"...)
				out = append(out, text...)
			}
		}
		_ = resp.Close()
	}
	r.Send(fasthttp.StatusOK, web.TextPlain, out)
	return nil
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

// logsStreamModel follows the log of one model's engine until that ends or the reader leaves.
func (s *Service) logsStreamModel(r *web.Request) error {
	m, err := s.dir.Named(&r.Key, r.Hit.ID)
	if err != nil {
		return err
	}
	snap, _ := s.dir.Fresh()
	copies := snap.Copies(m.ID)
	if len(copies) == 0 {
		return api.Newf(api.ModelNotLoaded, "The model '%s' is not loaded.", m.ID)
	}
	call := new(relay.Call)
	resp, err := s.dir.Ask(call, snap.Hosts[copies[0].Host], logPath(m.ID, !r.Asks("no-history")), "", r.ID, 0)
	if err != nil {
		return err
	}
	if r.Hit.Head || resp.Status() != fasthttp.StatusOK {
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

// logPath returns the runner's path of a log that it follows.
func logPath(model string, history bool) string {
	path := rpc.PathLogs + model + "?follow=1"
	if !history {
		path += "&no-history=1"
	}
	return path
}
