package relay

import (
	"errors"
	"strings"
)

// The kinds of failure. Every failed exchange is reported as an *Error that matches exactly one of them with errors.Is.
var (
	// ErrUnreachable: no connection could be made, so the upstream never saw the request.
	ErrUnreachable = errors.New("upstream unreachable")
	// ErrBusy: Config.MaxConns connections are in use; nothing was sent.
	ErrBusy = errors.New("too many upstream connections")
	// ErrBroken: the connection ended after the request, or a part of it, was sent.
	ErrBroken = errors.New("upstream connection broke")
	// ErrBadReply: the answer is not HTTP/1.x, or its framing or an event breaks a rule.
	ErrBadReply = errors.New("bad upstream reply")
	// ErrTooLarge: the answer, or a line of its stream, is longer than the limit for it, or its JSON nests too deep.
	ErrTooLarge = errors.New("upstream reply too large")
	// ErrTimeout: the head or the body did not begin within Request.FirstByte, a body fell silent for Request.Silence,
	// or the upstream stopped taking the request.
	ErrTimeout = errors.New("upstream timed out")
	// ErrCancelled: Call.Cancel was called; the error matches the cause given there as well.
	ErrCancelled = errors.New("call cancelled")
	// ErrClosed: the Client was closed; nothing was sent.
	ErrClosed = errors.New("client closed")
)

var (
	// ErrGone is the cause for cancelling a call whose client has left. A failed write to the client matches it too.
	ErrGone = errors.New("client gone")
	// ErrPending is what Response.Await returns at its time limit: there is no answer yet, and Await may be called again.
	ErrPending = errors.New("no answer yet")
	// ErrAgain, returned by StreamConfig.Open or StreamConfig.Check, sends a held stream back to waiting in Ready.
	ErrAgain = errors.New("wait again")
	// ErrBadRequest: the Request holds bytes that may not stand in a request line or a header; nothing was sent.
	ErrBadRequest = errors.New("request cannot be written")
)

// Error says how an exchange failed and how far it came.
type Error struct {
	// Kind is one of the kinds above.
	Kind error
	// Cause is the underlying error, or nil. It never quotes bytes of the answer.
	Cause error
	// Sent reports that at least one request byte may have reached the upstream. While it is false the request can
	// safely be sent elsewhere.
	Sent bool
	// Got reports that at least one byte of an answer came.
	Got bool
}

// Error describes the failure in one line, without bytes of the request or the answer.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("relay: ")
	b.WriteString(e.Kind.Error())
	if e.Cause != nil {
		b.WriteString(": ")
		b.WriteString(e.Cause.Error())
	}
	return b.String()
}

// Unwrap gives errors.Is and errors.As both the kind and the cause.
func (e *Error) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Cause}
}
