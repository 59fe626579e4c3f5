package relay

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/valyala/fasthttp"
)

// DefaultMaxLine is the default limit on a line of an event stream.
const DefaultMaxLine = 16 << 20

var errLine = errors.New("event stream line too long")

// StreamConfig configures a Stream. The goroutine that reads the stream calls all functions; for a fasthttp body that
// is the one of the client's connection. They must not block longer than stated.
type StreamConfig struct {
	// Response is the exchange to relay, answered or still pending. If it is nil, Ready and Open provide one.
	Response *Response
	// Ready waits until a request can be sent. It returns true then, or false if the given time comes first. An error
	// ends the stream. It should return early with ErrGone if the client leaves.
	Ready func(until time.Time) (bool, error)
	// Open sends the request (Client.Start); the stream owns what it returns. ErrAgain goes back to Ready, any other
	// error ends the stream. It may block as long as a dial.
	Open func() (*Response, error)
	// Check, if set, judges an answer that the stream waited for, before any of its body is relayed. ErrAgain closes
	// the answer and goes back to Ready, any other error ends the stream.
	Check func(*Response) error
	// Repeat, if set, is called when the answer ends with err before any byte of it was relayed. True closes the answer
	// and goes back to Ready.
	Repeat func(err error) bool
	// Loading appends a comment for the client to dst while there is no answer, such as ": loading 40%\n\n".
	// Default ": loading\n\n".
	Loading func(dst []byte) []byte
	// Every is the time between Loading comments; default 5 s. The first one is sent at once.
	Every time.Duration
	// Keepalive is the silence after which a ping is sent, if the stream is between two events; 0 means never.
	Keepalive time.Duration
	// Ping is the ping sent after the first event; default ": ping\n\n", which is always used before it.
	Ping []byte
	// Errors makes an event whose data is an object with an error end the stream with an *EventError. The event is not
	// relayed.
	Errors bool
	// MaxLine is the longest line relayed, in bytes; default DefaultMaxLine. A longer line is an ErrTooLarge.
	MaxLine int
	// OnBreak returns the last bytes, an error event, for a stream that ends with err. They are sent between two
	// events. If it is not set or returns nil, the client's chunked body is cut. It is not called if the client left.
	OnBreak func(err error) []byte
	// OnEnd is called once by Close, with nil if the upstream's body was relayed to its proper end.
	OnEnd func(err error)
}

type streamPhase uint8

const (
	streamHold  streamPhase = iota // in Ready
	streamOpen                     // Open comes next
	streamAwait                    // the request was sent
	streamRelay                    // relaying the answer's body
	streamOver                     // last is sent, then end
)

// Stream is an event stream for one client: keep-alive comments while a model loads and while the engine is silent,
// then the engine's events as they arrive, and an error event if they break off. It needs no goroutine or timer of its
// own, since every wait ends when the next comment is due. It belongs to one goroutine at a time.
type Stream struct {
	cfg     StreamConfig
	resp    *Response
	phase   streamPhase
	ev      events
	vetted  jsonEvents // checks events that hold JSON
	comment time.Time  // when the next loading comment is due
	ping    time.Time  // when the next ping is due; zero until the stream waits
	scratch []byte
	bad     []byte // start of an event with an error
	rest    []byte // not yet given out by Read
	end     error  // in streamOver: the error for the reader
	err     error  // for OnEnd
	closed  bool
}

var _ fasthttp.BodyWriterTo = (*Stream)(nil)

// NewStream creates a stream. It does nothing until it is read. Close also closes the response.
func NewStream(cfg StreamConfig) *Stream {
	cfg.Every = cmp.Or(max(cfg.Every, 0), 5*time.Second)
	cfg.MaxLine = cmp.Or(max(cfg.MaxLine, 0), DefaultMaxLine)
	s := &Stream{cfg: cfg, resp: cfg.Response}
	switch {
	case s.resp == nil:
		s.phase = streamHold
	case s.resp.Status() == 0:
		s.phase = streamAwait
	default:
		s.phase = streamRelay
	}
	return s
}

