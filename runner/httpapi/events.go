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
	err     error // that next returns from now on
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

// Read is not called: fasthttp uses WriteTo.
func (s *eventStream) Read([]byte) (int, error) { return 0, errors.ErrUnsupported }

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
