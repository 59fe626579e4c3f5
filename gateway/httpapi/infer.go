package httpapi

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"reveille/gateway/api"
	"reveille/gateway/keys"
	"reveille/gateway/ollama"
	"reveille/gateway/scheduling"
	"reveille/infra/catalog"
	"reveille/infra/relay"
	"reveille/infra/rpc"
)

// exchange is one inference request between the gate and a runner. It belongs to the connection's goroutine: the handler's
// and then, for a streamed answer, the body stream's. Only abandon may be called from other goroutines. finish ends it,
// exactly once: start calls it when the answer is complete or there is none, otherwise closing the body stream does.
type exchange struct {
	*call
	path   []byte                                 // at the engine
	raw    bool                                   // method, headers and answer are passed through unchanged
	answer func(*exchange, *relay.Response) error // delivers an answer that is not streamed; nil relays it
	lines  *ollama.Stream                         // turns a stream into another dialect's; nil relays it
	after  func()                                 // called after a complete answer; nil: nothing
	load   func(*exchange) error                  // queues the load of a model that is on no host; nil leaves it to the gate

	watch *relay.Watch // for the client's leaving
	admission
	attempt
	response
}

// attempt is one try at a runner; a request may need several.
type attempt struct {
	link        relay.Call
	inUse       bool     // the route counts one of our requests
	signedAgain bool     // signed anew after a runner did not accept a signature
	repeated    bool     // after its engine crashed
	suspected   *suspect // a constrained request that an engine may have

	req     relay.Request
	fields  [8]relay.Field
	scratch [320]byte // the values of its fields
}

// response is the answer on its way to the client.
type response struct {
	tap    *tap
	handed bool // the body stream finishes the exchange
	open   bool // counted among the streams of the model
	done   bool // finish ran
}

// infer serves an inference route on the engine's path.
func (s *Server) infer(path string) handler {
	at := []byte(path)
	return func(r *request) error {
		c, err := r.parse()
		if err != nil {
			return err
		}
		if err := c.prepare(); err != nil {
			return err
		}
		return (&exchange{call: c, path: at}).start()
	}
}

// prepare turns the body into the one that the engine gets: with the model's canonical name.
func (c *call) prepare() error {
	if c.hit.Route.Body != api.BodyJSON {
		return nil
	}
	if c.asked != c.model.ID {
		return c.rename()
	}
	return nil
}

// start finds a runner, waiting for a load if necessary, and delivers the answer. Until a stream is committed, every
// failure has its own HTTP status.
func (x *exchange) start() (err error) {
	s := x.s
	if x.wait, err = waitPolicyOf(&x.ctx.Request.Header, s.cfg.Hold); err != nil {
		return err
	}
	if s.draining.Load() {
		return api.GoingAway()
	}
	if err := x.barred(); err != nil {
		return x.limited(err)
	}
	if err := x.account.Begin(); err != nil {
		return x.limited(err)
	}
	s.m.open.Add(1)
	s.under.add(x)
	x.watch = s.watcher.Arm(x.ctx.Conn(), x.left)
	defer func() {
		if !x.handed { // a panic ends here too
			x.finish(err)
		}
	}()

	if x.route, x.routed = s.cfg.Gate.Route(x.model.ID); x.routed {
		x.state = "loaded"
	} else if x.state = s.stateOf(x.model.ID); x.hit.Head {
		err = notLoaded(x.model.ID)
	} else if x.load != nil && x.wait.policy == "block" && x.state == "unloaded" {
		err = x.load(x)
	} else {
		err = x.coldPolicy()
	}
	var held *relay.Stream
	if err == nil {
		held, err = x.reach()
	}
	switch {
	case err == nil && held != nil:
		x.sendStream(held)
		return nil
	case err == nil:
		return nil
	case clientGone(err):
		x.finish(err) // while it is known that the answer was not complete: start itself reports no error
		s.log.Debug("client left", "request", x.id, "model", x.model.ID)
		s.m.answer(x.routeName(), statusGone)
		x.ctx.SetStatusCode(statusGone)
		x.ctx.SetConnectionClose()
		return nil
	}
	e := x.asError(err)
	x.modelHeaders()
	if e.Status == fasthttp.StatusTooManyRequests || e.Status == fasthttp.StatusServiceUnavailable {
		x.queueHeader()
	}
	return e
}

