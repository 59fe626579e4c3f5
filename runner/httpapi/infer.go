package httpapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"reveille/infra/relay"
	"reveille/infra/rpc"
	"reveille/infra/trace"
	"reveille/runner/conversations"
	"reveille/runner/fairqueue"
	"reveille/runner/host"
	"reveille/runner/mmcache"
)

// modelRequest is a gateway's request for a model's engine, over HTTP or from this process.
type modelRequest struct {
	model, gateway string
	method, path   string
	target         []byte // path and query
	body           []byte
	size           int                      // of the body
	field          func(name string) []byte // header fields of infra/rpc, and the client's that are passed on
	handshake      *fasthttp.RequestHeader  // nil unless it asks for a WebSocket
}

// activeRequest is an admitted request and its response. complete ends it exactly once, wherever the response fails: it
// releases the engine and stops the watch.
type activeRequest struct {
	modelRequest
	s           *Server
	ref         *host.Ref
	watch       *relay.Watch
	engineCall  relay.Canceler
	cancelWait  atomic.Pointer[context.CancelCauseFunc] // ends its wait in a queue, nil outside one
	permits     *fairqueue.Queue                        // the queue of its permit, nil for none
	tenant      string                                  // the permit's holder
	releaseSlot func()                                  // releases its slot, nil for none
	engineBody  []byte                                  // the body that the engine gets
	turn        *conversations.Turn                     // of the conversation that will be saved, nil for none
	answers     bool                                    // its response has status 200
	media       *mmcache.Request                        // its use of the engine's encoder cache, nil for none
	req         relay.Request                           // to the engine
	reqFields   [6]relay.Field
	bearer      [80]byte // the value of Authorization
	started     time.Time
	spans       spans
	once        sync.Once
}

// spans are the trace spans of a request, nil if it is not traced.
type spans struct{ request, engine *trace.Span }

// start starts the spans of a request that its gateway traces.
func (s *spans) start(t *trace.Tracer, parent []byte, model string, started time.Time) {
	if t == nil {
		return
	}
	s.request = t.Continue(parent, "runner", started)
	s.request.Text("gen_ai.request.model", model)
}

// startEngine records the wait since from, and starts the engine's span.
func (s *spans) startEngine(from time.Time) {
	if s.request == nil {
		return
	}
	now := time.Now()
	s.request.Child(trace.Internal, "wait for a slot", from).End(now)
	s.engine = s.request.Child(trace.Client, "engine", now)
}

// end ends the spans.
func (s *spans) end(err error) {
	if s.request == nil {
		return
	}
	now := time.Now()
	for _, span := range []*trace.Span{s.engine, s.request} {
		if err != nil {
			span.Fail()
		}
		span.End(now)
	}
}

// cancelWith ends the request with a cause, whatever it waits for.
func (a *activeRequest) cancelWith(cause error) {
	a.engineCall.Cancel(cause)
	if stop := a.cancelWait.Load(); stop != nil {
		(*stop)(cause)
	}
}

// waitContext returns the context of a wait in a queue. It ends when the request is canceled, with that cause, or by
// cancel.
func (a *activeRequest) waitContext() (ctx context.Context, cancel context.CancelCauseFunc) {
	ctx, cancel = context.WithCancelCause(context.Background())
	a.cancelWait.Store(&cancel)
	if cause := a.engineCall.Cause(); cause != nil { // canceled before cancelWait was set
		cancel(cause)
	}
	return ctx, cancel
}

// errNoResponse completes a request whose body could not be read, or whose handler panicked.
var errNoResponse = errors.New("the handler returned without a response")

func (a *activeRequest) complete(err error) {
	a.once.Do(func() {
		a.watch.Stop()
		a.turn.End(err == nil && a.answers)
		a.media.End()
		if a.releaseSlot != nil {
			a.releaseSlot()
		}
		if a.permits != nil {
			a.permits.Release(a.tenant)
		}
		a.s.watchdog.requestEnded(a.ref, err) // before Release, so that a caller that sees the request's end also sees its outcome
		a.ref.Release()
		a.spans.end(err)
		a.s.m.open.Add(-1)
		a.s.m.seconds.UpdateDuration(a.started)
		if err != nil && !errors.Is(err, relay.ErrClientGone) {
			a.s.m.broken.Inc()
		}
	})
}

