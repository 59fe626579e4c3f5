package httpapi

import (
	"errors"
	"fmt"
	"mime"
	"strconv"
	"time"

	"reveille/gateway/api"
	"reveille/gateway/keys"
	"reveille/infra/catalog"
	"reveille/infra/jsonscan"
	"reveille/infra/policy"
	"reveille/infra/relay"
	"reveille/infra/rpc"
	"reveille/infra/trace"
)

// attempts is the state of a request's attempts at runners. At most one is in progress.
type attempts struct {
	// Of the attempt in progress.
	admission   relay.LocalRequest // by a runner of this process, from awaitTurn until sendToRunner
	counted     bool               // the endpoint counts the request
	sent        time.Time          // when it was sent to the endpoint
	req         relay.Request
	cacheTenant string // the tenant whose encoder cache and conversations it uses; empty if all tenants share them
	fields      [10]relay.Field
	scratch     [320]byte // the values of its fields

	// Of all attempts.
	link         relay.Canceler // ends the attempt in progress, and lets no other start
	promptTokens int64          // the estimated tokens of the prompt, once an engine may have the request
	signedAgain  bool           // signed again after a runner rejected a signature
	repeated     bool           // repeated after its engine crashed
}

// LocalRunner takes requests of gateways in its own process without HTTP, see [relay.LocalRequest]. The request must
// not be one for a WebSocket.
type LocalRunner interface {
	Admit(gateway string, from *relay.Canceler, req *relay.Request) relay.LocalRequest
}

// errRetry sends an exchange back to awaitTurn.
var errRetry = errors.New("try again")

// attemptUntilResponse makes attempts until x.resp is a response that checkResponse accepts. It returns
// relay.ErrPending if the given time comes first, and goes on when it is called again; the zero time never comes.
func (x *exchange) attemptUntilResponse(until time.Time) error {
	for {
		err := x.attemptOnce(until)
		if err == nil || err == relay.ErrPending {
			return err
		}
		x.closeResponse()
		if !errors.Is(err, errRetry) {
			return err
		}
	}
}

func (x *exchange) attemptOnce(until time.Time) error {
	if x.resp == nil {
		ready, err := x.awaitTurn(until)
		if err != nil {
			return err
		}
		if !ready {
			return relay.ErrPending
		}
		if x.resp, err = x.sendToRunner(); err != nil {
			return err
		}
	}
	if err := x.resp.Await(until); err != nil {
		return err
	}
	return x.checkResponse(x.resp)
}

// awaitTurn waits until sendToRunner can follow, at most until the given time: for an endpoint, and for the request's
// turn if the runner is in this process.
func (x *exchange) awaitTurn(until time.Time) (bool, error) {
	if have, err := x.acquireEndpoint(until); !have || err != nil {
		return have, err
	}
	if x.try.admission == nil {
		local := x.localRunner()
		if local == nil {
			return true, nil
		}
		if err := x.buildAttempt(); err != nil {
			return false, err
		}
		x.try.admission = local.Admit(x.call.s.cfg.Signer.Gateway(), &x.try.link, &x.try.req)
	}
	return x.try.admission.Wait(until), nil
}

// localRunner returns the endpoint's runner if it is in this process. WebSockets and responses that pass through
// unchanged need a connection, so they never go this way.
func (x *exchange) localRunner() LocalRunner {
	if x.call.s.cfg.LocalRunner == nil || x.raw || x.upgrade {
		return nil
	}
	return x.call.s.cfg.LocalRunner(x.routing.endpoint.Host, x.routing.endpoint.Addr)
}

