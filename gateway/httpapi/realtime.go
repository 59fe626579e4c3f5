package httpapi

import (
	"fmt"
	"net/url"
	"time"

	"github.com/valyala/fasthttp"

	"reveille/gateway/api"
	"reveille/infra/relay"
)

// webSocketIdle is how long a WebSocket may carry nothing in either direction. Pings count.
const webSocketIdle = 5 * time.Minute

// realtime passes a WebSocket through to the engine of the model that the query names. It counts as one request for as
// long as it is open. Of the query, the engine gets the model and the intent.
func (s *Server) realtime(r *request) error {
	if !relay.IsWebSocketHandshake(&r.Ctx.Request.Header) {
		return api.New(api.InvalidRequest, "This path takes WebSockets only: a GET with 'Upgrade: websocket' and version 13.")
	}
	name := r.Query("model")
	model, err := s.registry.Resolve(&r.Key, name, r.Match.Route)
	if err != nil {
		return err
	}
	if r.Account.CountsTokens() {
		return api.New(api.InsufficientScope, "This key has a limit of tokens, which this gateway cannot count on a WebSocket; use a key without one.")
	}
	query := url.Values{"model": {model.ID}}
	if v := r.Query("intent"); v != "" {
		query.Set("intent", v)
	}
	c := &inferenceCall{request: r, model: model, requestedModel: name}
	c.markBackground()
	return (&exchange{call: c, path: []byte("/v1/realtime?" + query.Encode()), upgrade: true}).serveInference()
}

// deliverWebSocket responds with the WebSocket that the engine agreed to.
func (x *exchange) deliverWebSocket() error {
	resp := x.resp
	if !resp.AcceptsWebSocket(&x.call.Ctx.Request.Header) {
		return api.Newf(api.NotSupported, "The engine of the model '%s' has no realtime API.", x.call.model.ID).
			WithCause(fmt.Errorf("status %d", resp.Status()))
	}
	x.call.CountResponse(fasthttp.StatusSwitchingProtocols)
	x.call.Ctx.SetStatusCode(fasthttp.StatusSwitchingProtocols)
	x.endsWithResponse, x.resp = true, nil // SwitchTo closes it
	x.call.observed.setEndsWithResponse()
	x.call.s.background.Add(1)
	more := []relay.Field{{Name: api.HeaderRequestID, Value: []byte(x.call.ID)}, {Name: api.HeaderModel, Value: []byte(x.call.model.ID)}}
	resp.SwitchTo(x.call.Ctx, more, webSocketIdle, func(err error) {
		if err != nil {
			x.call.s.log.Info("websocket ended", "request", x.call.ID, "model", x.call.model.ID, "error", err)
		}
		x.completeRequest(err)
		x.call.s.background.Done()
	})
	return nil
}