// infer admits a request to the model's engine and relays the response.
func (s *Server) infer(ctx *fasthttp.RequestCtx, model string) {
	gateway, ok := s.authorize(ctx, model)
	if !ok {
		return
	}
	h := &ctx.Request.Header
	a := &activeRequest{s: s, started: time.Now(), modelRequest: modelRequest{
		model: model, gateway: gateway, method: string(ctx.Method()), path: string(ctx.Path()), target: ctx.RequestURI(), size: max(h.ContentLength(), 0), field: h.Peek,
	}}
	var body relay.Body
	defer func() { body.Drop() }()
	read := func() bool {
		var err error
		if body, err = s.bodies.Read(ctx, 0); err != nil {
			bodyError(err).send(ctx)
			return false
		}
		a.body = ctx.PostBody()
		return true
	}
	long := a.size >= longBody
	if !long && !read() {
		return
	}
	if relay.IsWebSocketHandshake(h) {
		a.handshake = h
	}
	handedOver := false // to the response body, which fasthttp closes
	defer func() {
		if !handedOver && a.ref != nil {
			a.complete(errNoResponse)
		}
	}()
	if refused := a.acquireEngine(); refused != nil {
		refused.send(ctx)
		return
	}
	a.watch = s.watcher.Arm(ctx.Conn(), func() { a.cancelWith(relay.ErrClientGone) })
	if long && !read() {
		return
	}
	if q := a.batcher(); q != nil {
		if r, served := a.serveBatched(q, ctx.Response.BodyWriter()); served {
			r.send(ctx)
			return
		}
	}
	if reply := a.awaitCapacity(); reply != nil {
		reply.send(ctx)
		return
	}
	resp, err := a.sendToEngine()
	if err == nil {
		err = resp.Await(time.Time{})
	}
	err = a.checkResponse(resp, err, &ctx.Response.Header)
	if err != nil {
		a.complete(err)
		if resp != nil {
			_ = resp.Close()
		}
		a.engineFailed(err).send(ctx)
		return
	}
	handedOver = true
	switch {
	case resp.AcceptsWebSocket(h):
		resp.SwitchTo(ctx, nil, webSocketIdle, a.complete)
	case resp.IsEvents() && resp.Status() == fasthttp.StatusOK:
		resp.OnEnd = a.complete
		ctx.SetContentTypeBytes(resp.ContentType())
		ctx.Response.SetBodyStream(&eventStream{Response: resp, request: a}, -1)
		ctx.Response.ImmediateHeaderFlush = resp.Buffered() == 0
	default:
		resp.OnEnd = a.complete
		resp.SendTo(ctx)
	}
}

// longBody is the size in bytes from which a body is read only after its model has admitted the request.
const longBody = 512 << 10

// acquireEngine admits the request to its model, or returns the refusal.
func (a *activeRequest) acquireEngine() *reply {
	s := a.s
	var refused string
	if len(a.field(rpc.HeaderBackground)) > 0 {
		a.ref, refused = s.cfg.Host.AcquireBackground(a.model, a.cancelWith)
	} else {
		a.ref, refused = s.cfg.Host.AcquireModel(a.model, string(a.field(rpc.HeaderTicket)), a.gateway, waiters(a.field(rpc.HeaderWaited)), a.cancelWith)
	}
	if refused != "" {
		s.m.refused.Inc()
		return refusal(refused)
	}
	s.watchdog.requestStarted(a.ref)
	a.spans.start(s.cfg.Tracer, a.field(trace.Header), a.model, a.started)
	s.m.requests.Inc()
	s.m.open.Add(1)
	return nil
}

// awaitCapacity waits until the engine has a permit for the request and its slot is ready. It returns a reply if the
// request gets none.
func (a *activeRequest) awaitCapacity() *reply {
	if r := a.acquirePermit(); r != nil {
		return r
	}
	return a.acquireSlot()
}

// sendToEngine sends the request, with texts to rerank cut, to the engine after awaitCapacity.
func (a *activeRequest) sendToEngine() (*relay.Response, error) {
	e := a.ref.Engine
	if p := a.rerankCutter(); p != nil {
		ctx, cancel := a.waitContext()
		defer cancel(nil)
		body, err := p.Cut(ctx, a.engineBody)
		if err != nil {
			return nil, cmp.Or(context.Cause(ctx), err)
		}
		a.engineBody = body
	}
	a.spans.startEngine(a.started)
	a.beginMedia()
	req := a.buildRequest()
	if a.spans.engine != nil {
		req.Add(trace.Header, a.spans.engine.AppendContext(nil))
	}
	return e.Client().Start(&a.engineCall, req)
}

// checkResponse is called once resp has its head, or with the error if there is none, which it returns. It adds to more
// the header fields of infra/rpc that report what came from the encoder cache and from the restored conversation.
func (a *activeRequest) checkResponse(resp *relay.Response, err error, more fields) error {
	if hits, misses, exact := a.media.End(); exact && hits+misses > 0 {
		more.Set(rpc.HeaderMedia, "hit="+strconv.FormatInt(hits, 10)+", miss="+strconv.FormatInt(misses, 10))
	}
	if err != nil {
		return err
	}
	if resp.Status() != fasthttp.StatusOK || a.turn == nil {
		return nil
	}
	a.answers = true
	events := resp.IsEvents()
	resp.Tap = func(b []byte) { a.turn.Feed(b, events) }
	ctx, cancel := a.waitContext()
	defer cancel(nil)
	if n := a.turn.Reused(ctx); n > 0 {
		more.Set(rpc.HeaderCache, "restored="+strconv.Itoa(n))
	}
	return nil
}