// SendTo makes the stream the body of ctx, with status 200 and content type text/event-stream.
func (s *Stream) SendTo(ctx *fasthttp.RequestCtx) {
	ctx.SetStatusCode(fasthttp.StatusOK)
	ctx.SetContentType("text/event-stream")
	ctx.Response.SetBodyStream(s, -1)
	// Before an answer, the first comment carries the head.
	ctx.Response.ImmediateHeaderFlush = s.phase == streamRelay && s.resp.Buffered() == 0
}

// step returns the next bytes for the client, valid until the following call, or the error that ends the stream.
func (s *Stream) step() ([]byte, error) {
	for {
		var err error
		switch s.phase {
		case streamOver:
			return nil, s.end
		case streamRelay:
			var b []byte
			if b, err = s.relay(); err == nil {
				return b, nil
			}
		default:
			now := time.Now()
			if !now.Before(s.comment) {
				s.comment = now.Add(s.cfg.Every)
				return s.loading(), nil
			}
			err = s.hold()
		}
		switch {
		case err == nil:
		case err == io.EOF:
			s.phase, s.end = streamOver, io.EOF
		case s.phase == streamRelay && s.cfg.Repeat != nil && !s.ev.begun() && s.cfg.Repeat(err):
			s.bad, s.ping = nil, time.Time{}
			s.wait()
		default:
			if b := s.broke(err); len(b) > 0 {
				return b, nil
			}
		}
	}
}

// hold waits for an answer, at most until the next comment is due.
func (s *Stream) hold() error {
	switch s.phase {
	case streamHold:
		ok, err := s.cfg.Ready(s.comment)
		if err != nil {
			return err
		}
		if ok {
			s.phase = streamOpen
		}
		return nil
	case streamOpen:
		resp, err := s.cfg.Open()
		if err != nil {
			return s.again(err)
		}
		s.resp, s.phase = resp, streamAwait
		return nil
	}
	err := s.resp.Await(s.comment)
	if err == ErrPending {
		return nil
	}
	if err == nil && s.cfg.Check != nil {
		err = s.cfg.Check(s.resp)
	}
	if err != nil {
		return s.again(err)
	}
	s.phase = streamRelay
	return nil
}

// again goes back to Ready if err asks for it.
func (s *Stream) again(err error) error {
	if !errors.Is(err, ErrAgain) || s.cfg.Ready == nil {
		return err
	}
	s.wait()
	return nil
}

// wait closes the answer, if there is one, and goes back to Ready.
func (s *Stream) wait() {
	if s.resp != nil {
		_ = s.resp.Close()
		s.resp = nil
	}
	s.phase = streamHold
}

// relay returns the next bytes of the body, or a ping.
func (s *Stream) relay() ([]byte, error) {
	for {
		if s.bad != nil {
			return nil, s.badEvent()
		}
		if s.cfg.Keepalive > 0 && s.ping.IsZero() && s.resp.Buffered() == 0 {
			s.ping = time.Now().Add(s.cfg.Keepalive)
		}
		b, err := s.resp.next(s.ping)
		switch {
		case err == errDue:
			s.ping = time.Time{}
			if s.ev.boundary() {
				return s.pinged(), nil
			}
		case err == io.EOF && s.resp.jsonEvents && !s.vetted.whole():
			return nil, s.resp.rejectJSON(&s.vetted.data)
		case err != nil:
			return nil, err
		default:
			s.ping = time.Time{}
			if s.resp.jsonEvents {
				good, ok := s.vetted.take(b)
				if b = b[:good]; !ok {
					_ = s.resp.rejectJSON(&s.vetted.data) // for the next read
				}
			}
			if i := s.errorAt(b); i >= 0 {
				if s.bad, b = bytes.Clone(b[i:]), b[:i]; len(b) == 0 {
					continue
				}
			}
			if s.ev.take(b) > s.cfg.MaxLine {
				return nil, s.resp.fail(ErrTooLarge, errLine)
			}
			if len(b) > 0 {
				return b, nil
			}
		}
	}
}

func (s *Stream) loading() []byte {
	if s.cfg.Loading == nil {
		s.scratch = append(s.scratch[:0], ": loading\n\n"...)
	} else {
		s.scratch = s.cfg.Loading(s.scratch[:0])
	}
	return s.scratch
}

