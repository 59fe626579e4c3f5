package api

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"reveille/infra/jsonscan"
	"reveille/infra/term"
)

// Error is an error that a client gets. Message is for the client: no
// path, host name or text of another tenant may be in it. Cause is for the log
// and never sent.
type Error struct {
	Kind       Kind
	Status     int           // HTTP status in the OpenAI dialect
	Type       string        // OpenAI error type
	Code       string        // "" is sent as null
	Message    string        // one or two sentences
	Param      string        // request field at fault, "" when there is none
	RetryAfter time.Duration // when to try again, 0 for no advice
	NoRetry    bool          // a repeat cannot succeed: x-should-retry: false
	Cause      error         // may be nil
	Headers    []Header      // sent with the error, such as Allow
}

// Header is one header field of a response.
type Header struct{ Name, Value string }

// New returns an error of that kind with the table's status, type, code and
// retry advice.
func New(k Kind, message string) *Error {
	r := k.row()
	return &Error{
		Kind: k, Status: r.status, Type: r.typ, Code: r.code, Message: message,
		RetryAfter: r.retry, NoRetry: r.noRetry,
	}
}

// Newf is [New] with a formatted message. %w is not a verb here: what caused
// the error belongs in [Error.WithCause].
func Newf(k Kind, format string, args ...any) *Error {
	return New(k, fmt.Sprintf(format, args...))
}

// WithParam names the request field at fault and returns e.
func (e *Error) WithParam(param string) *Error {
	e.Param = param
	return e
}

// WithCause records what caused the error, for the log, and returns e.
func (e *Error) WithCause(cause error) *Error {
	e.Cause = cause
	return e
}

// WithRetryAfter replaces the retry advice and returns e. Zero or less keeps the
// table's.
func (e *Error) WithRetryAfter(d time.Duration) *Error {
	if d > 0 {
		e.RetryAfter = d
	}
	return e
}

// Error implements error: the code, the message and the cause, for logs.
func (e *Error) Error() string {
	if e.Cause != nil {
		return e.Code + ": " + e.Message + ": " + e.Cause.Error()
	}
	return e.Code + ": " + e.Message
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// Is reports whether target is the error's [Kind].
func (e *Error) Is(target error) bool {
	k, ok := target.(Kind)
	return ok && k == e.Kind
}

// As returns the [*Error] in err's chain. Any other error becomes
// [InternalError] with err as its cause and a message that says nothing about
// it; nil stays nil.
func As(err error) *Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return New(InternalError, "The gateway could not handle this request.").WithCause(err)
}

// ShuttingDown is the response to a request that a draining gateway refuses or cuts.
func ShuttingDown() *Error { return New(Draining, "The gateway is shutting down. Retry the request.") }

// InvalidEngineResponse is the response where an engine's own makes no sense.
func InvalidEngineResponse() *Error {
	return New(BadEngineReply, "The engine's response is invalid.")
}

// NoModel is the response to a request without a model's name.
func NoModel() *Error {
	return New(MissingRequiredParameter, "No model specified. Name one in 'model'.").WithParam("model")
}

// UnknownModel is the response to a name that no model has.
func UnknownModel(name string) *Error {
	return Newf(ModelNotFound, "The model '%s' does not exist.", term.Clip(name, 200)).WithParam("model")
}

// notAllowed is the response to a known path with the wrong method; allow is the
// list of the right ones.
func notAllowed(allow string) *Error {
	e := Newf(MethodNotAllowed, "Method not allowed; this path accepts %s.", allow)
	e.Headers = []Header{{"Allow", allow}}
	return e
}

// Unauthorized is the one response to a missing, unknown or withdrawn key.
func Unauthorized() *Error {
	e := New(InvalidAPIKey, "A valid API key is needed: send 'Authorization: Bearer KEY' or 'x-api-key: KEY'.")
	e.Headers = []Header{{"WWW-Authenticate", "Bearer"}}
	return e
}

// AppendHeaders appends e's own headers, x-should-retry and the retry advice
// to dst. random returns numbers in [0,1) and spreads the advice, so that
// clients refused together do not return together.
func (e *Error) AppendHeaders(dst []Header, random func() float64) []Header {
	dst = append(dst, e.Headers...)
	if e.NoRetry {
		dst = append(dst, Header{HeaderShouldRetry, "false"})
	}
	if e.RetryAfter > 0 {
		seconds, ms := retryAdvice(e.RetryAfter, random)
		dst = append(dst,
			Header{HeaderRetryAfter, strconv.Itoa(seconds)},
			Header{HeaderRetryAfterMS, strconv.FormatInt(ms, 10)})
	}
	return dst
}

// Bounds of the retry advice: some clients ignore values above a minute.
const (
	minRetry = time.Second
	maxRetry = time.Minute
)

// retryAdvice spreads d by up to 20 % either way and cuts it to 1..60 s.
// seconds is ms rounded up, so neither advice comes before the other.
func retryAdvice(d time.Duration, random func() float64) (seconds int, ms int64) {
	d = min(max(d, minRetry), maxRetry)
	spread := float64(d) * (0.8 + 0.4*random())
	d = min(max(time.Duration(spread), minRetry), maxRetry)
	ms = d.Milliseconds()
	return int(math.Ceil(float64(ms) / 1000)), ms
}

// statusText is the fallback message of an error that has none.
func statusText(status int) string {
	if s := http.StatusText(status); s != "" {
		return s
	}
	return "The request failed."
}

// BadJSON is the error for a body that is not JSON.
func BadJSON(err error) *Error {
	if se, ok := errors.AsType[*jsonscan.SyntaxError](err); ok {
		return Newf(InvalidJSON, "Invalid JSON body: %s at byte %d.", se.Reason, se.Offset)
	}
	return New(InvalidJSON, "Invalid JSON body.")
}

// RestrictedKey is the error for a key that is limited to some models, where all models are concerned.
func RestrictedKey() *Error {
	return New(InsufficientScope, "This key is restricted to certain models and cannot read or change what concerns all of them.")
}
