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

// exchange is one admitted request and its response. finish ends it exactly once, wherever the answer breaks off: it releases
// the engine and stops the watch.
type exchange struct {
	s       *Server
	pass    *host.Lease
	watch   *relay.Watch
	call    relay.Call
	stop    atomic.Pointer[context.CancelCauseFunc] // ends its wait in a queue, nil outside one
	permits *fairqueue.Queue                        // the queue of its permit, nil for none
	tenant  string                                  // the permit's holder
	leave   func()                                  // releases its slot, nil for none
	talks   *conversations.Engine                   // that it uses, nil for none
	load    load                                    // the input that it gave the engine
	began   time.Time
	spans   spans
	once    sync.Once
}

// spans are what a trace says of an exchange; nil ones where it is not traced.
type spans struct{ all, engine *trace.Span }

// begin begins the spans of a request that its gateway traces.
func (s *spans) begin(t *trace.Tracer, ctx *fasthttp.RequestCtx, model string, began time.Time) {
	if t == nil {
		return
	}
	s.all = t.Continue(ctx.Request.Header.Peek(trace.Header), "runner", began)
	s.all.Text("gen_ai.request.model", model)
}

// waited ends a wait that began at a time, and begins the time at the engine.
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

// errUnanswered ends an exchange whose handler panicked.
var errUnanswered = errors.New("the handler ended without an answer")

