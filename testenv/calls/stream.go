package calls

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// Stream is a streamed chat that is read at the test's own pace. Until it is read or left, it keeps its model busy.
type Stream struct {
	resp   *http.Response
	lines  *bufio.Reader
	cancel context.CancelFunc
}

// Open asks an llm for a stream of many tokens and returns when the first of them is there. It is left with the test.
func Open(t testing.TB, c *http.Client, base, model string, tokens int) *Stream {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/v1/chat/completions", strings.NewReader(ChatBody(model, tokens, true)))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatalf("%s: stream: %v", model, err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	s := &Stream{resp: resp, lines: bufio.NewReader(resp.Body), cancel: cancel}
	for {
		e, err := s.Next()
		if err != nil {
			t.Fatalf("%s: stream: %s, %v", model, resp.Status, err)
		}
		if strings.Contains(e, `"content":"`) {
			return s
		}
	}
}

// Next is the next event or comment, without its empty line.
func (s *Stream) Next() (string, error) { return ReadEvent(s.lines) }

// ReadEvent reads the next event or comment of an event stream, without its empty line.
func ReadEvent(lines *bufio.Reader) (string, error) {
	var event []byte
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return "", err
		}
		if line = bytes.TrimRight(line, "\n"); len(line) == 0 {
			return string(event), nil
		}
		event = append(event, line...)
	}
}

// Rest reads the stream to its end and returns its events, comments left out. The error is one of a body that did not end
// in order.
func (s *Stream) Rest() (events []string, err error) {
	for {
		e, err := s.Next()
		if errors.Is(err, io.EOF) {
			return events, nil
		}
		if err != nil {
			return events, err
		}
		if !strings.HasPrefix(e, ":") {
			events = append(events, e)
		}
	}
}

// Last is Rest for the last event.
func (s *Stream) Last() (event string, err error) {
	events, err := s.Rest()
	if len(events) > 0 {
		event = events[len(events)-1]
	}
	return event, err
}

// Whole is Rest for a stream that must end with [DONE].
func (s *Stream) Whole(t testing.TB) {
	t.Helper()
	if last, err := s.Last(); err != nil || last != "data: [DONE]" {
		t.Fatalf("the stream ended with %q, %v", last, err)
	}
}

// Drain reads the stream in the background; the channel is closed when it has ended, and reports when that was with
// [DONE].
func (s *Stream) Drain() <-chan time.Time {
	done := make(chan time.Time, 1)
	go func() {
		if last, err := s.Last(); err == nil && last == "data: [DONE]" {
			done <- time.Now()
		}
		close(done)
	}()
	return done
}

// Leave makes the client go away.
func (s *Stream) Leave() {
	s.cancel()
	s.resp.Body.Close()
}
