package httpapi

import (
	"errors"
	"io"
	"time"

	"reveille/infra/relay"
)

// eventStream is the body of a streamed response. If the engine fails, an event with the error ends the stream.
type eventStream struct {
	*relay.Response
	request *activeRequest
	events  relay.Events
	unread  []byte // next returned it, Read has not yet
	err     error  // returned after unread
}

// next returns the next bytes for the client.
func (s *eventStream) next() ([]byte, error) {
	if s.err != nil {
		return nil, s.err
	}
	b, err := s.Response.Next(time.Time{})
	switch {
	case err == nil:
		_ = s.events.Feed(b) // the gateway limits the length of lines
		return b, nil
	case err == io.EOF, errors.Is(err, relay.ErrClientGone):
		s.err = err
		return nil, err
	}
	s.err = io.EOF
	return append(s.events.AppendBoundary(nil), s.request.errorEvent(err)...), nil
}

// Read implements io.Reader.
func (s *eventStream) Read(p []byte) (n int, err error) {
	for len(s.unread) == 0 {
		if s.unread, err = s.next(); err != nil {
			return 0, err
		}
	}
	n = copy(p, s.unread)
	s.unread = s.unread[n:]
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
		if err = s.RecordClientError(err); err != nil {
			return total, err
		}
	}
}
