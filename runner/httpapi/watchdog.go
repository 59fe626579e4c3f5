package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"time"

	"reveille/infra/policy"
	"reveille/infra/relay"
	"reveille/infra/rpc"
	"reveille/runner/batch"
	"reveille/runner/host"
)

const (
	maxBad    = 3           // bad answers after which an engine is restarted
	badWithin = time.Minute // within this time
	sameReply = time.Second // bad answers so close together come from one batch and count once

	minProbe  = 2 * time.Second  // a probe may take this long, or as long as a first byte
	maxProbe  = 1 << 20          // bytes of its answer
	killLimit = 30 * time.Second // for an engine to be gone
)

// watchdog finds engines that run but do not serve. It restarts an engine that sends bad answers, once its open requests are
// done, and probes one that falls silent: if it does not even answer a minimal request, it is ended at once. The next request
// for the model loads it again.
type watchdog struct {
	host  *host.Host
	log   *slog.Logger
	m     *meters
	limit time.Duration // of a probe

	life context.Context // of probes
	end  context.CancelFunc
	work sync.WaitGroup // probes

	mu      sync.Mutex
	closed  bool
	bad     map[host.Engine][]time.Time // of the last badWithin
	probing map[host.Engine]struct{}
	loads   map[host.Engine]load          // of engines that have a loop
	watched map[host.Engine]struct{}      // engines whose loop is checked at intervals
	checks  map[host.Engine]chan struct{} // in progress; closed at the end
}

func newWatchdog(h *host.Host, log *slog.Logger, m *meters, firstByte time.Duration) *watchdog {
	w := &watchdog{
		host: h, log: log, m: m, limit: max(firstByte, minProbe),
		bad: map[host.Engine][]time.Time{}, probing: map[host.Engine]struct{}{},
		loads: map[host.Engine]load{}, watched: map[host.Engine]struct{}{}, checks: map[host.Engine]chan struct{}{},
	}
	w.life, w.end = context.WithCancel(context.Background())
	return w
}

// close ends the probes and waits for them.
func (w *watchdog) close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.end()
	w.work.Wait()
}

// observe processes the end of an exchange with an engine. It does not block.
func (w *watchdog) observe(p *host.Ref, err error) {
	if err == nil {
		return
	}
	own, batched := errors.AsType[*batch.Error](err)
	bad := errors.Is(err, relay.ErrBadReply)
	batched = batched && !bad && own.Code == rpc.CodeBadEngineReply
	switch {
	case bad, batched:
		if w.badReply(p.Engine, time.Now(), batched) {
			w.log.Error("engine sends invalid answers, restarting it", "model", p.Model.ID, "error", err)
			w.m.nonsense.Inc()
			w.host.UnloadSuspect(p.Model.ID, p.Engine, "engine talks nonsense")
		}
	case errors.Is(err, relay.ErrTimeout):
		w.suspect(p)
	}
}

// badReply records a bad answer and reports whether the engine has given too many. Each request of a batch may report the same
// answer.
func (w *watchdog) badReply(e host.Engine, now time.Time, shared bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for e, times := range w.bad {
		if now.Sub(times[len(times)-1]) >= badWithin {
			delete(w.bad, e)
		}
	}
	times := w.bad[e]
	if n := len(times); shared && n > 0 && now.Sub(times[n-1]) < sameReply {
		return false
	}
	times = append(times, now)
	for now.Sub(times[0]) >= badWithin {
		times = times[1:]
	}
	w.bad[e] = times
	if len(times) < maxBad {
		return false
	}
	delete(w.bad, e)
	return true
}

// suspect probes an engine that did not answer in time, unless a probe is in progress.
func (w *watchdog) suspect(p *host.Ref) {
	path, body := probe(p.Model.Type, p.Model.ID)
	if path == "" {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, already := w.probing[p.Engine]; already || w.closed {
		return
	}
	w.probing[p.Engine] = struct{}{}
	w.work.Go(func() {
		w.examine(p, path, body)
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.probing, p.Engine)
	})
}

// probe is a minimal request for an engine of a type, "" if every request is expensive.
func probe(t policy.Type, model string) (path string, body []byte) {
	var q map[string]any
	switch t {
	case policy.LLM:
		path, q = "/v1/completions", map[string]any{"prompt": ".", "max_tokens": 1, "temperature": 0} // without a template, which could refuse it
	case policy.Embedding:
		path, q = "/v1/embeddings", map[string]any{"input": "."}
	case policy.Reranking:
		path, q = "/v1/rerank", map[string]any{"query": ".", "documents": []string{"."}}
	default:
		return "", nil
	}
	q["model"] = model
	body, _ = json.Marshal(q) // texts and numbers always marshal
	return path, body
}

// examine ends an engine that does not answer a probe, unless it answers others meanwhile: then it is only busy.
func (w *watchdog) examine(p *host.Ref, path string, body []byte) {
	heard := p.Engine.Client().Heard()
	_, err := w.ask(p.Engine, "POST", path, body, w.limit)
	switch {
	case err == nil, w.life.Err() != nil:
		return
	case !errors.Is(err, errProbe) && p.Engine.Client().Heard() != heard:
		w.log.Warn("engine missed a probe but answers other requests", "model", p.Model.ID, "error", err)
		return
	}
	w.endSilent(p.Model.ID, p.Engine, err)
}

// endSilent ends an engine that does not serve. Its host and its requests see a crash.
func (w *watchdog) endSilent(model string, e host.Engine, cause error) {
	select {
	case <-e.Done():
		return
	default:
	}
	w.log.Error("engine does not respond, killing it", "model", model, "error", cause)
	w.m.silent.Inc()
	ctx, cancel := context.WithTimeout(context.Background(), killLimit)
	defer cancel()
	end := e.Stop
	if k, ok := e.(interface{ Kill(context.Context) error }); ok {
		end = k.Kill // it would not react to SIGTERM
	}
	if err := end(ctx); err != nil {
		w.log.Error("engine does not end", "model", model, "error", err)
	}
}

// errProbe means that the engine answered a probe with an error of its own.
var errProbe = errors.New("the probe failed in the engine")

// ask sends one request and waits until the limit for an answer. Any answer except an engine failure will do. A body that is
// cut or longer than maxProbe is not returned.
func (w *watchdog) ask(e host.Engine, method, path string, body []byte, limit time.Duration) (answer []byte, err error) {
	var call relay.Call
	defer context.AfterFunc(w.life, func() { call.Cancel(nil) })()
	req := &relay.Request{Method: method, Path: []byte(path), Body: body, FirstByte: limit, Silence: limit, Probe: true}
	if body != nil {
		req.Add("Content-Type", []byte("application/json"))
	}
	if key := e.APIKey(); key != "" {
		req.Add("Authorization", []byte("Bearer "+key))
	}
	resp, err := e.Client().Do(&call, req)
	if err != nil {
		return nil, err
	}
	defer resp.Close()
	if resp.Status() == 500 {
		return nil, errProbe
	}
	if answer, err = resp.AppendBody(nil, maxProbe); err != nil {
		return nil, nil
	}
	return answer, nil
}
