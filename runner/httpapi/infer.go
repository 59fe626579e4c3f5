package httpapi

import (
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

// modelRequest is a request of a gateway for a model's engine, over HTTP or from this process.
type modelRequest struct {
	model, gateway string
	method, path   string
	target         []byte // path and query
	body           []byte
	size           int                      // of the body
	field          func(name string) []byte // of infra/rpc, and those of the client that are passed on
	handshake      *fasthttp.RequestHeader  // nil unless it asks for a WebSocket
}

// exchange is one admitted request and its response. finish ends it exactly once, wherever the answer breaks off: it releases
// the engine and stops the watch.
type exchange struct {
	modelRequest
	s             *Server
	ref           *host.Ref
	watch         *relay.Watch
	call          relay.Call
	stop          atomic.Pointer[context.CancelCauseFunc] // ends its wait in a queue, nil outside one
	permits       *fairqueue.Queue                        // the queue of its permit, nil for none
	tenant        string                                  // the permit's holder
	releaseSlot   func()                                  // releases its slot, nil for none
	text          []byte                                  // the body that the engine gets
	conversations *conversations.Engine                   // that it uses, nil for none
	media         *mmcache.Request                        // of its engine's encoder cache, nil for none
	req           relay.Request                           // to the engine
	reqFields     [6]relay.Field
	bearer        [80]byte // the value of one of them
	began         time.Time
	spans         spans
	once          sync.Once
}

// spans are what a trace says of an exchange; nil ones where it is not traced.
type spans struct{ all, engine *trace.Span }

// begin begins the spans of a request that its gateway traces.
func (s *spans) begin(t *trace.Tracer, parent []byte, model string, began time.Time) {
	if t == nil {
		return
	}
	s.all = t.Continue(parent, "runner", began)
	s.all.Text("gen_ai.request.model", model)
}

// waited records the wait since from, and begins the span of the engine.
func (s *spans) waited(from time.Time) {
	if s.all == nil {
		return
	}
	now := time.Now()
	s.all.Child(trace.Internal, "wait for a slot", from).End(now)
	s.engine = s.all.Child(trace.Client, "engine", now)
}

// end ends the spans.
func (s *spans) end(err error) {
	if s.all == nil {
		return
	}
	now := time.Now()
	for _, span := range []*trace.Span{s.engine, s.all} {
		if err != nil {
			span.Fail()
		}
		span.End(now)
	}
}

// cancel ends the exchange, whatever it waits for.
func (x *exchange) cancel(cause error) {
	x.call.Cancel(cause)
	if stop := x.stop.Load(); stop != nil {
		(*stop)(cause)
	}
}

// life returns the context of a wait in a queue. It ends when the exchange is cancelled, with that cause, or by cancel.
func (x *exchange) life() (life context.Context, cancel context.CancelCauseFunc) {
	life, cancel = context.WithCancelCause(context.Background())
	x.stop.Store(&cancel)
	if cause := x.call.Cause(); cause != nil { // cancelled before x.stop was set
		cancel(cause)
	}
	return life, cancel
}

// errUnanswered ends an exchange whose body could not be read, or whose handler panicked.
var errUnanswered = errors.New("the handler ended without an answer")

func (x *exchange) finish(err error) {
	x.once.Do(func() {
		x.watch.Stop()
		x.conversations.End()
		x.media.End()
		if x.releaseSlot != nil {
			x.releaseSlot()
		}
		if x.permits != nil {
			x.permits.Release(x.tenant)
		}
		x.s.watchdog.ended(x.ref, err) // before Release, so that whoever sees the request's end also sees its outcome
		x.ref.Release()
		x.spans.end(err)
		x.s.m.open.Add(-1)
		x.s.m.seconds.UpdateDuration(x.began)
		if err != nil && !errors.Is(err, relay.ErrGone) {
			x.s.m.broken.Inc()
		}
	})
}

// infer admits a request to the model's engine and relays the answer.
func (s *Server) infer(ctx *fasthttp.RequestCtx, model string) {
	gateway, ok := s.authorized(ctx, model)
	if !ok {
		return
	}
	h := &ctx.Request.Header
	x := &exchange{s: s, began: time.Now(), modelRequest: modelRequest{
		model: model, gateway: gateway, method: string(ctx.Method()), path: string(ctx.Path()), target: ctx.RequestURI(), size: max(h.ContentLength(), 0), field: h.Peek,
	}}
	var body relay.Body
	defer func() { body.Drop() }()
	read := func() bool {
		var err error
		if body, err = s.intake.Read(ctx, 0); err != nil {
			unread(err).send(ctx)
			return false
		}
		x.body = ctx.PostBody()
		return true
	}
	long := x.size >= longBody
	if !long && !read() {
		return
	}
	if relay.AsksWebSocket(h) {
		x.handshake = h
	}
	handed := false // to the body of the answer, which fasthttp closes
	defer func() {
		if !handed && x.ref != nil {
			x.finish(errUnanswered)
		}
	}()
	if refused := x.acquire(); refused != nil {
		refused.send(ctx)
		return
	}
	x.watch = s.watcher.Arm(ctx.Conn(), func() { x.cancel(relay.ErrGone) })
	if long && !read() {
		return
	}
	if q := x.queue(); q != nil {
		if answer, served := x.embed(q, ctx.Response.BodyWriter()); served {
			answer.send(ctx)
			return
		}
	}
	if unserved := x.await(); unserved != nil {
		unserved.send(ctx)
		return
	}
	resp, err := x.send()
	if err == nil {
		err = resp.Await(time.Time{})
	}
	err = x.check(resp, err, &ctx.Response.Header)
	if err != nil {
		x.finish(err)
		if resp != nil {
			_ = resp.Close()
		}
		x.engineFailed(err).send(ctx)
		return
	}
	handed = true
	switch {
	case resp.AcceptsWebSocket(h):
		resp.SwitchTo(ctx, nil, webSocketIdle, x.finish)
	case resp.IsEvents() && resp.Status() == fasthttp.StatusOK:
		resp.OnEnd = x.finish
		ctx.SetContentTypeBytes(resp.ContentType())
		ctx.Response.SetBodyStream(&eventStream{Response: resp, x: x}, -1)
		ctx.Response.ImmediateHeaderFlush = resp.Buffered() == 0
	default:
		resp.OnEnd = x.finish
		resp.SendTo(ctx)
	}
}

// longBody is the size in bytes from which a body is read only once its model has taken the request.
const longBody = 512 << 10

// acquire admits the request to its model, or returns the refusal.
func (x *exchange) acquire() *reply {
	s := x.s
	var refused string
	if len(x.field(rpc.HeaderRead)) > 0 {
		x.ref, refused = s.cfg.Host.AcquireModelRead(x.model, x.cancel)
	} else {
		x.ref, refused = s.cfg.Host.AcquireModel(x.model, string(x.field(rpc.HeaderTicket)), x.gateway, waiters(x.field(rpc.HeaderWaiters)), x.cancel)
	}
	if refused != "" {
		s.m.refused.Inc()
		return refusal(refused)
	}
	s.watchdog.began(x.ref)
	x.spans.begin(s.cfg.Tracer, x.field(trace.Header), x.model, x.began)
	s.m.requests.Inc()
	s.m.open.Add(1)
	return nil
}

// await waits for the request's turn at the engine: a permit and a slot. A reply means that there is none.
func (x *exchange) await() *reply {
	if r := x.acquirePermit(); r != nil {
		return r
	}
	return x.acquireSlot()
}

// send sends the request to the engine, once it is its turn.
func (x *exchange) send() (*relay.Response, error) {
	e := x.ref.Engine
	if e, ok := e.(interface {
		Conversations() *conversations.Engine
	}); ok && !x.isReadOnly() && !slotless(x.path) {
		x.conversations = e.Conversations()
		x.conversations.Begin()
	}
	x.spans.waited(x.began)
	x.beginMedia()
	req := x.engineRequest()
	if x.spans.engine != nil {
		req.Add(trace.Header, x.spans.engine.AppendContext(nil))
	}
	return e.Client().Start(&x.call, req)
}

// check returns err, or else checks the head of resp. It adds what the encoder cache and the restored conversation gave to
// more, in fields of infra/rpc.
func (x *exchange) check(resp *relay.Response, err error, more fields) error {
	if hits, misses, exact := x.media.End(); exact && hits+misses > 0 {
		more.Set(rpc.HeaderMedia, "hit="+strconv.FormatInt(hits, 10)+", miss="+strconv.FormatInt(misses, 10))
	}
	if err != nil {
		return err
	}
	if resp.Status() != fasthttp.StatusOK || x.conversations == nil {
		return nil
	}
	life, cancel := x.life()
	defer cancel(nil)
	if n := x.conversations.Reused(life); n > 0 {
		more.Set(rpc.HeaderCache, "restored="+strconv.Itoa(n))
	}
	return nil
}

// fields are the header fields of an answer.
type fields interface{ Set(name, value string) }

// engineRequest returns the request to the engine: method, path and content type as received, with the engine's own key.
func (x *exchange) engineRequest() *relay.Request {
	s, req := x.s, &x.req
	stream := len(x.field(rpc.HeaderStream)) > 0
	*req = relay.Request{
		Method: x.method, Path: x.target, Body: x.text, Events: stream,
		FirstByte: firstByteLimit(s.cfg.FirstByte, x.size, stream), Silence: LongAnswer * s.cfg.FirstByte,
		Fields: x.reqFields[:0],
	}
	if token := x.media.Token(); token != nil {
		req.Add(mmcache.HeaderToken, token)
	}
	for _, name := range [...]string{"Content-Type", "Accept", rpc.HeaderRequest} {
		if v := x.field(name); len(v) > 0 {
			req.Add(name, v)
		}
	}
	if x.handshake != nil {
		req.AddWebSocket(x.handshake)
	}
	if key := x.ref.Engine.APIKey(); key != "" {
		req.Add("Authorization", append(append(x.bearer[:0], "Bearer "...), key...))
	}
	return req
}

// webSocketIdle is how long a WebSocket may carry nothing. The gateway's limit is shorter.
const webSocketIdle = 10 * time.Minute

// LongAnswer times the first-byte limit is how long an answer that is not streamed may take, because its first byte
// comes when all of it is computed.
const LongAnswer = 5

// firstByteLimit returns how long an engine may take for the first byte of an answer, given the limit for a short
// prompt: prompt is the body's bytes. A longer prompt may take longer, but never longer than a whole answer.
func firstByteLimit(firstByte time.Duration, prompt int, stream bool) time.Duration {
	const short = 64 << 10 // bytes: about as many tokens as an engine without a GPU reads in that time
	most := LongAnswer * firstByte
	if !stream {
		return most
	}
	return min(firstByte+firstByte*time.Duration(prompt/short), most)
}

// engineFailed is the reply to a request whose engine gave no answer. If the engine never saw it, that is a refusal.
func (x *exchange) engineFailed(err error) *reply {
	if re, ok := errors.AsType[*relay.Error](err); ok && !re.Sent && !errors.Is(err, relay.ErrCancelled) {
		return refusal(rpc.RefusedNotLoaded)
	}
	if errors.Is(err, relay.ErrBadRequest) {
		return failure(fasthttp.StatusBadRequest, rpc.CodeInvalidRequest, "The request cannot be passed on as it is.")
	}
	return failure(x.describeError(err))
}

// describeError returns the error table's entry for a broken exchange with an engine.
func (x *exchange) describeError(err error) (status int, code, message string) {
	switch {
	case errors.Is(err, host.ErrCut):
		return fasthttp.StatusServiceUnavailable, rpc.CodeDraining, "The model was unloaded before the answer was complete."
	case errors.Is(err, host.ErrInterrupted):
		return fasthttp.StatusServiceUnavailable, rpc.CodeHostInterrupted, "The model's host was taken away before the answer was complete."
	case errors.Is(err, relay.ErrTimeout):
		return fasthttp.StatusGatewayTimeout, rpc.CodeUpstreamTimeout, "The engine did not answer in time."
	case errors.Is(err, relay.ErrTooLarge): // caused by the request, not the engine
		return fasthttp.StatusBadRequest, rpc.CodeInvalidRequest, "The response is too long: reduce 'max_tokens', 'n', the log-probabilities or the inputs."
	case errors.Is(err, relay.ErrBadReply):
		return fasthttp.StatusBadGateway, rpc.CodeBadEngineReply, "The engine's answer could not be understood."
	}
	// A process that ends closes its connections first.
	const moment = 250 * time.Millisecond
	wait := time.NewTimer(moment)
	defer wait.Stop()
	select {
	case <-x.ref.Engine.Done():
		return fasthttp.StatusBadGateway, rpc.CodeEngineCrashed, "The engine ended before its answer was complete."
	case <-wait.C:
		return fasthttp.StatusBadGateway, rpc.CodeRunnerFailed, "The connection to the engine was lost before the response was complete."
	}
}

// lastEvent returns the event that ends a broken stream, in OpenAI's format whatever the path: the gateway translates
// it to the path's dialect.
func (x *exchange) lastEvent(err error) []byte {
	_, code, message := x.describeError(err)
	return append(append([]byte("data: "), errorBody(code, message)...), "\n\n"...)
}

func errorBody(code, message string) []byte {
	body, _ := json.Marshal(map[string]any{"error": map[string]any{"message": message, "type": "server_error", "param": nil, "code": code}})
	return body
}

// waiters reads how many requests a gateway sends with a ticket.
func waiters(header []byte) int {
	n, _ := strconv.ParseUint(string(header), 10, 16)
	return int(n)
}
