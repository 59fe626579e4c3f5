package httpapi

import (
	"errors"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"

	"reveille/gateway/api"
	"reveille/gateway/scheduling"
	"reveille/gateway/web"
	"reveille/infra/relay"
	"reveille/infra/rpc"
)

// exchange is one inference request and its response. It belongs to the connection's goroutine: the handler's and then, for
// a streamed response, the body stream's. Only abandon may be called from other goroutines. finish ends it, exactly once:
// start calls it when the response is complete or there is none, otherwise closing the body stream does.
type exchange struct {
	*call
	path       []byte                                 // at the engine
	upgrade    bool                                   // pass a WebSocket through
	raw        bool                                   // pass method, headers and answer through unchanged
	answer     func(*exchange, *relay.Response) error // delivers an answer that is not streamed; nil relays it
	translator translator                             // turns a stream into another dialect's; nil relays it
	onComplete func()                                 // called after a complete answer; nil: nothing
	load       func(*exchange) error                  // queues the load of a model that is on no host; nil leaves it to the gate

	place int          // among the open exchanges
	watch *relay.Watch // for the client leaving
	routing
	attempt
	response
}

// response is the answer being sent to the client.
type response struct {
	tap              *tap // nil, or tapped
	tapped           tap
	unread           *relay.Response // that a panic would leave open, nil for none
	finishedByStream bool            // the body stream finishes the exchange
	open             bool            // counted among the streams of the model
	done             bool            // finish ran
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
		return (&exchange{call: c, path: at}).start()
	}
}

// canonicalName puts the model's canonical name into the body, as the engine gets it.
func (c *call) canonicalName() error {
	if c.Match.Route.Body != api.BodyJSON {
		return nil
	}
	if c.requestedModel != c.model.ID {
		return c.setModelName()
	}
	return nil
}

// start finds a runner, waiting for a load if necessary, and delivers the answer. Until a stream is committed, every
// failure has its own HTTP status.
func (x *exchange) start() (err error) {
	s := x.s
	hold := s.cfg.HoldWhole
	if x.stream {
		hold = s.cfg.Hold
	}
	if x.wait, err = waitPolicyOf(&x.Ctx.Request.Header, hold); err != nil {
		return err
	}
	if s.draining.Load() {
		return api.GoingAway()
	}
	if err := s.crashes.Check(x.Account, x.model.ID, x.Began); err != nil {
		return x.refuseByLimit(err)
	}
	if err := x.Account.Begin(); err != nil {
		return x.refuseByLimit(err)
	}
	x.Account.SetHeaders(&x.Ctx.Response.Header)
	s.inflight.add(x)
	x.watch = s.watcher.Arm(x.Ctx.Conn(), func() { x.abandon(relay.ErrGone) })
	defer func() {
		if !x.finishedByStream { // a panic ends here too
			if x.unread != nil {
				_ = x.unread.Close()
			}
			x.finish(err)
		}
	}()

	if x.endpoint, x.hasEndpoint = s.cfg.Gate.EndpointFor(x.model.ID, x.body); x.hasEndpoint {
		x.state = "loaded"
	} else if x.state = s.dir.StateOf(x.model.ID); x.Match.Head {
		err = notLoaded(x.model.ID)
	} else if x.load != nil && x.wait.policy == "block" && x.state == "unloaded" {
		err = x.load(x)
	} else {
		err = x.coldPolicy()
	}
	var committed *relay.Stream
	if err == nil {
		committed, err = x.attemptUntilAnswered()
	}
	switch {
	case err == nil && committed != nil:
		x.sendStream(committed)
		return nil
	case err == nil:
		return nil
	case clientGone(err):
		x.finish(err) // while the answer is known to be incomplete: start itself returns no error
		s.log.Debug("client left", "request", x.ID, "model", x.model.ID)
		s.m.answer(x.RouteName(), web.StatusGone)
		x.Ctx.SetStatusCode(web.StatusGone)
		x.Ctx.SetConnectionClose()
		return nil
	}
	e := x.asError(err)
	x.modelHeaders()
	if e.Status == fasthttp.StatusTooManyRequests || e.Status == fasthttp.StatusServiceUnavailable {
		x.queueHeader()
	}
	return e
}

// refuseByLimit sets the headers of a refusal by one of the key's limits.
func (c *call) refuseByLimit(err error) error {
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
	return errors.Is(err, relay.ErrGone) || errors.Is(err, scheduling.ErrLeft)
}

// attemptUntilAnswered makes attempts until there is an answer, which it sets on the response, or until a stream must be committed
// without one. It returns that stream.
func (x *exchange) attemptUntilAnswered() (*relay.Stream, error) {
	commit := time.Time{}
	if x.stream {
		commit = x.Began.Add(x.s.cfg.CommitAfter)
	}
	x.until = commit
	for {
		ready, err := x.awaitTurn(commit)
		if err != nil {
			return nil, err
		}
		if !ready {
			return x.newStream(nil), nil
		}
		resp, err := x.send()
		if err == nil {
			x.unread = resp
			err = resp.Await(commit)
			if errors.Is(err, relay.ErrPending) {
				x.unread = nil
				return x.newStream(resp), nil
			}
			if err == nil {
				err = x.checkResponse(resp)
			}
			if err == nil {
				err = x.deliver(resp)
				x.unread = nil
				return nil, err
			}
			x.unread = nil
			_ = resp.Close()
		}
		if !errors.Is(err, relay.ErrAgain) {
			return nil, err
		}
	}
}

