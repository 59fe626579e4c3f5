package httpapi

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"reveille/infra/rpc"
)

const constrainedBody = `{"model":"chat","messages":[{"role":"user","content":"hi"}],"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{"type":"string"}}}}`

// silent is an engine that answers nothing, with a runner that answers checks with the text in check.
type silent struct {
	s      *stage
	check  atomic.Value // string
	checks atomic.Int32
	open   atomic.Int32
}

func newSilent(s *stage) *silent {
	e := &silent{s: s}
	e.check.Store(`{}`)
	s.serve(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == rpc.PathCheck+"chat" {
			e.checks.Add(1)
			_, _ = io.WriteString(w, e.check.Load().(string))
			return
		}
		e.open.Add(1)
		defer e.open.Add(-1)
		<-r.Context().Done()
	})
	return e
}

// leave makes a request, and leaves when the engine has it. It returns the status if an answer came instead, else 0.
func (e *silent) leave(body string, head ...string) int {
	e.s.t.Helper()
	ctx, leave := context.WithCancel(e.s.t.Context())
	defer leave()
	req, err := http.NewRequestWithContext(ctx, "POST", "http://"+e.s.addr+chatPath, strings.NewReader(body))
	if err != nil {
		e.s.t.Fatal(err)
	}
	for _, line := range head {
		name, value, _ := strings.Cut(line, ": ")
		req.Header.Set(name, value)
	}
	status := make(chan int, 1)
	go func() {
		resp, err := e.s.http.Do(req)
		if err != nil {
			status <- 0
			return
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		status <- resp.StatusCode
	}()
	e.s.until("the engine has the request, or the gateway answers", func() bool { return e.open.Load() == 1 || len(status) == 1 })
	leave()
	e.s.until("the engine has it no more", func() bool { return e.open.Load() == 0 })
	return <-status
}

// When the client of a constrained request leaves, the engine is checked. A crash since the request was sent counts
// against its key, an older one does not. Other requests cause no check.
func TestClientLeavesAHangingEngine(t *testing.T) {
	s := keyed(t, "").warm("chat")
	e := newSilent(s)
	e.leave(chatBody, ann)
	if n := e.checks.Load(); n != 0 {
		t.Errorf("%d checks for a plain request", n)
	}
	checked := func(what string, streams bool) {
		t.Helper()
		body := constrainedBody
		if streams {
			body = body[:len(body)-1] + `,"stream":true}`
		}
		before := e.checks.Load()
		e.leave(body, ann)
		s.until(what+" is checked", func() bool { return e.checks.Load() > before })
	}
	for range 3 {
		checked("a healthy engine", false)
	}
	e.check.Store(`{"crashed_ms":3600000}`)
	for range 3 {
		checked("an engine of an older crash", true)
	}
	e.check.Store(`nonsense`)
	checked("an engine whose runner talks nonsense", false)
	e.check.Store(`{"crashed_ms":0}`)
	tries := 0
	s.until("the key is refused", func() bool { tries++; return e.leave(constrainedBody, ann) == http.StatusTooManyRequests })
	if tries < 3 {
		t.Errorf("refused after %d hangs", tries-1)
	}
	e.check.Store(`{}`)
	s.serve(dying(0, false))
	limited(t, s.ask("POST", chatPath, constrainedBody, ann), "rate_limit_exceeded")
	s.well(s.ask("POST", chatPath, chatBody, ann))
	s.well(s.ask("POST", chatPath, constrainedBody, bob))
}

// While a constrained request is open, its engine is checked at intervals; afterwards it is not.
func TestOpenSuspects(t *testing.T) {
	s := newStage(t, func(_ *stage, c *Config) { c.CheckEvery = 20 * time.Millisecond }).warm("chat")
	e := newSilent(s)
	ctx, leave := context.WithCancel(t.Context())
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		req, _ := http.NewRequestWithContext(ctx, "POST", "http://"+s.addr+chatPath, strings.NewReader(constrainedBody))
		if resp, err := s.http.Do(req); err == nil {
			_ = resp.Body.Close()
		}
	}()
	s.until("several checks", func() bool { return e.checks.Load() > 3 })
	leave()
	<-answered
	s.until("nobody is suspected", func() bool {
		s.server.suspects.mu.Lock()
		defer s.server.suspects.mu.Unlock()
		return len(s.server.suspects.byEngine) == 0
	})
}
