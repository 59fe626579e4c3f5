package httpapi

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"

	"reveille/gateway/api"
	"reveille/gateway/completion"
	"reveille/gateway/scheduling"
	"reveille/infra/catalog"
	"reveille/infra/jsonscan"
	"reveille/infra/recipe"
	"reveille/infra/relay"
	"reveille/infra/state"
)

// exchange is one inference request and its response. It belongs to the connection's goroutine: the handler's and then,
// if the response has a body that is relayed, the one that writes it. Only abandon can be called from other goroutines.
type exchange struct {
	call           *inferenceCall
	path           []byte                              // at the engine
	upgrade        bool                                // pass a WebSocket through
	raw            bool                                // pass method, headers and response through unchanged
	translate      func(engine []byte) ([]byte, error) // a response in one piece into another dialect's; nil relays it
	translator     *completion.Stream                  // a stream into another dialect's; nil relays it
	embeddingCount int                                 // texts that the response must have embeddings of; 0: any response
	onComplete     func()                              // called after a complete response; nil: nothing
	load           func() error                        // queues the load of a model that is on no host; nil leaves it to the gate
	onLoaded       func() error                        // responds once the model is loaded, without the engine; nil: the engine responds

	watch      *relay.Watch // for the client leaving
	leaveBatch func() bool  // stops watching the batch that it is a line of; nil for other requests
	routing    routing
	try        attempts

	resp             *relay.Response // a runner's response, or the wait for it; nil between attempts
	responded        bool            // the client gets a response
	recorder         recorder        // of it
	bufferedBytes    int             // bytes of the response that count as held until the exchange ends
	endsWithResponse bool            // the end of the response's stream or WebSocket completes the exchange, not serveInference
}

// infer serves an inference route on the engine's path.
func infer(path string) handler {
	at := []byte(path)
	return func(_ *Server, r *request) error {
		c, err := r.parse()
		if err != nil {
			return err
		}
		if err := c.canonicalName(); err != nil {
			return err
		}
		return (&exchange{call: c, path: at}).serveInference()
	}
}

// translations serves translations. whisper-server translates on its path for transcriptions if a field says so.
func (*Server) translations(r *request) error {
	c, err := r.parse()
	if err != nil {
		return err
	}
	x := &exchange{call: c, path: []byte("/v1/audio/translations")}
	if c.engineFamily() == recipe.WhisperCpp {
		boundary, _ := jsonscan.Boundary(string(c.Ctx.Request.Header.ContentType()))
		x.path = []byte("/v1/audio/transcriptions")
		c.body = jsonscan.PrependPart(c.body, boundary, "translate", "true")
	}
	return x.serveInference()
}

// canonicalName puts the model's canonical name into the body, as the engine gets it.
func (c *inferenceCall) canonicalName() error {
	if c.Match.Route.Body != api.BodyJSON || c.requestedModel == c.model.ID {
		return nil
	}
	body, err := jsonscan.SetString(c.body, "model", c.model.ID)
	if err != nil {
		return api.BadJSON(err)
	}
	c.body = body
	return nil
}

var errPanicked = errors.New("panic in a handler")

