package relay

import "time"

// A ResponseHook does in this process what a runner's HTTP server would otherwise do to a response: it changes the head,
// replaces errors and records the end. All its methods are called by the goroutine that the response belongs to.
type ResponseHook interface {
	// Head is called once: when the head has come, or with the error if there will be none. It may call
	// [Response.Replace]. Await returns its result.
	Head(r *Response, err error) error
	// OnError maps an error after the head to the one that the reader gets.
	OnError(r *Response, err error) error
	// End is called once, by Close, with the outcome that OnEnd gets next.
	End(err error)
}

// A LocalRequest is a request that a runner of this process is asked to admit before it is sent.
type LocalRequest interface {
	// Wait waits until the runner admits the request, at most until the given time; the zero time means no limit. Once
	// it has returned true, Start follows.
	Wait(until time.Time) bool
	// Start sends the request as [Client.Start] does, or returns a response that needs no upstream. The admission ends
	// when the response is closed at the latest, or with the error.
	Start() (*Response, error)
	// Drop gives the admission up instead of Start.
	Drop()
}

// Replace replaces the response; the rest of the upstream's is not read. It also fills a Response that has no upstream.
func (r *Response) Replace(status int, contentType string, body []byte) {
	r.head = head{status: status, length: int64(len(body))}
	r.added = nil
	r.Set("Content-Type", contentType)
	r.phase, r.reuse = phaseEnded, false
	r.rest, r.err, r.reported = body, nil, nil
}

// Set adds a header field, which hides the upstream's field of that name. The first Set of a name counts.
func (r *Response) Set(name, value string) { r.added = append(r.added, Field{name, []byte(value)}) }

// StripHeaders removes all header fields but Content-Type: those that a server in the hook's place would not pass on.
func (r *Response) StripHeaders() {
	contentType := string(r.ContentType())
	r.head.fields, r.added = nil, nil
	if contentType != "" {
		r.Set("Content-Type", contentType)
	}
}
