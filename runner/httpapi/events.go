package httpapi

import (
	"errors"
	"io"
	"time"

	"reveille/infra/relay"
)

// eventStream is the body of a streamed answer. If the engine breaks off, an event with the error ends it.
type eventStream struct {
	*relay.Response
	x    *exchange
	seen relay.Events
	rest []byte // not yet read
	last error  // after rest
}

// next returns the next bytes for the client.
func (s *eventStream) next() ([]byte, error) {
	if s.last != nil {
		return nil, s.last
	}
	b, err := s.Response.Next(time.Time{})
	switch {
	case err == nil:
		_ = s.seen.Take(b) // the gateway bounds lines
		return b, nil
	case err == io.EOF, errors.Is(err, relay.ErrGone):
		s.last = err
		return nil, err
	}
	s.last = io.EOF
	return append(s.seen.AppendBoundary(nil), s.x.lastEvent(err)...), nil
}

// Read implements io.Reader.
func (s *eventStream) Read(p []byte) (n int, err error) {
	for len(s.rest) == 0 {
		if s.rest, err = s.next(); err != nil {
			return 0, err
		}
	}
	n = copy(p, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// WriteTo writes all available bytes at a time.
func (s *eventStream) WriteTo(w io.Writer) (total int64, err error) {
	for {
		b, err := s.next()
		if err == io.EOF {
			return total, nil
		} else if err != nil {
			return total, err
		}
		n, err := w.Write(b)
		total += int64(n)
		if err = s.WriteFailed(err); err != nil {
			return total, err
		}
	}
}