// limited sets the headers of an answer that refuses a request because of a limit of its key.
func (c *call) limited(err error) error {
	h := &c.ctx.Response.Header
	h.Set(api.HeaderModel, c.model.ID)
	h.Set(api.HeaderQueueLength, strconv.Itoa(c.s.cfg.Gate.Waiting()[c.model.ID]))
	return err
}

// clientGone reports whether an error is the client's own leaving.
func clientGone(err error) bool {
	return errors.Is(err, relay.ErrGone) || errors.Is(err, scheduling.ErrLeft)
}

// reach runs attempts until there is an answer, which it sets on the response, or until a stream must be committed without
// one, which it returns.
func (x *exchange) reach() (*relay.Stream, error) {
	commit := time.Time{}
	if x.stream {
		commit = x.began.Add(x.s.cfg.CommitAfter)
	}
	for {
		ready, err := x.acquireRoute(commit)
		if err != nil {
			return nil, err
		}
		if !ready {
			return x.events(nil), nil
		}
		resp, err := x.send()
		if err == nil {
			err = resp.Await(commit)
			if errors.Is(err, relay.ErrPending) {
				return x.events(resp), nil
			}
			if err == nil {
				err = x.checkResponse(resp)
			}
			if err == nil {
				return nil, x.deliver(resp)
			}
			_ = resp.Close()
		}
		if !errors.Is(err, relay.ErrAgain) {
			return nil, err
		}
	}
}

// send sends the request to the route's runner. A runner that could not be reached has not seen it, so it waits again.
func (x *exchange) send() (*relay.Response, error) {
	if x.constrained {
		x.suspect()
	}
	if err := x.barred(); err != nil { // since it began to wait
		return nil, err
	}
	x.use()
	s, h := x.s, &x.ctx.Request.Header
	method := methodOf(h.Method())
	scope, tenant := "", s.tenantID(&x.key)
	if x.model.MMProj != "" && x.model.MMCache == catalog.MMCacheKey {
		scope = tenant
	}
	sign := s.cfg.Signer.Sign(rpc.Call{Method: method, Path: string(x.path), Host: x.route.Host, Model: x.model.ID, Scope: scope, Length: len(x.body)})
	// FirstByte and Silence are the last resort against a runner that hangs: its own limits come first.
	x.req = relay.Request{Method: method, Path: x.path, Body: x.body, Fields: x.fields[:0], FirstByte: s.cfg.FirstByte, Silence: s.cfg.FirstByte}
	values := x.scratch[:0]
	add := func(name, value string) {
		n := len(values)
		values = append(values, value...)
		x.req.Add(name, values[n:])
	}
	add(rpc.HeaderAuth, sign)
	add(rpc.HeaderModel, x.model.ID)
	add(rpc.HeaderRequest, x.id)
	if scope != "" {
		add(rpc.HeaderScope, scope)
	}
	if tenant != "" {
		add(rpc.HeaderTenant, tenant)
	}
	if x.info.Ticket != "" {
		add(rpc.HeaderTicket, x.info.Ticket)
		if x.info.Together > 1 {
			add(rpc.HeaderWaited, strconv.Itoa(x.info.Together))
		}
	}
	if x.hit.Route.Body == api.BodyJSON {
		x.req.Add("Content-Type", jsonType) // whatever the client called it
	} else if v := h.ContentType(); len(v) > 0 {
		x.req.Add("Content-Type", v)
	}
	if v := h.Peek("Accept"); len(v) > 0 {
		x.req.Add("Accept", v)
	}
	if v := h.Peek(rpc.HeaderPriority); string(v) == "low" || string(v) == "high" && x.key.High {
		x.req.Add(rpc.HeaderPriority, v)
	}
	resp, err := s.clients.of(x.route.Addr, s.cfg.Mirror.Snapshot).Start(&x.link, &x.req)
	if err == nil {
		return resp, nil
	}
	var re *relay.Error
	if errors.As(err, &re) && !re.Sent && !errors.Is(err, relay.ErrCancelled) {
		s.log.Warn("runner not reached", "host", x.route.Host, "request", x.id, "error", err)
		return nil, x.again(api.New(api.HostUnreachable, "The model's host could not be reached; try again.").WithCause(err))
	}
	return nil, err
}

