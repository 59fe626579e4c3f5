package relay

import "time"

// A Hop stands between a Response and its reader in the place of a server: what a server between both would do with the
// answer, it does as the answer passes. All its methods are called by the goroutine that the response belongs to.
type Hop interface {
	// Head is called once: when the head has come, or with the error if there will be none. It may call [Response.Answer].
	// Await returns its result.
	Head(r *Response, err error) error
	// Broke returns the error that the reader gets for one that comes after the head.
	Broke(r *Response, err error) error
	// End is called once, by Close, with the outcome that OnEnd gets next.
	End(err error)
}

// An Admission is a request that a program of this process is about to send for another one.
type Admission interface {
	// Wait waits until the runner admits the request, at most until the given time; the zero time means no limit. Once it has
	// returned true, Start follows.
	Wait(until time.Time) bool
	// Start sends the request as [Client.Start] does, or has an answer already. The admission ends with the response, or with the
	// error.
	Start() (*Response, error)
	// Drop gives the admission up instead of Start.
	Drop()
}

// NewAnswer makes a response that came from no upstream.
func NewAnswer(status int, kind string, body []byte) *Response {
	r := new(Response)
	r.Answer(status, kind, body)
	return r
}

// Answer replaces the upstream's answer, and nothing more of that is read.
func (r *Response) Answer(status int, kind string, body []byte) {
	r.header.Reset()
	r.header.SetNoDefaultContentType(true)
	r.header.SetStatusCode(status)
	r.header.SetContentType(kind)
	r.header.SetContentLength(len(body))
	r.phase, r.reuse, r.isJSON, r.jsonEvents, r.bare = phaseEnded, false, false, false, false
	r.rest, r.err, r.reported = body, nil, nil
}

// Set sets a header field of the answer.
func (r *Response) Set(name, value string) {
	r.bare = false
	r.header.Set(name, value)
}

// Bare removes all header fields but those that SendTo passes on: the status, the content type and the length.
func (r *Response) Bare() {
	var buf [128]byte
	kind := append(buf[:0], r.header.ContentType()...)
	status, length := r.header.StatusCode(), r.header.ContentLength()
	r.header.Reset()
	r.header.SetNoDefaultContentType(true)
	r.header.SetStatusCode(status)
	r.header.SetContentLength(length)
	if len(kind) > 0 {
		r.header.SetContentTypeBytes(kind)
	}
	r.bare = true
}

// RequireJSONEvents says that the events of the body hold JSON, or [DONE]. For a [Stream] anything else is an ErrBadReply, or an
// ErrTooLarge if it nests too deep. The bytes of such an event that arrive together with the fault are not relayed.
func (r *Response) RequireJSONEvents() { r.jsonEvents = true }