// sendToRunner sends the request to its endpoint, after awaitTurn. A runner that could not be reached has not seen the
// request, so the request waits again.
func (x *exchange) sendToRunner() (*relay.Response, error) {
	if t := x.try.admission; t != nil {
		x.try.admission, x.try.promptTokens = nil, int64(x.call.textBytes/4)
		return t.Start()
	}
	if err := x.buildAttempt(); err != nil {
		return nil, err
	}
	s := x.call.s
	call := rpc.Call{Method: x.try.req.Method, Path: string(x.path), Host: x.routing.endpoint.Host, Model: x.call.model.ID, CacheTenant: x.try.cacheTenant, Length: len(x.call.body)}
	x.try.req.Add(rpc.HeaderAuth, []byte(s.cfg.Signer.Sign(call)))
	x.try.promptTokens = int64(x.call.textBytes / 4)
	resp, err := s.registry.Client(x.routing.endpoint.Addr, x.routing.endpoint.TLS).Start(&x.try.link, &x.try.req)
	if err == nil {
		return resp, nil
	}
	if re, ok := errors.AsType[*relay.Error](err); ok && !re.Sent && !errors.Is(err, relay.ErrCanceled) {
		s.log.Warn("could not reach the runner", "host", x.routing.endpoint.Host, "request", x.call.ID, "error", err)
		return nil, x.retryAtGate(api.New(api.HostUnreachable, "The model's host could not be reached. Retry the request.").WithCause(err))
	}
	return nil, err
}

// buildAttempt counts the request at its endpoint and makes what is sent there, but for the signature.
func (x *exchange) buildAttempt() error {
	if err := x.call.s.crashes.Check(x.call.Account, x.call.model.ID, time.Now()); err != nil { // changed meanwhile
		return err
	}
	if !x.call.Key.Allows(x.call.model.ID) { // the models file has changed while the request waited
		return api.New(api.InsufficientScope, "This key may not use the model '"+x.call.model.ID+"'.").WithParam("model")
	}
	x.try.sent = time.Now()
	x.countOpen()
	s, h := x.call.s, &x.call.Ctx.Request.Header
	tenant, cacheTenant := "", ""
	if s.cfg.Keys.Configured() {
		tenant = s.tenant(&x.call.Key)
	}
	if x.call.model.MMProj != "" && x.call.model.MMCache == catalog.SharePerKey || x.call.model.Conversations == catalog.SharePerKey {
		cacheTenant = tenant
	}
	x.try.cacheTenant = cacheTenant
	// FirstByte and Silence are the last resort against a runner that hangs; its own limits take effect first.
	x.try.req = relay.Request{Method: methodOf(h.Method()), Path: x.path, Body: x.call.body, Fields: x.try.fields[:0], FirstByte: s.cfg.FirstByte, Silence: s.cfg.FirstByte}
	values := x.try.scratch[:0]
	add := func(name, value string) {
		n := len(values)
		values = append(values, value...)
		x.try.req.Add(name, values[n:])
	}
	add(rpc.HeaderModel, x.call.model.ID)
	add(rpc.HeaderRequest, x.call.ID)
	if x.call.engineStreams {
		add(rpc.HeaderStream, "1")
	}
	if cacheTenant != "" {
		add(rpc.HeaderCacheTenant, cacheTenant)
	}
	if tenant != "" {
		add(rpc.HeaderTenant, tenant)
	}
	if x.call.passive {
		add(rpc.HeaderBackground, "1")
	}
	if x.routing.info.Ticket != "" {
		add(rpc.HeaderTicket, x.routing.info.Ticket)
		if x.routing.info.Waiters > 1 {
			add(rpc.HeaderWaited, strconv.Itoa(x.routing.info.Waiters))
		}
	}
	switch v := h.ContentType(); {
	case x.call.Match.Route.Body == api.BodyJSON:
		x.try.req.Add("Content-Type", jsonType) // whatever the client sent
	case x.call.Match.Route.Body == api.BodyForm: // with quotes where a strict reader wants them
		boundary, _ := jsonscan.Boundary(string(v))
		x.try.req.Add("Content-Type", []byte(mime.FormatMediaType("multipart/form-data", map[string]string{"boundary": boundary})))
	case len(v) > 0:
		x.try.req.Add("Content-Type", v)
	}
	if v := h.Peek("Accept"); len(v) > 0 {
		x.try.req.Add("Accept", v)
	}
	if priority := x.call.priority(); priority != "" {
		x.try.req.Add(rpc.HeaderPriority, []byte(priority))
	}
	if x.upgrade {
		x.try.req.AddWebSocket(h)
	}
	if n := len(values); x.call.observed != nil {
		if values = x.call.observed.beginAttempt(x, values); len(values) > n {
			x.try.req.Add(trace.Header, values[n:])
		}
	}
	return nil
}

// tenant names a key's holder to runners and in the pool's state.
func (s *Server) tenant(key *keys.Key) string { return s.cfg.Signer.Tenant(key.Digest) }