// tenantID names the holder of a key to runners; "" where no keys are configured.
func (s *Server) tenantID(key *keys.Key) string {
	if !s.cfg.Keys.Configured() {
		return ""
	}
	if name, known := s.tenants.Load(key.Account); known {
		return name.(string)
	}
	name := s.cfg.Signer.Scope(key.Digest)
	s.tenants.Store(key.Account, name)
	return name
}

var jsonType = []byte("application/json")

// use counts the request at its route and notes the use of the model; HEAD is no use.
func (x *exchange) use() {
	if x.inUse {
		return
	}
	x.inUse = true
	x.s.cfg.Gate.Begin(x.route, x.model.ID)
	x.touch()
}

func (x *exchange) touch() {
	if !x.hit.Head {
		x.s.touch(x.route.Host, x.model.ID)
	}
}

// leave takes back what use did.
func (x *exchange) leave() {
	if x.inUse {
		x.inUse = false
		x.s.cfg.Gate.End(x.route, x.model.ID)
		x.touch()
	}
}

// maxErrorBody is how much of a runner's error answer is read.
const maxErrorBody = 1 << 20

// checkResponse looks at the head of a runner's answer: nil for one to relay, relay.ErrAgain for a refusal, else the error for
// the client. A runner that refused has shown the request to no engine (infra/rpc).
func (x *exchange) checkResponse(resp *relay.Response) error {
	status := resp.Status()
	switch {
	case status == rpc.StatusRefused:
		return x.refusal(resp)
	case status == api.EngineCrashed.Status() && string(resp.Header(rpc.HeaderCode)) == api.EngineCrashed.Code():
		return x.crashed(api.New(api.EngineCrashed, "The engine ended before its answer was complete."))
	case x.raw && status < 500: // an engine's 5xx may quote its own code
		return nil
	case status < 300 && isPage(resp):
		return api.NotUnderstood().WithCause(fmt.Errorf("content type %.100q", resp.ContentType()))
	case status < 300:
		return nil
	case status < 400: // a client that follows it would show its key there
		return api.NotUnderstood().WithCause(fmt.Errorf("a redirect to %.100q", resp.Header("Location")))
	}
	body, err := resp.AppendBody(nil, maxErrorBody)
	if err != nil {
		body = nil
	}
	e := api.NormalizeError(status, body, x.route.Host)
	if code := resp.Header(rpc.HeaderCode); len(code) > 0 {
		if k, ok := api.KindOf(string(code), status); ok {
			return api.New(k, e.Message)
		}
	}
	return e
}

// isPage reports an answer in the form of a web page, as web servers and proxies give; no engine does.
func isPage(resp *relay.Response) bool {
	media, _, _ := bytes.Cut(resp.ContentType(), []byte(";"))
	switch strings.ToLower(string(bytes.TrimSpace(media))) {
	case "text/html", "application/xhtml+xml", "image/svg+xml":
		return true
	}
	return false
}

func (x *exchange) refusal(resp *relay.Response) error {
	reason := string(resp.Header(rpc.HeaderRefused))
	switch {
	case reason == rpc.RefusedAuth && !x.signedAgain:
		// The clocks differ, or much later calls overtook this one: try once more, with a new signature.
		x.signedAgain, x.routed = true, true
		if ms, err := strconv.ParseInt(string(resp.Header(rpc.HeaderTime)), 10, 64); err == nil {
			x.s.cfg.Signer.Correct(x.route.Host, ms)
		}
		return relay.ErrAgain
	case reason == rpc.RefusedAuth:
		return api.New(api.InternalError, "The model's host does not accept this gateway.").
			WithCause(errors.New("runner " + x.route.Host + " refused the signature: is --runner-secret the same, and is its clock right?"))
	case reason == rpc.RefusedHost:
		return x.again(api.New(api.HostUnreachable, "The model's host could not be reached; try again."))
	}
	return x.again(api.Newf(api.ModelLoading, "The model '%s' is not ready yet; try again.", x.model.ID))
}

