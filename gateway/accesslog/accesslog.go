// Package accesslog writes a line of JSON for each request: who asked for what, and how it was responded to. It holds
// no body, no key, no query, and each of its texts has a bound.
package accesslog

import (
	"strconv"
	"strings"
	"time"

	"reveille/infra/jsonscan"
	"reveille/infra/term"
)

// Entry is what a line says.
type Entry struct {
	Began    time.Time    `json:"time"`
	Request  string       `json:"request"` // its id
	Method   string       `json:"method"`
	Path     string       `json:"path"` // without its query
	Status   int          `json:"status"`
	Duration Milliseconds `json:"duration_ms"` // until the end of the response

	Route     string `json:"route,omitempty"`  // of the route table
	Code      string `json:"code,omitempty"`   // of an error
	Client    string `json:"client,omitempty"` // address without a port
	UserAgent string `json:"user_agent,omitempty"`
	Key       string `json:"key,omitempty"` // the beginning of the digest of its API key
	Trace     string `json:"trace,omitempty"`
	BytesIn   int64  `json:"bytes_in,omitempty"`
	BytesOut  int64  `json:"bytes_out,omitempty"`
	Broken    bool   `json:"broken,omitempty"` // the response ended before it was complete

	// Of a request to a model.
	Model           string       `json:"model,omitempty"`
	Host            string       `json:"host,omitempty"`
	Cold            *bool        `json:"cold,omitempty"` // it waited for a load
	Waited          Milliseconds `json:"waited_ms,omitempty"`
	Load            Milliseconds `json:"load_ms,omitempty"`
	FirstByte       Milliseconds `json:"first_byte_ms,omitempty"` // from the request's head to the response's first byte
	TokensIn        int64        `json:"tokens_in,omitempty"`
	TokensOut       int64        `json:"tokens_out,omitempty"`
	TokensFromCache int64        `json:"tokens_cached,omitempty"`
}

// Milliseconds is a duration, written in milliseconds with three decimals.
type Milliseconds time.Duration

// MarshalJSON implements json.Marshaler.
func (d Milliseconds) MarshalJSON() ([]byte, error) {
	return strconv.AppendFloat(nil, float64(time.Duration(d).Microseconds())/1000, 'f', -1, 64), nil
}

// Bounds of texts that clients choose, in bytes.
const (
	maxPath  = 256
	maxAgent = 200
)

// Write writes a line, without waiting for the file.
func (l *Log) Write(e Entry) {
	if l == nil {
		return
	}
	e.Method, e.Path, e.UserAgent = clip(e.Method, maxAgent), clip(e.Path, maxPath), clip(e.UserAgent, maxAgent)
	text, _ := jsonscan.Marshal(e) // texts and numbers always marshal
	l.queue(append(text, '\n'))
}

func clip(s string, max int) string { return strings.ToValidUTF8(term.Clip(s, max), "\uFFFD") }