// fields are the header fields of a response.
type fields interface{ Set(name, value string) }

// buildRequest returns the request to the engine: method, path and content type as received, with the engine's own key.
func (a *activeRequest) buildRequest() *relay.Request {
	s, req := a.s, &a.req
	stream := len(a.field(rpc.HeaderStream)) > 0
	*req = relay.Request{
		Method: a.method, Path: a.target, Body: a.engineBody, Events: stream,
		FirstByte: firstByteLimit(s.cfg.FirstByte, a.size, stream), Silence: WholeResponseFactor * s.cfg.FirstByte,
		Fields: a.reqFields[:0],
	}
	if token := a.media.Token(); token != nil {
		req.Add(mmcache.HeaderToken, token)
	}
	for _, name := range [...]string{"Content-Type", "Accept", rpc.HeaderRequest} {
		if v := a.field(name); len(v) > 0 {
			req.Add(name, v)
		}
	}
	if a.handshake != nil {
		req.AddWebSocket(a.handshake)
	}
	if key := a.ref.Engine.APIKey(); key != "" {
		req.Add("Authorization", append(append(a.bearer[:0], "Bearer "...), key...))
	}
	return req
}

// webSocketIdle is the idle timeout of a WebSocket. The gateway's limit is shorter.
const webSocketIdle = 10 * time.Minute

// WholeResponseFactor times the first-byte limit is the timeout of a response that is not streamed, because its first
// byte comes when all of it is computed.
const WholeResponseFactor = 5

// firstByteLimit returns the timeout for the first byte of a response to a body of so many bytes; firstByte is that for
// a short prompt. A longer prompt has a longer timeout, but never a longer one than a whole response.
func firstByteLimit(firstByte time.Duration, bodyBytes int, stream bool) time.Duration {
	const short = 64 << 10 // bytes of a prompt: about as much as an engine without a GPU reads in the time firstByte
	limit := WholeResponseFactor * firstByte
	if !stream {
		return limit
	}
	return min(firstByte+firstByte*time.Duration(bodyBytes/short), limit)
}

// engineFailed returns the reply to a request whose engine sent no response. If the engine never saw the request, that
// is a refusal.
func (a *activeRequest) engineFailed(err error) *reply {
	if re, ok := errors.AsType[*relay.Error](err); ok && !re.Sent && !errors.Is(err, relay.ErrCanceled) {
		return refusal(rpc.RefusedNotLoaded)
	}
	if errors.Is(err, relay.ErrBadRequest) {
		return failure(fasthttp.StatusBadRequest, rpc.CodeInvalidRequest, "The request cannot be forwarded unchanged.")
	}
	return failure(a.describeError(err))
}

// describeError returns the error table's entry for a failed engine request.
func (a *activeRequest) describeError(err error) (status int, code, message string) {
	switch {
	case errors.Is(err, host.ErrCut):
		return fasthttp.StatusServiceUnavailable, rpc.CodeDraining, "The model was unloaded before the response was complete."
	case errors.Is(err, host.ErrInterrupted):
		return fasthttp.StatusServiceUnavailable, rpc.CodeHostInterrupted, "The model's host was shut down before the response was complete."
	case errors.Is(err, relay.ErrTimeout):
		return fasthttp.StatusGatewayTimeout, rpc.CodeUpstreamTimeout, "The engine did not respond in time."
	case errors.Is(err, relay.ErrTooLarge): // caused by the request, not the engine
		return fasthttp.StatusBadRequest, rpc.CodeInvalidRequest, "The response is too long: reduce 'max_tokens', 'n', the log-probabilities or the inputs."
	case errors.Is(err, relay.ErrInvalidResponse):
		return fasthttp.StatusBadGateway, rpc.CodeBadEngineReply, "The engine sent an invalid response."
	}
	// A process that exits closes its connections first.
	const exitWait = 250 * time.Millisecond
	wait := time.NewTimer(exitWait)
	defer wait.Stop()
	select {
	case <-a.ref.Engine.Done():
		return fasthttp.StatusBadGateway, rpc.CodeEngineCrashed, "The engine exited before the response was complete."
	case <-wait.C:
		return fasthttp.StatusBadGateway, rpc.CodeRunnerFailed, "The connection to the engine was lost before the response was complete."
	}
}

// errorEvent returns the event that ends a failed stream. It has OpenAI's format on every path: the gateway translates
// it to the path's dialect.
func (a *activeRequest) errorEvent(err error) []byte {
	_, code, message := a.describeError(err)
	return append(append([]byte("data: "), errorBody(code, message)...), "\n\n"...)
}

func errorBody(code, message string) []byte {
	body, _ := json.Marshal(map[string]any{"error": map[string]any{"message": message, "type": "server_error", "param": nil, "code": code}})
	return body
}

// waiters parses the number of requests that a gateway sends with a ticket.
func waiters(header []byte) int {
	n, _ := strconv.ParseUint(string(header), 10, 16)
	return int(n)
}