// pinged returns the next ping.
func (s *Stream) pinged() []byte {
	if s.cfg.Ping != nil && s.ev.begun() {
		return s.cfg.Ping
	}
	s.scratch = append(s.scratch[:0], ": ping\n\n"...)
	return s.scratch
}

var (
	errorEvent = []byte("data: {\"error\":")
	eventEnd   = []byte("\n\n")
)

// errorAt returns where an event with an error starts in b, or a negative number if none does. Engines write whole
// events, so it finds one that starts in b and ends in later bytes, but not one whose first line is split.
func (s *Stream) errorAt(b []byte) int {
	if !s.cfg.Errors {
		return -1
	}
	i := bytes.Index(b, errorEvent)
	if i == 0 && s.ev.boundary() || i > 0 && b[i-1] == '\n' {
		return i
	}
	return -1
}

const (
	maxErrorEvent  = 64 << 10        // most bytes read of an event with an error
	errorEventWait = 5 * time.Second // longest wait for its end
)

// badEvent reads an event with an error to its end and returns it as an error.
func (s *Stream) badEvent() error {
	until := time.Now().Add(errorEventWait)
	for len(s.bad) < maxErrorEvent && !bytes.Contains(s.bad, eventEnd) {
		b, err := s.resp.next(until)
		if err != nil {
			break
		}
		s.bad = append(s.bad, b...)
	}
	data, _, _ := bytes.Cut(s.bad, eventEnd)
	return &EventError{Data: bytes.TrimSpace(data[min(len(data), len("data: ")):])}
}

// EventError is an error that an upstream reported in an event of its stream.
type EventError struct {
	Data  []byte // data of the event; JSON from a sane upstream
	Cause error  // why there is no such event, from a Hop; nil for one that came
}

// Unwrap returns the cause.
func (e *EventError) Unwrap() error { return e.Cause }

func (e *EventError) Error() string { return fmt.Sprintf("error event: %.200q", e.Data) }

// broke ends the stream with err and returns the last bytes for the client, if any.
func (s *Stream) broke(err error) []byte {
	s.phase, s.err, s.end = streamOver, err, err
	if s.cfg.OnBreak == nil || errors.Is(err, ErrGone) {
		return nil
	}
	last := s.cfg.OnBreak(err)
	if last == nil {
		return nil
	}
	s.end = io.EOF
	s.scratch = append(s.ev.appendBoundary(s.scratch[:0]), last...)
	return s.scratch
}

// Read returns the next bytes, and waits if there are none. Its error is io.EOF at the upstream's proper end, and after
// the bytes of OnBreak.
func (s *Stream) Read(p []byte) (int, error) {
	for len(s.rest) == 0 {
		b, err := s.step()
		if err != nil {
			return 0, err
		}
		s.rest = b
	}
	n := copy(p, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// SupportsBodyWriteTo tells fasthttp to use WriteTo instead of Read.
func (s *Stream) SupportsBodyWriteTo() bool { return true }

// WriteTo writes the stream to w, all available bytes at a time.
func (s *Stream) WriteTo(w io.Writer) (int64, error) {
	var total int64
	for {
		b := s.rest
		if s.rest = nil; len(b) == 0 {
			var err error
			if b, err = s.step(); err == io.EOF {
				return total, nil
			} else if err != nil {
				return total, err
			}
		}
		n, err := w.Write(b)
		total += int64(n)
		if err != nil {
			s.phase, s.err = streamOver, fmt.Errorf("%w: %w", ErrGone, err)
			s.end = s.err
			return total, s.err
		}
	}
}

// Close closes the response, if there is one, and calls OnEnd.
func (s *Stream) Close() error {
	if s.closed {
		return nil
	}
	s.closed = true
	if s.phase != streamOver {
		s.err = &Error{Kind: ErrCancelled, Cause: ErrGone, Sent: s.resp != nil}
	}
	if s.resp != nil {
		_ = s.resp.Close()
		s.resp = nil
	}
	if s.cfg.OnEnd != nil {
		s.cfg.OnEnd(s.err)
	}
	return nil
}
