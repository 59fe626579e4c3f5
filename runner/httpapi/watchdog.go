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
	healthEvery = 10 * time.Second // between checks of a busy engine's loop

	maxBad    = 3           // bad answers after which an engine is restarted
	badWithin = time.Minute // within this time
	sameReply = time.Second // bad answers so close together come from one batch and count once

	minProbe  = 2 * time.Second  // a probe may take this long, or as long as a first byte
	maxProbe  = 4 << 20          // bytes of its answer
	killLimit = 30 * time.Second // for an engine to be gone
)

// watchdog ends engines that run but do not serve; the next request for the model loads it again. While an engine has
// requests, its main loop must answer every healthEvery. One that missed a request's limit must answer a minimal
// request. One that sends bad answers is restarted when its open requests are done.
type watchdog struct {
	host  *host.Host
	log   *slog.Logger
	m     *meters
	limit time.Duration // for a first byte

	life context.Context
	end  context.CancelFunc
	work sync.WaitGroup

	mu      sync.Mutex
	engines map[host.Engine]*watched // those that have had a request
}

// watched is what is known of an engine.
type watched struct {
	open    int  // requests
	probing bool // a probe is in progress
	bad     []time.Time
}

func newWatchdog(h *host.Host, log *slog.Logger, m *meters, firstByte time.Duration) *watchdog {
	w := &watchdog{host: h, log: log, m: m, limit: max(firstByte, minProbe), engines: map[host.Engine]*watched{}}
	w.life, w.end = context.WithCancel(context.Background())
	return w
}

// close ends all checks and waits for them.
func (w *watchdog) close() {
	w.mu.Lock()
	w.end()
	w.mu.Unlock()
	w.work.Wait()
}

// began records a request to an engine, and watches the engine from its first one on.
func (w *watchdog) began(p *host.Ref) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.engines[p.Engine]
	if e == nil && w.life.Err() == nil {
		e = &watched{}
		w.engines[p.Engine] = e
		w.work.Go(func() { w.watch(p, e) })
	}
	if e != nil {
		e.open++
	}
}

// watch checks an engine's loop at intervals, until the engine ends. An iteration of the loop reads at most one batch of
// prompts, but an encoder without a GPU may take minutes for the images of one.
func (w *watchdog) watch(p *host.Ref, e *watched) {
	path, limit := "", 2*w.limit
	if l, ok := p.Engine.(interface{ LoopPath() string }); ok {
		path = l.LoopPath()
	}
	if p.Model.MMProj != "" {
		limit = LongAnswer * w.limit
	}
	tick := time.NewTicker(min(healthEvery, w.limit))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-w.life.Done():
			return
		case <-p.Engine.Done():
			w.mu.Lock()
			delete(w.engines, p.Engine)
			w.mu.Unlock()
			return
		}
		w.mu.Lock()
		busy := e.open > 0
		w.mu.Unlock()
		if busy && path != "" {
			if err := w.ask(p.Engine, "GET", path, nil, limit); errors.Is(err, relay.ErrTimeout) {
				w.kill(p, err)
			}
		}
	}
}

// ended undoes began and processes the outcome. It does not block.
func (w *watchdog) ended(p *host.Ref, err error) {
	own, batched := errors.AsType[*batch.Error](err)
	bad := errors.Is(err, relay.ErrBadReply) || batched && own.Code == rpc.CodeBadEngineReply
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.engines[p.Engine]
	if e == nil {
		return
	}
	e.open--
	if bad && e.tooManyBad(time.Now()) {
		w.log.Error("engine sends invalid answers, restarting it", "model", p.Model.ID, "error", err)
		w.m.nonsense.Inc()
		w.host.UnloadSuspect(p.Model.ID, p.Engine, "invalid responses from the engine")
	}
	if !errors.Is(err, relay.ErrTimeout) {
		return
	}
	path, body := probe(p.Model.Type, p.Model.ID)
	if path == "" || e.probing || w.life.Err() != nil {
		return
	}
	e.probing = true
	w.work.Go(func() {
		w.examine(p, path, body)
		w.mu.Lock()
		e.probing = false
		w.mu.Unlock()
	})
}

// tooManyBad records a bad answer and reports whether the engine has given too many.
func (e *watched) tooManyBad(now time.Time) bool {
	if n := len(e.bad); n > 0 && now.Sub(e.bad[n-1]) < sameReply {
		return false
	}
	e.bad = append(e.bad, now)
	for now.Sub(e.bad[0]) >= badWithin {
		e.bad = e.bad[1:]
	}
	if len(e.bad) < maxBad {
		return false
	}
	e.bad = nil
	return true
}

// probe is a minimal request for an engine of a type, "" if every request is expensive.
func probe(t policy.Type, model string) (path string, body []byte) {
	var q map[string]any
	switch t {
	case policy.LLM: // without a template, which could refuse it
		path, q = "/v1/completions", map[string]any{"prompt": ".", "max_tokens": 1, "temperature": 0}
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

// examine kills an engine that does not answer a probe, unless it answers others meanwhile: then it is only busy.
func (w *watchdog) examine(p *host.Ref, path string, body []byte) {
	before := p.Engine.Client().Heard()
	err := w.ask(p.Engine, "POST", path, body, w.limit)
	switch {
	case err == nil, w.life.Err() != nil:
	case !errors.Is(err, errProbe) && p.Engine.Client().Heard() != before:
		w.log.Warn("engine missed a probe but answers other requests", "model", p.Model.ID, "error", err)
	default:
		w.kill(p, err)
	}
}

// kill ends an engine that does not serve. Its host and its requests see a crash.
func (w *watchdog) kill(p *host.Ref, cause error) {
	select {
	case <-p.Engine.Done():
		return
	default:
	}
	w.log.Error("engine does not respond, killing it", "model", p.Model.ID, "error", cause)
	w.m.silent.Inc()
	ctx, cancel := context.WithTimeout(context.Background(), killLimit)
	defer cancel()
	end := p.Engine.Stop
	if k, ok := p.Engine.(interface{ Kill(context.Context) error }); ok {
		end = k.Kill // it would not react to SIGTERM
	}
	if err := end(ctx); err != nil {
		w.log.Error("engine does not end", "model", p.Model.ID, "error", err)
	}
}

// errProbe means that the engine answered a probe with an error of its own.
var errProbe = errors.New("the probe failed in the engine")

// ask sends one request and waits until the limit for an answer. Any except an engine's failure will do.
func (w *watchdog) ask(e host.Engine, method, path string, body []byte, limit time.Duration) error {
	req := &relay.Request{Method: method, Path: []byte(path), Body: body, FirstByte: limit, Silence: limit, Probe: true}
	status, _, err := e.Client().Fetch(w.life, req, e.APIKey(), nil, maxProbe)
	if status == 500 {
		return errProbe
	}
	return err
}
