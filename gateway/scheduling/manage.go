package scheduling

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"time"

	"reveille/gateway/api"
	"reveille/infra/policy"
	"reveille/infra/state"
)

// LoadRequest is a management call to load a model with its own options.
type LoadRequest struct {
	Model   string          // canonical id
	Options json.RawMessage // object of load options as in the request; empty for none
	Pinned  *bool           // nil leaves it unchanged
	Wait    bool            // wait until the model is ready; otherwise return when the load is queued
}

// Load makes a separate ticket for the model, on the host that holds it or where it is placed, and waits until the
// model is ready (or queued). Endpoint and info are set if it waited. The load continues when ctx ends or the gate's
// hold is over.
func (g *Gate) Load(ctx context.Context, r LoadRequest) (Endpoint, LoadInfo, error) {
	fields := map[string]string{}
	if len(r.Options) > 0 {
		fields["options"] = string(r.Options)
	}
	if r.Pinned != nil {
		fields["pinned"] = state.FormatBool(*r.Pinned)
	}
	return g.loadExplicitly(ctx, r.Model, fields, r.Wait)
}

// Pull makes a host fetch a model's weights, and waits for the end. It uses the host that has the model or will have
// it, else the one where the model would be placed now. Nothing is loaded or evicted. The pull continues when ctx ends,
// with the error context.Cause(ctx), or when the gate's hold is over, with the error of a wait that timed out.
func (g *Gate) Pull(ctx context.Context, model string) error {
	_, _, err := g.loadExplicitly(ctx, model, map[string]string{"pull_only": "1"}, true)
	return err
}

// loadExplicitly makes a ticket for a management call, and waits for its end, or only until it is queued.
func (g *Gate) loadExplicitly(ctx context.Context, model string, fields map[string]string, wait bool) (Endpoint, LoadInfo, error) {
	if _, ok := g.catalog().Model(model); !ok {
		return Endpoint{}, LoadInfo{}, api.UnknownModel(model)
	}
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return Endpoint{}, LoadInfo{}, api.ShuttingDown()
	}
	gr := g.newGroupLocked(acquisition{model: model, explicit: true, fields: fields})
	w := g.joinLocked(gr, g.cfg.Hold)
	g.mu.Unlock()

	queued := gr.queued
	if wait {
		queued = nil
	}
	select {
	case <-w.Done():
	case <-queued:
		w.Leave(true)
		return Endpoint{}, LoadInfo{}, nil
	case <-ctx.Done():
		w.Leave(true)
	}
	e, info, err := w.Result()
	if errors.Is(err, ErrLeft) {
		err = context.Cause(ctx)
	}
	return e, info, err
}

// UnloadResult is the outcome of one unload.
type UnloadResult struct {
	Host  string
	Model string
	Err   error // nil: unloaded
}

// Unload unloads a model, or all models if model is "", from every host that holds it, and waits until that is done.
// force cuts open requests. The results are ordered by host and model. The error is api.ModelNotLoaded for a model that
// no host holds, state_unavailable, or ctx's. Queued unloads continue after an error.
func (g *Gate) Unload(ctx context.Context, model string, force bool) ([]UnloadResult, error) {
	return g.unload(ctx, "", model, force)
}

// unload is Unload on one host, or on all if host is "".
func (g *Gate) unload(ctx context.Context, host, model string, force bool) ([]UnloadResult, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, g.cfg.Hold, api.New(api.QueueTimeout, "The models are not unloaded yet."))
	defer cancel()
	var s *state.Snapshot
	var err error
	switch {
	case model != "":
		s, err = g.mirror.RefreshHosts(ctx, nil, model)
	case host != "":
		s, err = g.mirror.RefreshHosts(ctx, []string{host})
	default:
		s, err = g.mirror.Refresh(ctx)
	}
	if err != nil {
		return nil, unavailable(err)
	}
	var out []UnloadResult
	var done []chan state.TicketRecord
	for _, p := range unloadableCopies(s, model) {
		if host != "" && p.Host != host {
			continue
		}
		ticket, w, err := g.queueUnload(ctx, p, force)
		if err != nil {
			return out, err
		}
		if w == nil {
			continue // already unloaded
		}
		defer g.unwatch(ticket)
		out, done = append(out, UnloadResult{Host: p.Host, Model: p.Model}), append(done, w)
	}
	if len(out) == 0 && model != "" {
		return nil, api.Newf(api.ModelNotLoaded, "The model '%s' is not loaded.", model)
	}
	for i := range out {
		select {
		case r := <-done[i]:
			if r.State == state.TicketFailed && r.Code != api.ModelNotLoaded.Code() {
				out[i].Err = failure(r, true)
			}
		case <-ctx.Done():
			return out, context.Cause(ctx)
		}
	}
	return out, nil
}

// unloadableCopies lists the copies of the model, or of every model for "", that a ready host can unload: those that are
// loaded, loading or retired there.
func unloadableCopies(s *state.Snapshot, model string) []state.CopyID {
	var out []state.CopyID
	for _, host := range slices.Sorted(maps.Keys(s.Hosts)) {
		h := s.Hosts[host]
		if h.State != policy.Ready {
			continue
		}
		for _, id := range slices.Sorted(maps.Keys(h.Models)) {
			m := h.Models[id]
			p := state.CopyID{Host: host, Model: cmp.Or(m.Retired, id)}
			if (model == "" || p.Model == model) && (m.State == policy.ModelLoaded || m.State == policy.ModelLoading || m.Retired != "") && !slices.Contains(out, p) {
				out = append(out, p)
			}
		}
	}
	return out
}

// queueUnload makes the ticket that unloads a model on a host; a nil channel means that the host no longer holds it.
func (g *Gate) queueUnload(ctx context.Context, p state.CopyID, force bool) (ticket string, done chan state.TicketRecord, err error) {
	g.mu.Lock()
	a := acquisition{model: p.Model, explicit: true, id: g.nextOperationLocked()}
	g.mu.Unlock()
	if force {
		a.fields = map[string]string{"force": "1"}
	}
	for s := g.mirror.Snapshot(); ; {
		if !slices.Contains(unloadableCopies(s, p.Model), p) {
			return "", nil, nil
		}
		want := a.acquireRequest(g.id, p.Host, s.RevisionOf(p.Host, ""), false)
		want.Unload = true
		got, err := g.store.Acquire(ctx, want)
		v := a.onAcquired(time.Now(), got, err)
		switch v.do {
		case actionWait:
			return a.ticket, g.watch(a.ticket), nil
		case actionFinish:
			return "", nil, v.err
		}
		if err := pause(ctx, jitter(max(time.Until(v.at), time.Millisecond))); err != nil {
			return "", nil, err
		}
		if s, err = g.mirror.RefreshHosts(ctx, []string{p.Host}); err != nil {
			return "", nil, unavailable(err)
		}
	}
}

// watch delivers a ticket's outcome once. If it ended before the call, the next renewal finds its outcome.
func (g *Gate) watch(ticket string) chan state.TicketRecord {
	c := make(chan state.TicketRecord, 1)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.watches[ticket] = c
	return c
}

func (g *Gate) unwatch(ticket string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.watches, ticket)
}
