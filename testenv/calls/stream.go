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

// Last reads the stream to its end and returns its last event. The error is one of a body that did not end in order.
func (s *Stream) Last() (event string, err error) {
	for {
		e, err := s.Next()
		if errors.Is(err, io.EOF) {
			return event, nil
		}
		if err != nil {
			return event, err
		}
		if !strings.HasPrefix(e, ":") {
			event = e
		}
	}
}

// Leave makes the client go away.
func (s *Stream) Leave() {
	s.cancel()
	s.resp.Body.Close()
}
