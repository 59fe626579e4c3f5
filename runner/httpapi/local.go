package httpapi

import (
	"bytes"
	"errors"
	"net"
	"time"

	"github.com/valyala/fasthttp"

	"reveille/infra/relay"
	"reveille/infra/rpc"
)

// localRequest is a request of a gateway in this process. The gateway's connection goroutine does what infer does, and
// reads the engine's response itself. It implements relay.LocalRequest, and, once the request was sent, relay.ResponseHook.
type localRequest struct {
	activeRequest
	gatewayCanceler *relay.Canceler // cancels the request
	linked          bool            // gatewayCanceler is linked to this request
	reply           *reply          // replaces the engine's response
	capacityDone    chan struct{}   // closed when awaitCapacity has returned; nil unless it runs in a goroutine
}

// Admit admits a request of a gateway in this process, which needs no signature. It does not serve WebSockets. req and
// its contents must not change until the admission is started or dropped. gatewayCanceler cancels the request.
func (s *Server) Admit(gateway string, gatewayCanceler *relay.Canceler, req *relay.Request) relay.LocalRequest {
	target, _, _ := bytes.Cut(req.Path, []byte("?"))
	a := &localRequest{gatewayCanceler: gatewayCanceler, activeRequest: activeRequest{s: s, started: time.Now(), modelRequest: modelRequest{
		gateway: gateway, method: req.Method, path: string(target), target: req.Path, body: req.Body, size: len(req.Body),
		field: func(name string) []byte {
			for i := range req.Fields {
				if req.Fields[i].Name == name {
					return req.Fields[i].Value
				}
			}
			return nil
		},
	}}}
	a.model = string(a.field(rpc.HeaderModel))
	if a.linked = gatewayCanceler.Link(a.cancelWith); a.linked {
		a.reply = a.acquireEngine()
	}
	return a
}

// Wait implements relay.LocalRequest.
func (a *localRequest) Wait(until time.Time) bool {
	if a.capacityDone == nil {
		if !a.linked || a.reply != nil || a.batcher() != nil {
			return true
		}
		if acquired := a.tryPermit(); until.IsZero() || acquired && a.slotTable() == nil {
			a.reply = a.awaitCapacitySafely()
			return true
		}
		a.capacityDone = make(chan struct{})
		go func() {
			defer close(a.capacityDone)
			a.reply = a.awaitCapacitySafely()
		}()
	}
	limit := time.NewTimer(time.Until(until))
	defer limit.Stop()
	select {
	case <-a.capacityDone:
		return true
	case <-limit.C:
		return false
	}
}

// awaitCapacitySafely is awaitCapacity with a reply for a panic, since the process has other requests.
func (a *localRequest) awaitCapacitySafely() (r *reply) {
	defer func() {
		if p := recover(); p != nil {
			r = a.panicked(p)
		}
	}()
	return a.awaitCapacity()
}

// Start implements relay.LocalRequest.
func (a *localRequest) Start() (resp *relay.Response, err error) {
	defer func() {
		if p := recover(); p != nil {
			resp, err = a.panicked(p).writeTo(new(relay.Response)), nil
		}
	}()
	if a.reply == nil && a.linked {
		if q := a.batcher(); q != nil {
			var b bytes.Buffer
			if r, served := a.serveBatched(q, &b); served && r == nil {
				a.reply = &reply{status: fasthttp.StatusOK, kind: vectorsType, body: b.Bytes()}
			} else if a.reply = r; !served {
				a.reply = a.awaitCapacity()
			}
		}
	}
	if a.reply == nil && a.linked {
		if resp, err = a.sendToEngine(); err == nil {
			resp.Hook = a
			return resp, nil
		}
		a.reply = a.engineFailed(err)
		a.completeLocal(err)
	}
	a.unlink()
	if cause := a.gatewayCanceler.Cause(); cause != nil {
		a.completeLocal(cause)
		return nil, &relay.Error{Kind: relay.ErrCanceled, Cause: cause}
	}
	return a.reply.writeTo(new(relay.Response)), nil
}

// panicked completes the request after a panic.
func (a *localRequest) panicked(p any) *reply {
	r := a.s.panicked(p)
	a.completeLocal(errNoResponse)
	return r
}

// Drop implements relay.LocalRequest.
func (a *localRequest) Drop() {
	a.cancelWith(relay.ErrClientGone)
	if a.capacityDone != nil {
		<-a.capacityDone
	}
	a.completeLocal(relay.ErrClientGone)
}

// completeLocal completes the request, if it was admitted.
func (a *localRequest) completeLocal(err error) {
	a.unlink()
	if a.ref != nil {
		a.complete(err)
	}
}

func (a *localRequest) unlink() {
	if a.linked {
		a.gatewayCanceler.Unlink()
	}
}

// Head implements relay.ResponseHook: it does what infer does before it relays a response.
func (a *localRequest) Head(resp *relay.Response, err error) (out error) {
	defer func() {
		if p := recover(); p != nil {
			a.panicked(p).writeTo(resp)
			out = nil
		}
	}()
	if err == nil {
		resp.StripHeaders()
	}
	if err = a.checkResponse(resp, err, resp); err == nil {
		return nil
	}
	if a.gatewayCanceler.Cause() != nil {
		return err
	}
	a.completeLocal(err)
	a.engineFailed(err).writeTo(resp)
	return nil
}

// OnError implements relay.ResponseHook. In an event stream the error is that of errorEvent.
func (a *localRequest) OnError(resp *relay.Response, err error) error {
	if a.gatewayCanceler.Cause() != nil || !resp.IsEvents() || resp.Status() != fasthttp.StatusOK {
		return err
	}
	_, code, message := a.describeError(err)
	return &relay.EventError{Data: errorBody(code, message), Cause: err}
}

// End implements relay.ResponseHook.
func (a *localRequest) End(err error) {
	if errors.Is(err, net.ErrClosed) { // the gateway did not read to the end
		err = relay.ErrClientGone
	}
	a.completeLocal(err)
}
