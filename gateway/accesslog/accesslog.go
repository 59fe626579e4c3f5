// Package accesslog writes a line of JSON for each request: who asked for what, and how it was answered. It holds no body, no
// key, no query, and each of its texts has a bound.
package accesslog

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"reveille/infra/term"
)

// Log is an access log. It is safe for concurrent use. A nil Log writes nothing.
type Log struct {
	handler slog.Handler
	file    *file
}

// Open appends to a file, which only its owner may read, or writes to standard output for "-". "" is no log. Call end once
// nothing writes any more.
func Open(name string) (log *Log, end func(), err error) {
	if name == "" {
		return nil, func() {}, nil
	}
	f, err := open(name)
	if err != nil {
		return nil, nil, err
	}
	return &Log{file: f, handler: slog.NewJSONHandler(f, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.LevelKey || a.Key == slog.MessageKey {
			return slog.Attr{}
		}
		return a
	}})}, f.close, nil
}

// Dropped counts the lines that were not written: what they are written to was full or did not take them in time.
func (l *Log) Dropped() int64 {
	if l == nil {
		return 0
	}
	return l.file.dropped.Load()
}

// Entry is what a line says. Zero fields are left out, but for the first six.
type Entry struct {
	Began    time.Time
	Request  string // its id
	Method   string
	Path     string // without its query
	Status   int
	Duration time.Duration // until the end of the answer

	Route     string // of the route table
	Code      string // of an error
	Client    string // address without a port
	UserAgent string
	Key       string // the beginning of the digest of its API key
	Trace     string
	BytesIn   int64
	BytesOut  int64
	Broken    bool // the answer ended before it was complete

	// Of a request to a model.
	Model, Host                          string
	Cold                                 bool // it waited for a load
	Waited, Load                         time.Duration
	FirstByte                            time.Duration // from the request's head to the answer's first byte
	TokensIn, TokensOut, TokensFromCache int64
}

// Bounds of texts that clients choose, in bytes.
const (
	maxPath  = 256
	maxAgent = 200
)

// Write writes a line, without waiting for the file.
func (l *Log) Write(e *Entry) {
	if l == nil {
		return
	}
	r := slog.NewRecord(e.Began, slog.LevelInfo, "", 0)
	r.AddAttrs(slog.String("request", e.Request), slog.String("method", cut(e.Method, maxAgent)), slog.String("path", cut(e.Path, maxPath)), slog.Int("status", e.Status), ms("duration_ms", e.Duration))
	text := func(key, value string) {
		if value != "" {
			r.AddAttrs(slog.String(key, value))
		}
	}
	number := func(key string, n int64) {
		if n != 0 {
			r.AddAttrs(slog.Int64(key, n))
		}
	}
	text("route", e.Route)
	text("code", e.Code)
	text("client", e.Client)
	text("user_agent", cut(e.UserAgent, maxAgent))
	text("key", e.Key)
	text("trace", e.Trace)
	number("bytes_in", e.BytesIn)
	number("bytes_out", e.BytesOut)
	if e.Broken {
		r.AddAttrs(slog.Bool("broken", true))
	}
	if e.Model != "" {
		text("model", e.Model)
		text("host", e.Host)
		r.AddAttrs(slog.Bool("cold", e.Cold))
		for _, d := range []struct {
			key string
			d   time.Duration
		}{{"waited_ms", e.Waited}, {"load_ms", e.Load}, {"first_byte_ms", e.FirstByte}} {
			if d.d != 0 {
				r.AddAttrs(ms(d.key, d.d))
			}
		}
		number("tokens_in", e.TokensIn)
		number("tokens_out", e.TokensOut)
		number("tokens_cached", e.TokensFromCache)
	}
	_ = l.handler.Handle(context.Background(), r) // Log's file fails no write
}

func cut(s string, most int) string { return strings.ToValidUTF8(term.Clip(s, most), "\uFFFD") }

// ms is a duration in milliseconds with three decimals.
func ms(key string, d time.Duration) slog.Attr {
	return slog.Float64(key, float64(d.Microseconds())/1000)
}
