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
	healthInterval = 10 * time.Second // between checks of a busy engine's loop

	maxBadReplies  = 3           // bad responses after which an engine is restarted
	badReplyWindow = time.Minute // bad responses count that came within this time
	badReplyGap    = time.Second // bad responses closer together come from one batch and count once

	minProbeTimeout  = 2 * time.Second  // the timeout of a probe if the first-byte timeout is shorter
	maxProbeResponse = 4 << 20          // bytes that the response to a probe may have
	killLimit        = 30 * time.Second // how long an engine may take to exit
)

// watchdog ends engines that run but do not serve; the next request for the model loads it again. While an engine has
// requests, its main loop must respond every healthInterval. An engine that missed a request's timeout must respond to
// a minimal request. An engine that sends bad responses is restarted when its open requests are done.
type watchdog struct {
	host  *host.Host
	log   *slog.Logger
	m     *meters
	limit time.Duration // the timeout for the first byte of a response

	life context.Context
	end  context.CancelFunc
	work sync.WaitGroup

	mu      sync.Mutex
	engines map[host.Engine]*watched // those that have had a request
}

// watched is the watchdog's record of an engine.
type watched struct {
	open    int  // requests
	probing bool // a probe is in progress
	bad     []time.Time
}

func newWatchdog(h *host.Host, log *slog.Logger, m *meters, firstByte time.Duration) *watchdog {
	w := &watchdog{host: h, log: log, m: m, limit: max(firstByte, minProbeTimeout), engines: map[host.Engine]*watched{}}
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

// requestStarted counts a request to an engine, and starts watching the engine at its first request.
func (w *watchdog) requestStarted(p *host.Ref) {
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

// watch checks an engine's loop at intervals, until the engine ends. An iteration of the loop reads at most one batch
// of prompts, but an encoder without a GPU can take minutes for the images of a batch.
func (w *watchdog) watch(p *host.Ref, e *watched) {
	path, limit := p.Engine.Features().LoopPath, 2*w.limit
	if p.Model.MMProj != "" {
		limit = WholeResponseFactor * w.limit
	}
	tick := time.NewTicker(min(healthInterval, w.limit))
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
			if err := w.roundTrip(p.Engine, "GET", path, nil, limit); errors.Is(err, relay.ErrTimeout) {
				w.kill(p, err)
			}
		}
	}
}

// requestEnded undoes requestStarted and evaluates the outcome. It does not block.
func (w *watchdog) requestEnded(p *host.Ref, err error) {
	batchErr, batched := errors.AsType[*batch.Error](err)
	bad := errors.Is(err, relay.ErrInvalidResponse) || batched && batchErr.Code == rpc.CodeBadEngineReply
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.engines[p.Engine]
	if e == nil {
		return
	}
	e.open--
	if bad && e.recordBad(time.Now()) {
		w.log.Error("engine sends invalid responses, restarting it", "model", p.Model.ID, "error", err)
		w.m.badReplyRestarts.Inc()
		w.host.UnloadSuspect(p.Model.ID, p.Engine, "invalid responses from the engine")
	}
	if !errors.Is(err, relay.ErrTimeout) {
		return
	}
	path, body := probeRequest(p.Model.Type, p.Model.ID)
	if path == "" || e.probing || w.life.Err() != nil {
		return
	}
	e.probing = true
	w.work.Go(func() {
		w.probeEngine(p, path, body)
		w.mu.Lock()
		e.probing = false
		w.mu.Unlock()
	})
}

// recordBad records a bad response and reports whether the engine has sent too many.
func (e *watched) recordBad(now time.Time) bool {
	if n := len(e.bad); n > 0 && now.Sub(e.bad[n-1]) < badReplyGap {
		return false
	}
	e.bad = append(e.bad, now)
	for now.Sub(e.bad[0]) >= badReplyWindow {
		e.bad = e.bad[1:]
	}
	if len(e.bad) < maxBadReplies {
		return false
	}
	e.bad = nil
	return true
}

// probeRequest returns a minimal request for an engine of a type, "" if every request is expensive.
func probeRequest(t policy.Type, model string) (path string, body []byte) {
	var q map[string]any
	switch t {
	case policy.LLM: // /v1/completions uses no template, which could refuse the request
		path, q = "/v1/completions", map[string]any{"prompt": ".", "max_tokens": 1, "temperature": 0}
	case policy.Embedding:
		path, q = "/v1/embeddings", map[string]any{"input": "."}
	case policy.Reranking:
		path, q = "/v1/rerank", map[string]any{"query": ".", "documents": []string{"."}}
	default:
		return "", nil
	}
	q["model"] = model
	body, _ = json.Marshal(q) // strings and numbers always marshal
	return path, body
}

// probeEngine kills an engine that does not respond to a probe, unless it responds to other requests meanwhile and is
// only busy.
func (w *watchdog) probeEngine(p *host.Ref, path string, body []byte) {
	before := p.Engine.Client().BytesRead()
	err := w.roundTrip(p.Engine, "POST", path, body, w.limit)
	switch {
	case err == nil, w.life.Err() != nil:
	case !errors.Is(err, errProbe) && p.Engine.Client().BytesRead() != before:
		w.log.Warn("engine missed a probe but responds to other requests", "model", p.Model.ID, "error", err)
	default:
		w.kill(p, err)
	}
}

// kill ends an engine that does not serve. For its host and its requests that is a crash.
func (w *watchdog) kill(p *host.Ref, cause error) {
	select {
	case <-p.Engine.Done():
		return
	default:
	}
	w.log.Error("engine does not respond, killing it", "model", p.Model.ID, "error", cause)
	w.m.noAnswerRestarts.Inc()
	ctx, cancel := context.WithTimeout(context.Background(), killLimit)
	defer cancel()
	if err := p.Engine.Kill(ctx); err != nil { // it would not react to SIGTERM
		w.log.Error("engine does not exit", "model", p.Model.ID, "error", err)
	}
}

// errProbe means that the engine responded to a probe with an error.
var errProbe = errors.New("the probe failed in the engine")

// roundTrip sends one request and waits for a response within limit. It accepts every status except an engine's
// failure.
func (w *watchdog) roundTrip(e host.Engine, method, path string, body []byte, limit time.Duration) error {
	req := &relay.Request{Method: method, Path: []byte(path), Body: body, FirstByte: limit, Silence: limit, Probe: true}
	status, _, err := e.Client().Fetch(w.life, req, e.APIKey(), nil, maxProbeResponse)
	if status == 500 {
		return errProbe
	}
	return err
}
