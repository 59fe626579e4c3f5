package relay

import (
	"errors"
	"fmt"
	"strings"
)

// Kinds of failure. Every failed exchange returns an *Error that matches exactly one of them with errors.Is.
var (
	// ErrUnreachable: no connection could be made, or it took no byte, so the upstream never saw the request.
	ErrUnreachable = errors.New("upstream unreachable")
	// ErrBroken: the connection ended after all or part of the request was sent.
	ErrBroken = errors.New("upstream connection broke")
	// ErrInvalidResponse: the response is not HTTP/1.x, or its framing is malformed.
	ErrInvalidResponse = errors.New("invalid upstream response")
	// ErrTooLarge: the response, or a line of its stream, exceeds its limit.
	ErrTooLarge = errors.New("upstream response too large")
	// ErrTimeout: the head was not complete, or the body did not start, within Request.FirstByte; the body was silent for
	// Request.Silence; or the upstream stopped accepting the request.
	ErrTimeout = errors.New("upstream timed out")
	// ErrCanceled: Canceler.Cancel was called. The error also matches the cause given to Cancel.
	ErrCanceled = errors.New("exchange canceled")
	// ErrClosed: the Client was closed; nothing was sent.
	ErrClosed = errors.New("client closed")
)

var (
	// ErrClientGone is the cause for canceling an exchange whose client has left. A failed write to the client matches it.
	ErrClientGone = errors.New("client gone")
	// ErrPending: Response.Await or Next reached the given time. It can be called again.
	ErrPending = errors.New("no response yet")
	// ErrBadRequest: the Request holds bytes that are not allowed in a request line or a header. Nothing was sent.
	ErrBadRequest = errors.New("request cannot be written")
)

// Error says how an exchange failed and how far it got.
type Error struct {
	// Kind is one of the kinds above.
	Kind error
	// Cause is the underlying error, or nil. It never quotes bytes of the response.
	Cause error
	// Sent reports that at least one byte of the request may have reached the upstream. If it is false, the request can
	// safely be sent elsewhere.
	Sent bool
}

// Error describes the failure in one line, without bytes of the request or the response.
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

// Unwrap returns the kind and the cause for errors.Is and errors.As.
func (e *Error) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Cause}
}

// EventError is an error that an upstream reported in an event of its stream.
type EventError struct {
	Data  []byte // data of the event; JSON from a sane upstream
	Cause error  // from a ResponseHook, if it ended the stream; nil for an event that came from the upstream
}

// Unwrap returns the cause.
func (e *EventError) Unwrap() error { return e.Cause }

func (e *EventError) Error() string { return fmt.Sprintf("error event: %.200q", e.Data) }