// serveInference finds a runner, waiting for a load if necessary, and delivers the response. Until a stream is
// committed, every failure has its own HTTP status.
func (x *exchange) serveInference() (err error) {
	s := x.call.s
	hold := s.cfg.HoldWhole
	if x.call.stream && x.onLoaded == nil {
		hold = s.cfg.Hold
	}
	if x.routing.wait, err = waitPolicyOf(&x.call.Ctx.Request.Header, hold); err != nil {
		return err
	}
	if s.draining.Load() {
		return api.ShuttingDown()
	}
	if err := x.call.omitModel(); err != nil {
		return err
	}
	if err := x.call.countRewritten(); err != nil {
		return err
	}
	if err := s.crashes.Check(x.call.Account, x.call.model.ID, x.call.Began); err != nil {
		return x.call.refuseByLimit(err)
	}
	if err := x.call.Account.Begin(); err != nil {
		return x.call.refuseByLimit(err)
	}
	x.call.Account.SetHeaders(&x.call.Ctx.Response.Header)
	x.call.wakeReplaced()
	s.inflight.Store(x, nil)
	if x.call.batch != nil {
		x.leaveBatch = context.AfterFunc(x.call.batch, func() { x.abandon(api.ShuttingDown()) })
	}
	x.watch = s.watcher.Arm(x.call.Ctx.Conn(), func() { x.abandon(relay.ErrClientGone) })
	outcome := errPanicked
	defer func() {
		if !x.endsWithResponse {
			x.completeRequest(outcome)
		}
	}()
	switch outcome = x.respond(); {
	case outcome == nil:
		return nil
	case clientGone(outcome):
		s.log.Debug("client disconnected", "request", x.call.ID, "model", x.call.model.ID)
		x.call.HandleClientGone(relay.ErrClientGone)
		return nil
	}
	e := x.asError(outcome)
	x.modelHeaders()
	if e.Status == fasthttp.StatusTooManyRequests || e.Status == fasthttp.StatusServiceUnavailable {
		x.queueHeader()
	}
	return e
}

// respond finds an endpoint, attempts it until there is a response or a stream must be committed without one, and
// delivers that.
func (x *exchange) respond() (err error) {
	if x.routing.endpoint, x.routing.hasEndpoint = x.call.s.cfg.Gate.EndpointFor(x.call.model.ID, x.call.body); x.routing.hasEndpoint {
		x.routing.state = "loaded"
		if x.call.batch != nil && x.call.model.Replicas.Max > 1 {
			x.call.s.cfg.Gate.LoadIfRoom(x.call.batch, x.call.model.ID, x.call.Account)
		}
	} else if x.routing.state = x.call.s.registry.StateOf(x.call.model.ID); x.call.background != "" {
		if x.call.background != catalog.BackgroundWait {
			if x.call.batch != nil && x.routing.state == "unloaded" {
				x.call.s.cfg.Gate.LoadIfRoom(x.call.batch, x.call.model.ID, x.call.Account)
			}
			err = x.call.refuseBackground()
		}
	} else if x.call.passive {
		err = notLoaded(x.call.model.ID)
	} else if x.load != nil && x.routing.wait.policy == "block" && x.routing.state == "unloaded" {
		err = x.load()
	} else if x.routing.wait.policy == "fail" {
		err = x.failCold()
	}
	if err != nil {
		return err
	}
	if x.onLoaded != nil {
		if _, err := x.acquireEndpoint(time.Time{}); err != nil {
			return err
		}
		return x.onLoaded()
	}
	var commit time.Time
	if x.call.stream {
		commit = x.call.Began.Add(x.call.s.cfg.CommitAfter)
	}
	switch err := x.attemptUntilResponse(commit); {
	case err == relay.ErrPending:
		x.sendStream()
		return nil
	case err != nil:
		return err
	}
	return x.deliverResponse()
}

// refuseByLimit sets the headers of a refusal by one of the key's limits.
func (c *inferenceCall) refuseByLimit(err error) error {
	h := &c.Ctx.Response.Header
	h.Set(api.HeaderModel, c.model.ID)
	h.Set(api.HeaderQueueLength, strconv.Itoa(c.s.cfg.Gate.Waiting()[c.model.ID]))
	c.Account.SetHeaders(&c.Ctx.Response.Header)
	return err
}

func notLoaded(model string) error {
	return api.Newf(api.NotLoadedConflict, "The model '%s' is not loaded, and this route does not load it.", model).WithParam("model")
}

// clientGone reports whether an error means that the client left.
func clientGone(err error) bool {
	return errors.Is(err, relay.ErrClientGone) || errors.Is(err, scheduling.ErrLeft)
}

// abandon ends the exchange from another goroutine, whatever it waits for.
func (x *exchange) abandon(cause error) {
	x.try.link.Cancel(cause)
	if w := x.routing.waiter.Load(); w != nil {
		w.Leave(false)
	}
}

