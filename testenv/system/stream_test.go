package system

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"reveille/testenv/calls"
	"reveille/testenv/kit"
)

// stream is a streamed chat that a test reads at its own pace. Until then it keeps the model busy, as the engine goes on.
type stream struct {
	t      *testing.T
	resp   *http.Response
	lines  *bufio.Reader
	cancel context.CancelFunc
}

// chat opens a stream of that many tokens and returns when its first token is there, so that the model is busy.
func (w *world) chat(model string, tokens int) *stream {
	w.t.Helper()
	s := w.open(model, tokens)
	for {
		e, err := s.next()
		if err != nil {
			w.t.Fatalf("%s: stream: %v", model, err)
		}
		if strings.Contains(e, `"content":"`) {
			return s
		}
	}
}

// open sends a streamed chat and returns with the head of its answer.
func (w *world) open(model string, tokens int) *stream {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 10*kit.Patience)
	w.t.Cleanup(cancel)
	body := fmt.Sprintf(`{"model":%q,"stream":true,"max_tokens":%d,"messages":[{"role":"user","content":"hi"}]}`, model, tokens)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.URL+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Fatalf("%s: stream: %v", model, err)
	}
	w.t.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		w.t.Fatalf("%s: stream: %s %s", model, resp.Status, text)
	}
	return &stream{t: w.t, resp: resp, lines: bufio.NewReader(resp.Body), cancel: cancel}
}

// next returns the next event or comment, without its empty line.
func (s *stream) next() (string, error) { return calls.ReadEvent(s.lines) }

// rest reads the stream to its end and returns its events, comments left out.
func (s *stream) rest() (events []string, err error) {
	for {
		e, err := s.next()
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

// whole reads the stream to its end, which must be [DONE].
func (s *stream) whole() {
	s.t.Helper()
	events, err := s.rest()
	if err != nil || len(events) == 0 || events[len(events)-1] != "data: [DONE]" {
		s.t.Fatalf("stream ended with %q, %v", events[max(0, len(events)-2):], err)
	}
}

// leave makes the client go away in the middle.
func (s *stream) leave() {
	s.cancel()
	s.resp.Body.Close()
}

// drain reads a stream to its end in the background; the channel is closed when it has ended with [DONE].
func (s *stream) drain() <-chan time.Time {
	done := make(chan time.Time, 1)
	go func() {
		events, err := s.rest()
		if err == nil && len(events) > 0 && events[len(events)-1] == "data: [DONE]" {
			done <- time.Now()
		}
		close(done)
	}()
	return done
}