// deliver sets an answer on the response.
func (x *exchange) deliver(resp *relay.Response) error {
	if x.upgrade {
		return x.deliverWebSocket(resp)
	}
	if v := resp.Header(rpc.HeaderMedia); len(v) > 0 {
		x.Ctx.Response.Header.SetBytesV(api.HeaderMediaCache, v)
	}
	if v := resp.Header(rpc.HeaderCache); len(v) > 0 {
		x.Ctx.Response.Header.SetBytesV(api.HeaderCacheTokens, v)
	}
	if x.answer != nil {
		err := x.answer(x, resp)
		_ = resp.Close()
		return err
	}
	if !x.raw && resp.Status() == fasthttp.StatusOK && resp.IsEvents() {
		x.sendStream(x.newStream(resp))
		return nil
	}
	if x.translator != nil {
		_ = resp.Close()
		return errNoStream()
	}
	x.modelHeaders()
	x.Answered(resp.Status())
	x.Ctx.SetStatusCode(resp.Status())
	x.Ctx.Response.Header.SetContentTypeBytes(resp.ContentType())
	for _, name := range relayedHeaders {
		if v := resp.Header(name); len(v) > 0 {
			x.Ctx.Response.Header.SetBytesV(name, v)
		}
	}
	resp.OnEnd = x.finish
	x.sendBody(resp, resp.Size())
	return nil
}

// relayedHeaders lists the headers of an engine's answer, besides its type and length, that are passed on to the client.
var relayedHeaders = [...]string{"Content-Encoding", "Content-Disposition", "Location"}

// abandon ends the exchange from another goroutine, whatever it waits for.
func (x *exchange) abandon(cause error) {
	x.link.Cancel(cause)
	if w := x.waiter.Load(); w != nil {
		w.Leave(false)
	}
}

// finish ends the exchange: the watch, the counts, the statistics. Only the first call counts.
func (x *exchange) finish(err error) {
	if x.done {
		return
	}
	x.done = true
	x.watch.Stop()
	if t := x.admission; t != nil {
		x.admission = nil
		t.Drop()
	}
	x.s.inflight.remove(x)
	if w := x.waiter.Swap(nil); w != nil {
		w.Leave(false)
	}
	x.uncountOpen()
	if x.open {
		x.s.dir.Uses.Stream(x.model.ID, -1)
	}
	x.Account.End()
	x.s.m.seconds.UpdateDuration(x.Began)
	first := time.Since(x.Began)
	if x.tap != nil {
		first = x.tap.firstByte(x.Began)
		x.finishTap(err)
	} else if clientGone(err) {
		x.Account.Charge(x.prompt)
	}
	if err == nil {
		x.s.history.Answered(time.Now(), first, x.cold)
	}
	x.observed.endExchange(x, first, err)
	if x.onComplete != nil && err == nil {
		x.onComplete()
	}
	x.body = nil
	if x.finishedByStream {
		x.dropBody()
	}
}

// finishTap records the usage that the answer reported, or logs how the answer broke off. An answer without a report is
// charged a token for each of its events, and an estimate of the prompt.
func (x *exchange) finishTap(err error) {
	used := x.tap.events + x.prompt
	defer func() { x.Account.Charge(used) }()
	switch {
	case err == nil:
		if a := x.recordAnswer(); a.Reported {
			used = a.Input + a.Output
			x.observed.setUsage(a.Input, a.Output, a.Cached)
		}
	case clientGone(err):
		x.s.log.Debug("client left during the answer", "request", x.ID, "model", x.model.ID)
	default:
		used = x.tap.events
		x.s.m.broken.Inc()
		x.s.log.Warn("engine answer was cut off", "request", x.ID, "model", x.model.ID, "error", err)
	}
	x.tap.release()
}

// asError maps an error of the exchange to the client's error.
func (x *exchange) asError(err error) *api.Error {
	var e *api.Error
	var eventErr *relay.EventError
	switch {
	case errors.As(err, &e):
		return e
	case errors.As(err, &eventErr): // from the engine, or from the runner with a code of our own table
		return api.NormalizeEvent(eventErr.Data, x.endpoint.Host)
	case errors.Is(err, relay.ErrTimeout):
		return api.New(api.UpstreamTimeout, "The model did not answer in time.").WithCause(err)
	case errors.Is(err, relay.ErrTooLarge):
		return api.New(api.InvalidRequest, "The answer is too long or nests too deep: reduce 'max_tokens', 'n', the log-probabilities or the inputs.").WithCause(err)
	case errors.Is(err, relay.ErrBadReply):
		return api.NotUnderstood().WithCause(err)
	case errors.Is(err, relay.ErrBroken), errors.Is(err, relay.ErrUnreachable), errors.Is(err, relay.ErrCancelled):
		return api.New(api.RunnerFailed, "The model's host broke off before the answer was complete.").WithCause(err)
	}
	return api.As(err)
}