// deliver sets an answer on the response.
func (x *exchange) deliver(resp *relay.Response) error {
	if v := resp.Header(rpc.HeaderMedia); len(v) > 0 {
		x.ctx.Response.Header.SetBytesV(api.HeaderMediaCache, v)
	}
	if x.answer != nil {
		err := x.answer(x, resp)
		_ = resp.Close()
		return err
	}
	if !x.raw && resp.Status() == fasthttp.StatusOK && isEvents(resp) {
		x.sendStream(x.events(resp))
		return nil
	}
	if x.lines != nil {
		return errNoStream()
	}
	x.modelHeaders()
	x.s.m.answer(x.routeName(), resp.Status())
	x.ctx.SetStatusCode(resp.Status())
	x.ctx.Response.Header.SetContentTypeBytes(resp.ContentType())
	for _, name := range relayed {
		if v := resp.Header(name); len(v) > 0 {
			x.ctx.Response.Header.SetBytesV(name, v)
		}
	}
	resp.OnEnd = x.finish
	x.sendBody(resp, resp.Size())
	return nil
}

// relayed are the headers of an engine's answer that go on to the client besides its type and length.
var relayed = [...]string{"Content-Encoding", "Content-Disposition", "Location"}

func isEvents(resp *relay.Response) bool {
	return bytes.HasPrefix(resp.ContentType(), []byte("text/event-stream"))
}

// left is called by the watcher when the client went away.
func (x *exchange) left() { x.abandon(relay.ErrGone) }

// abandon ends the exchange from outside, whatever it waits for.
func (x *exchange) abandon(cause error) {
	x.link.Cancel(cause)
	if w := x.waiter.Load(); w != nil {
		w.Leave(false)
	}
	if x.constrained {
		x.s.suspects.lookAgain()
	}
}

// finish ends the exchange: the watch, the counts, the statistics. Only the first call counts.
func (x *exchange) finish(err error) {
	if x.done {
		return
	}
	x.done = true
	x.watch.Stop()
	x.s.under.remove(x)
	if w := x.waiter.Swap(nil); w != nil {
		w.Leave(false)
	}
	x.leave()
	x.unsuspect(clientGone(err))
	if x.open {
		x.s.uses.stream(x.model.ID, -1)
	}
	x.account.End()
	x.s.m.open.Add(-1)
	x.s.m.seconds.UpdateDuration(x.began)
	if x.tap != nil {
		x.finishTap(err)
	}
	if x.after != nil && err == nil {
		x.after()
	}
	x.body = nil
	if x.handed {
		x.dropBody()
	}
}

// finishTap records the usage that the answer reported, or logs how the answer broke off.
func (x *exchange) finishTap(err error) {
	switch {
	case err == nil:
		note(x.s.cfg.Usage, x.began, x.tap)
		x.s.cfg.Usage.Served(x.route.Host, x.model.ID)
	case clientGone(err):
		x.s.log.Debug("client left during the answer", "request", x.id, "model", x.model.ID)
	default:
		x.s.m.broken.Inc()
		x.s.log.Warn("answer broke off", "request", x.id, "model", x.model.ID, "error", err)
	}
	x.tap.release()
}

// asError turns an error of the exchange into the one that the client gets.
func (x *exchange) asError(err error) *api.Error {
	var e *api.Error
	var told *relay.EventError
	switch {
	case errors.As(err, &e):
		return e
	case errors.As(err, &told): // from the engine, or from the runner with a code of our own table
		return api.NormalizeEvent(told.Data, x.route.Host)
	case errors.Is(err, relay.ErrTimeout):
		return api.New(api.UpstreamTimeout, "The model did not answer in time.").WithCause(err)
	case errors.Is(err, relay.ErrTooLarge):
		return api.New(api.InvalidRequest, "The answer is too long: reduce 'max_tokens', 'n', the log-probabilities or the inputs.").WithCause(err)
	case errors.Is(err, relay.ErrBadReply):
		return api.NotUnderstood().WithCause(err)
	case errors.Is(err, relay.ErrBroken), errors.Is(err, relay.ErrUnreachable), errors.Is(err, relay.ErrCancelled):
		return api.New(api.RunnerFailed, "The model's host broke off before the answer was complete.").WithCause(err)
	}
	return api.As(err)
}