// completeRequest ends the exchange: the watch, the response, the counts, the statistics. It is called once: when the
// response's stream or WebSocket is closed if endsWithResponse is set, else by serveInference.
func (x *exchange) completeRequest(err error) {
	x.watch.Stop()
	if x.leaveBatch != nil {
		x.leaveBatch()
	}
	x.closeResponse()
	x.call.memory.Release(x.bufferedBytes)
	if t := x.try.admission; t != nil {
		x.try.admission = nil
		t.Drop()
	}
	x.call.s.inflight.Delete(x)
	if w := x.routing.waiter.Swap(nil); w != nil {
		w.Leave(false)
	}
	x.uncountOpen()
	x.call.Account.End()
	x.call.s.m.seconds.UpdateDuration(x.call.Began)
	first := time.Since(x.call.Began)
	if x.responded {
		first = 0
		if !x.recorder.first.IsZero() {
			first = x.recorder.first.Sub(x.call.Began)
		}
		x.call.Account.Charge(x.recordOutcome(err))
	} else if clientGone(err) {
		x.call.Account.Charge(x.try.promptTokens)
	}
	if err == nil {
		x.call.s.history.CountResponse(time.Now(), first, x.routing.cold)
	}
	x.call.observed.endExchange(x, first, err)
	if x.onComplete != nil && err == nil {
		x.onComplete()
	}
	if x.endsWithResponse {
		x.releaseBody()
	}
}

// releaseBody frees the memory of the request's body, as it came and as it was sent.
func (x *exchange) releaseBody() {
	x.call.body, x.try.req.Body = nil, nil
	x.call.dropBody()
}

// closeResponse ends an attempt.
func (x *exchange) closeResponse() {
	if x.resp != nil {
		_ = x.resp.Close()
		x.resp = nil
	}
}

// recordOutcome records the usage that a response reported, or logs how it broke off. It returns the tokens to charge:
// for a response without a report one for each of its events and, unless it broke off, an estimate of the prompt.
func (x *exchange) recordOutcome(err error) (tokens int64) {
	defer x.recorder.release()
	var a state.ResponseUsage
	defer func() { x.countUse(a.Input, a.Output) }()
	switch {
	case err == nil:
		if a = x.recordUsage(); a.Reported {
			x.call.observed.setUsage(a.Input, a.Output, a.Cached)
			return a.Input + a.Output
		}
	case clientGone(err):
		x.call.s.log.Debug("client disconnected during the response", "request", x.call.ID, "model", x.call.model.ID)
	case x.recorder.first.IsZero(): // no engine has responded
	default:
		x.call.s.m.broken.Inc()
		x.call.s.log.Warn("engine response was cut off", "request", x.call.ID, "model", x.call.model.ID, "error", err)
		return x.recorder.events
	}
	return x.recorder.events + x.try.promptTokens
}

// asError maps an error of the exchange to the client's error.
func (x *exchange) asError(err error) *api.Error {
	var e *api.Error
	var eventErr *relay.EventError
	switch {
	case errors.As(err, &e):
		return e
	case errors.As(err, &eventErr): // from the engine, or from the runner with a code of our own table
		return api.NormalizeEvent(eventErr.Data, x.routing.endpoint.Host)
	case errors.Is(err, relay.ErrTimeout):
		return api.New(api.UpstreamTimeout, "The model did not respond in time.").WithCause(err)
	case errors.Is(err, relay.ErrTooLarge):
		return api.New(api.InvalidRequest, "The response is too long: reduce 'max_tokens', 'n', the log-probabilities or the inputs.").WithCause(err)
	case errors.Is(err, relay.ErrInvalidResponse):
		return api.InvalidEngineResponse().WithCause(err)
	case errors.Is(err, relay.ErrBroken), errors.Is(err, relay.ErrUnreachable), errors.Is(err, relay.ErrCanceled):
		return api.New(api.RunnerFailed, "The connection to the model's host was lost before the response was complete.").WithCause(err)
	}
	return api.As(err)
}
