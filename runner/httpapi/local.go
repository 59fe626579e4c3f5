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

// localExchange is an exchange with a gateway of this process: the gateway's connection goroutine does what that of infer does, and
// reads the engine's answer itself. It implements relay.Admission, and relay.Hop once the request was sent.
type localExchange struct {
	exchange
	from   *relay.Call   // the gateway's; cancels the exchange
	linked bool          // from does
	reply  *reply        // instead of the engine's answer
	ready  chan struct{} // closed once Start may follow, nil unless it waits for that
}

// Admit admits a request of a gateway in this process, which needs no signature. It is not for WebSockets. The request and what
// it holds must stay as they are until the admission has been started or dropped; from ends the exchange.
func (s *Server) Admit(gateway string, from *relay.Call, req *relay.Request) relay.Admission {
	target, _, _ := bytes.Cut(req.Path, []byte("?"))
	x := &localExchange{from: from, exchange: exchange{s: s, began: time.Now(), modelRequest: modelRequest{
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
	x.model = string(x.field(rpc.HeaderModel))
	if x.linked = from.Link(x.cancel); x.linked {
		x.reply = x.acquire()
	}
	return x
}

// Wait implements relay.Admission.
func (x *localExchange) Wait(until time.Time) bool {
	if x.ready == nil {
		if !x.linked || x.reply != nil || x.queue() != nil {
			return true
		}
		if ready := x.tryPermit(); until.IsZero() || ready && x.table() == nil {
			x.reply = x.awaited()
			return true
		}
		x.ready = make(chan struct{})
		go func() {
			defer close(x.ready)
			x.reply = x.awaited()
		}()
	}
	limit := time.NewTimer(time.Until(until))
	defer limit.Stop()
	select {
	case <-x.ready:
		return true
	case <-limit.C:
		return false
	}
}

// awaited is await that answers a panic, since the program has other requests.
func (x *localExchange) awaited() (r *reply) {
	defer func() {
		if p := recover(); p != nil {
			r = x.panicked(p)
		}
	}()
	return x.await()
}

// Start implements relay.Admission.
func (x *localExchange) Start() (resp *relay.Response, err error) {
	defer func() {
		if p := recover(); p != nil {
			resp, err = x.panicked(p).answer(new(relay.Response)), nil
		}
	}()
	if x.reply == nil && x.linked {
		if q := x.queue(); q != nil {
			var b bytes.Buffer
			if r, served := x.embed(q, &b); served && r == nil {
				x.reply = &reply{status: fasthttp.StatusOK, kind: vectors, body: b.Bytes()}
			} else if x.reply = r; !served {
				x.reply = x.await()
			}
		}
	}
	if x.reply == nil && x.linked {
		if resp, err = x.send(); err == nil {
			resp.Hop = x
			return resp, nil
		}
		x.reply = x.engineFailed(err)
		x.end(err)
	}
	x.unlink()
	if cause := x.from.Cause(); cause != nil {
		x.end(cause)
		return nil, &relay.Error{Kind: relay.ErrCancelled, Cause: cause}
	}
	return x.reply.answer(new(relay.Response)), nil
}

// panicked ends the exchange after a panic.
func (x *localExchange) panicked(p any) *reply {
	r := x.s.panicked(p)
	x.end(errUnanswered)
	return r
}

// Drop implements relay.Admission.
func (x *localExchange) Drop() {
	x.cancel(relay.ErrGone)
	if x.ready != nil {
		<-x.ready
	}
	x.end(relay.ErrGone)
}

// end ends the exchange, if it was admitted.
func (x *localExchange) end(err error) {
	x.unlink()
	if x.ref != nil {
		x.finish(err)
	}
}

func (x *localExchange) unlink() {
	if x.linked {
		x.from.Unlink()
	}
}

// Head implements relay.Hop: it does what infer does before it passes an answer on.
func (x *localExchange) Head(resp *relay.Response, err error) (out error) {
	defer func() {
		if p := recover(); p != nil {
			x.panicked(p).answer(resp)
			out = nil
		}
	}()
	if err == nil {
		resp.StripHeaders()
	}
	if err = x.check(resp, err, resp); err == nil {
		return nil
	}
	if x.from.Cause() != nil {
		return err
	}
	x.end(err)
	x.engineFailed(err).answer(resp)
	return nil
}

// Broke implements relay.Hop. In a stream of events the error is what lastEvent would say.
func (x *localExchange) Broke(resp *relay.Response, err error) error {
	if x.from.Cause() != nil || !resp.IsEvents() || resp.Status() != fasthttp.StatusOK {
		return err
	}
	_, code, message := x.describeError(err)
	return &relay.EventError{Data: errorBody(code, message), Cause: err}
}

// End implements relay.Hop.
func (x *localExchange) End(err error) {
	if errors.Is(err, net.ErrClosed) { // the gateway did not read to the end
		err = relay.ErrGone
	}
	x.end(err)
}