func (x *exchange) finish(err error) {
	x.once.Do(func() {
		x.watch.Stop()
		x.talks.End()
		if x.leave != nil {
			x.leave()
		}
		if x.permits != nil {
			x.permits.Release(x.tenant)
		}
		x.s.dog.ended(x.pass.Engine, x.load, err == nil)
		x.s.dog.observe(x.pass, err) // before Leave, so that whoever sees the request's end also sees its outcome
		x.pass.Leave()
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
	gateway, ok := s.authorised(ctx, model)
	if !ok {
		return
	}
	body, ok := s.take(ctx)
	if !ok {
		return
	}
	defer body.Drop()
	x := &exchange{s: s, began: time.Now()}
	handed := false // to the body of the answer, which fasthttp closes
	defer func() {
		if !handed && x.pass != nil {
			x.finish(errUnanswered)
		}
	}()
	var pass *host.Lease
	var refused string
	if h := &ctx.Request.Header; len(h.Peek(rpc.HeaderRead)) > 0 {
		pass, refused = s.cfg.Host.AcquireRead(model, x.cancel)
	} else {
		pass, refused = s.cfg.Host.Acquire(model, string(h.Peek(rpc.HeaderTicket)), gateway, waiters(h), x.cancel)
	}
	if refused != "" {
		s.m.refused.Inc()
		s.refuse(ctx, refused)
		return
	}
	x.pass = pass
	x.spans.begin(s.cfg.Tracer, ctx, model, x.began)
	s.m.requests.Inc()
	s.m.open.Add(1)
	x.watch = s.watcher.Arm(ctx.Conn(), func() { x.cancel(relay.ErrGone) })
	if q := queueOf(pass.Engine, ctx.Path()); q != nil && s.embed(ctx, x, q) {
		return
	}

	if !s.acquirePermit(ctx, x) {
		return
	}
	text, ok := s.acquireSlot(ctx, x)
	if !ok {
		return
	}
	if e, ok := pass.Engine.(interface {
		Conversations() *conversations.Engine
	}); ok && !reads(ctx) && !slotless(string(ctx.Path())) {
		x.talks = e.Conversations()
		x.talks.Begin()
	}
	x.spans.waited(x.began)
	x.load = loadOf(pass, ctx.PostBody())
	s.dog.began(model, pass.Engine, x.load)
	media := beginMedia(pass.Engine, ctx.Request.Header.Peek(rpc.HeaderScope), ctx.PostBody())
	req := s.engineRequest(ctx, text, pass, media)
	if x.spans.engine != nil {
		req.Add(trace.Header, x.spans.engine.AppendContext(nil))
	}
	resp, err := pass.Engine.Client().Do(&x.call, req)
	endMedia(media, &ctx.Response.Header)
	good := formOf(string(ctx.Path()))
	if err == nil {
		if err = vet(ctx, good, resp); err != nil {
			_ = resp.Close()
		}
	}
	if err != nil {
		x.finish(err)
		s.engineFailed(ctx, err)
		return
	}
	if resp.AcceptsWebSocket(&ctx.Request.Header) {
		handed = true
		resp.SwitchTo(ctx, nil, webSocketIdle, x.finish)
		return
	}
	if resp.Status() == fasthttp.StatusOK {
		life, cancel := x.life()
		if n := x.talks.Reused(life); n > 0 {
			ctx.Response.Header.Set(rpc.HeaderCache, "restored="+strconv.Itoa(n))
		}
		cancel(nil)
	}
	handed = true
	if resp.IsEvents() && resp.Status() == fasthttp.StatusOK {
		relay.NewStream(relay.StreamConfig{
			Response: resp, JSON: good >= jsonForm,
			OnBreak: lastEvent,
			OnEnd:   x.finish,
		}).SendTo(ctx)
		return
	}
	resp.OnEnd = x.finish
	resp.SendTo(ctx)
}

// engineRequest returns the request to the engine: method, path and content type as received, with the engine's own key.
func (s *Server) engineRequest(ctx *fasthttp.RequestCtx, body []byte, pass *host.Lease, media *mmcache.Request) *relay.Request {
	req := &relay.Request{
		Method: string(ctx.Method()), Path: ctx.RequestURI(), Body: body,
		FirstByte: firstByteLimit(s.cfg.FirstByte, len(ctx.PostBody()), len(ctx.Request.Header.Peek(rpc.HeaderStream)) > 0), Silence: LongAnswer * s.cfg.FirstByte,
		Fields: make([]relay.Field, 0, 5),
	}
	if token := media.Token(); token != nil {
		req.Add(mmcache.HeaderToken, token)
	}
	for _, name := range [...]string{"Content-Type", "Accept", rpc.HeaderRequest} {
		if v := ctx.Request.Header.Peek(name); len(v) > 0 {
			req.Add(name, v)
		}
	}
	if relay.AsksWebSocket(&ctx.Request.Header) {
		req.AddWebSocket(&ctx.Request.Header)
	}
	if key := pass.Engine.APIKey(); key != "" {
		req.Add("Authorization", []byte("Bearer "+key))
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

// engineFailed answers a request whose engine gave no answer. If the engine never saw it, the answer is a refusal.
func (s *Server) engineFailed(ctx *fasthttp.RequestCtx, err error) {
	var re *relay.Error
	if errors.As(err, &re) && !re.Sent && !errors.Is(err, relay.ErrCancelled) {
		s.refuse(ctx, rpc.RefusedNotLoaded)
		return
	}
	if errors.Is(err, relay.ErrBadRequest) {
		s.fail(ctx, fasthttp.StatusBadRequest, "invalid_request", "The request cannot be passed on as it is.")
		return
	}
	status, code, message := describeError(err)
	s.fail(ctx, status, code, message)
}

// describeError returns the error table's entry for a broken exchange with an engine.
func describeError(err error) (status int, code, message string) {
	switch {
	case errors.Is(err, host.ErrCut):
		return fasthttp.StatusServiceUnavailable, rpc.CodeDraining, "The model was unloaded before the answer was complete."
	case errors.Is(err, host.ErrInterrupted):
		return fasthttp.StatusServiceUnavailable, rpc.CodeHostInterrupted, "The model's host was taken away before the answer was complete."
	case errors.Is(err, relay.ErrTimeout):
		return fasthttp.StatusGatewayTimeout, rpc.CodeUpstreamTimeout, "The engine did not answer in time."
	case errors.Is(err, relay.ErrTooLarge): // caused by the request, not the engine
		return fasthttp.StatusBadRequest, "invalid_request", "The answer is longer than 16 MiB or nests too deep: reduce 'max_tokens', 'n', the log-probabilities or the inputs."
	case errors.Is(err, relay.ErrBadReply):
		return fasthttp.StatusBadGateway, "bad_engine_reply", "The engine's answer could not be understood."
	}
	return fasthttp.StatusBadGateway, rpc.CodeEngineCrashed, "The engine ended before its answer was complete."
}

// lastEvent returns the event that ends a broken stream, in OpenAI's format whatever the path: the gateway translates
// it to the path's dialect.
func lastEvent(err error) []byte {
	_, code, message := describeError(err)
	return append(append([]byte("data: "), errorBody(code, message)...), "\n\n"...)
}

func errorBody(code, message string) []byte {
	body, _ := json.Marshal(map[string]any{"error": map[string]any{"message": message, "type": "server_error", "param": nil, "code": code}})
	return body
}

// waiters reads how many requests a gateway sends with a ticket.
func waiters(h *fasthttp.RequestHeader) int {
	n, _ := strconv.ParseUint(string(h.Peek(rpc.HeaderWaiters)), 10, 16)
	return int(n)
}
