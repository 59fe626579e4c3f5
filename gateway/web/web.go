// Package web is one request at the gateway as its handlers see it: what it asks for, which key it has, and how to
// respond.
package web

import (
	"bufio"
	"time"

	"github.com/valyala/fasthttp"

	"reveille/gateway/api"
	"reveille/gateway/keys"
	"reveille/gateway/quota"
	"reveille/infra/jsonscan"
	"reveille/infra/relay"
)

// Server is what the requests of one server share.
type Server struct {
	Watcher       *relay.Watcher
	CountResponse func(route string, status int) // counts a response
	LocalAdmin    func(*Request) error           // refuses a request without the local admin key, on a gateway without keys
	OnPanic       func(what string, v any)       // counts and logs a panic that was recovered
}

// RecoverPanic keeps a panic of what a goroutine does for one request, or for one part of the server, from ending the
// process. It must be deferred.
func (s *Server) RecoverPanic(what string) {
	if v := recover(); v != nil {
		s.OnPanic(what, v)
	}
}

// Request is one request on a route of the table. It belongs to the connection's goroutine.
type Request struct {
	*Server
	Ctx   *fasthttp.RequestCtx
	ID    string
	Match api.RouteMatch

	Key     keys.Key       // without configured keys, one with every scope and no account
	Account *quota.Account // of its key; nil without keys
	Began   time.Time

	fields []jsonscan.Value // of the body, in the order of the route's keys; nil until it is checked
}

// CountResponse counts the request's response.
func (r *Request) CountResponse(status int) { r.Server.CountResponse(r.RouteName(), status) }

// Watch calls left, from another goroutine, when the client leaves, until the watch is stopped.
func (r *Request) Watch(left func()) *relay.Watch { return r.Watcher.Arm(r.Ctx.Conn(), left) }

// NeedsLocalAdmin refuses a request without the local admin key on a gateway without keys. It is for routes on which
// only some requests need it; where keys are configured, the route's scope was checked already.
func (r *Request) NeedsLocalAdmin() error { return r.LocalAdmin(r) }

// Manages reports whether the request's key has the scope manage.
func (r *Request) Manages() bool { return r.Key.Scopes&keys.Manage != 0 }

// Stream responds with what write writes until it returns, flushed piece by piece. After a panic in it the connection
// is closed, so that the client sees that the response is not complete.
func (r *Request) Stream(write func(*bufio.Writer)) {
	server, route, conn := r.Server, r.RouteName(), r.Ctx.Conn() // the request is recycled before the stream runs
	r.Ctx.Response.ImmediateHeaderFlush = true
	r.Ctx.SetBodyStreamWriter(func(w *bufio.Writer) {
		complete := false
		defer server.RecoverPanic(route)
		defer func() {
			if !complete {
				_ = conn.Close()
			}
		}()
		write(w)
		complete = true
	})
}

func (r *Request) RouteName() string {
	if r.Match.Route == nil {
		return "other"
	}
	return r.Match.Route.Name
}