var jsonType = []byte("application/json")

// countOpen counts the request at its endpoint and records the use of the model.
func (x *exchange) countOpen() {
	if !x.try.counted {
		x.try.counted = true
		x.routing.endpoint.Begin(x.call.passive)
		x.touchModel()
	}
}

// touchModel records that the model is used now. HEAD is no use, and neither is a request in the background.
func (x *exchange) touchModel() {
	if !x.call.passive {
		x.call.s.registry.Uses.Note(x.routing.endpoint.Host, x.call.model.ID)
	}
}

// uncountOpen undoes countOpen.
func (x *exchange) uncountOpen() {
	if x.try.counted {
		x.try.counted = false
		x.routing.endpoint.End(x.call.passive)
		x.touchModel()
	}
}

// maxErrorBody is how much of a runner's error response is read.
const maxErrorBody = 1 << 20

// checkResponse checks the head of a runner's response. nil means relay it, errRetry means that the runner refused,
// any other error is for the client. A runner that refuses has not passed the request to an engine (infra/rpc).
func (x *exchange) checkResponse(resp *relay.Response) error {
	status := resp.Status()
	switch {
	case status == rpc.StatusRefused && len(resp.Header(rpc.HeaderRefused)) > 0: // not the engine's own status
		return x.handleRefusal(resp)
	case status == api.EngineCrashed.Status() && string(resp.Header(rpc.HeaderCode)) == rpc.CodeEngineCrashed:
		return x.handleCrash(api.New(api.EngineCrashed, "The engine crashed before the response was complete."))
	case status == api.RunnerFailed.Status() && string(resp.Header(rpc.HeaderCode)) == rpc.CodeRunnerFailed:
		return x.handleCrash(api.New(api.RunnerFailed, "The connection to the engine was lost before the response was complete."))
	case x.upgrade && status < 500:
		return nil // deliverWebSocket passes nothing but a handshake on; FastAPI refuses unknown paths with 403
	case x.raw && status < 500 && status != 401 && status != 403:
		return nil // an engine's 5xx may quote its own code, and its 401 is about the gateway's key
	case status < 300 && api.IsWebPage(resp.ContentType()) && x.call.Match.Route.Type != policy.Audio:
		return api.InvalidEngineResponse().WithCause(fmt.Errorf("content type %.100q", resp.ContentType()))
	case status < 300:
		return nil
	case status < 400: // a client that follows the redirect would send its key there
		return api.InvalidEngineResponse().WithCause(fmt.Errorf("a redirect to %.100q", resp.Header("Location")))
	}
	body, err := resp.AppendBody(nil, maxErrorBody)
	if err != nil {
		body = nil
	}
	return clientError(resp, body, x.routing.endpoint.Host)
}

// clientError returns the client's error for an error response from a runner or its engine.
func clientError(resp *relay.Response, body []byte, host string) *api.Error {
	e := api.NormalizeError(resp.Status(), body, host)
	if k, ok := api.KindOf(string(resp.Header(rpc.HeaderCode)), resp.Status()); ok {
		return api.New(k, e.Message)
	}
	return e
}

func (x *exchange) handleRefusal(resp *relay.Response) error {
	reason := string(resp.Header(rpc.HeaderRefused))
	switch {
	case reason == rpc.RefusedAuth && !x.try.signedAgain:
		// The clocks differ, or calls sent much later overtook this one: try once more with a new signature.
		x.try.signedAgain = true
		if ms, err := strconv.ParseInt(string(resp.Header(rpc.HeaderTime)), 10, 64); err == nil {
			x.call.s.cfg.Signer.Correct(x.routing.endpoint.Host, ms)
		}
		return errRetry
	case reason == rpc.RefusedAuth:
		return api.New(api.InternalError, "The model's host does not accept this gateway.").
			WithCause(errors.New("runner " + x.routing.endpoint.Host + " refused the signature: is --runner-secret the same, and is its clock right?"))
	case reason == rpc.RefusedSentBack:
		return x.retryElsewhere()
	case reason == rpc.RefusedHost:
		return x.retryAtGate(api.New(api.HostUnreachable, "The model's host could not be reached. Retry the request."))
	}
	return x.retryAtGate(x.errNotReady())
}
