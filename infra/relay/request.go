package relay

import (
	"strconv"
	"time"
)

// Field is one header field of a request or response.
type Field struct {
	Name  string
	Value []byte
}

// Request is one request to an upstream. Nothing of it is kept after Start or Do returns, so its slices may belong to
// the client's request. A Request can be reused.
type Request struct {
	// Method is a token such as "POST".
	Method string
	// Path is the request target in origin form, with its query: "/v1/models?limit=2".
	Path []byte
	// Fields are written in this order. Nothing else is copied, so they are the caller's allow-list. Client writes
	// Host, Content-Length, Transfer-Encoding and Connection, which must not be among them.
	Fields []Field
	// Body is sent with a Content-Length.
	Body []byte
	// FirstByte bounds the wait for the complete head, counted from the end of sending, and the wait for the first
	// bytes of the body, counted from the head; 0 means no bound.
	FirstByte time.Duration
	// Silence bounds each further wait for bytes of the body; 0 means no bound.
	Silence time.Duration
	// Upgrade asks the upstream to switch to this protocol, such as "websocket"; see Response.Switched.
	Upgrade string
	// Events says that a 200 without a Content-Type is a stream of events.
	Events bool
	// Probe marks a request that does not come from a client: [Client.BytesRead] does not count its response.
	Probe bool
}

// Add appends a field.
func (r *Request) Add(name string, value []byte) {
	r.Fields = append(r.Fields, Field{name, value})
}

// appendHead appends the head of the request to b. It returns false if a part contains bytes that could break the head.
// single says that the connection serves no other request.
func (r *Request) appendHead(b []byte, host string, single bool) ([]byte, bool) {
	if !isToken(r.Method) || !isTarget(r.Path) || r.Upgrade != "" && !isToken(r.Upgrade) {
		return b, false
	}
	b = append(b, r.Method...)
	b = append(b, ' ')
	b = append(b, r.Path...)
	b = append(b, " HTTP/1.1\r\nHost: "...)
	b = append(b, host...)
	for i := range r.Fields {
		f := &r.Fields[i]
		if !isToken(f.Name) || !isValue(f.Value) || isManagedField(f.Name) {
			return b, false
		}
		b = append(b, "\r\n"...)
		b = append(b, f.Name...)
		b = append(b, ": "...)
		b = append(b, f.Value...)
	}
	if len(r.Body) > 0 || r.Method == "POST" || r.Method == "PUT" || r.Method == "PATCH" {
		b = append(b, "\r\nContent-Length: "...)
		b = strconv.AppendInt(b, int64(len(r.Body)), 10)
	}
	if r.Upgrade != "" {
		b = append(append(b, "\r\nConnection: Upgrade\r\nUpgrade: "...), r.Upgrade...)
	} else if single {
		b = append(b, "\r\nConnection: close"...)
	}
	return append(b, "\r\n\r\n"...), true
}

// isManagedField reports whether only Client may write the field.
func isManagedField(name string) bool {
	return equalFold(name, "host") || equalFold(name, "connection") || equalFold(name, "content-length") || equalFold(name, "transfer-encoding")
}

// tokenBytes are the bytes RFC 9110 allows in a token.
var tokenBytes = func() (t [256]bool) {
	for c := range t {
		t[c] = c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
	}
	for _, c := range "!#$%&'*+-.^_`|~" {
		t[c] = true
	}
	return t
}()

func isToken[S string | []byte](s S) bool {
	for i := range len(s) {
		if !tokenBytes[s[i]] {
			return false
		}
	}
	return len(s) > 0
}

func isTarget(p []byte) bool {
	for _, c := range p {
		if c <= ' ' || c == 0x7f {
			return false
		}
	}
	return len(p) > 0 && p[0] == '/'
}

func isValue(v []byte) bool {
	for _, c := range v {
		if c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

// equalFold reports whether two names of ASCII are the same in any case.
func equalFold[S string | []byte](a S, b string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range len(a) {
		if lower(a[i]) != lower(b[i]) {
			return false
		}
	}
	return true
}

func lower(c byte) byte {
	if c >= 'A' && c <= 'Z' {
		c += 'a' - 'A'
	}
	return c
}
