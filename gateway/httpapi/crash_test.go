package httpapi

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"reveille/infra/rpc"
)

// dying returns an engine that crashes under the first n requests: streams get their head and no event.
func dying(n int32, live bool) http.HandlerFunc {
	const crash = `{"error":{"code":"engine_crashed","message":"The engine ended.","param":null,"type":"server_error"}}`
	var seen atomic.Int32
	return func(w http.ResponseWriter, _ *http.Request) {
		if live {
			w.Header().Set("Content-Type", "text/event-stream")
		} else {
			w.Header().Set("Content-Type", "application/json")
		}
		switch crashes := seen.Add(1) <= n; {
		case crashes && live:
			w.(http.Flusher).Flush()
			_, _ = io.WriteString(w, "data: "+crash+"\n\n")
		case crashes:
			w.Header().Set(rpc.HeaderCode, "engine_crashed")
			w.WriteHeader(502)
			_, _ = io.WriteString(w, crash)
		case live:
			_, _ = io.WriteString(w, "data: {\"n\":1}\n\ndata: [DONE]\n\n")
		default:
			_, _ = io.WriteString(w, `{"fine":true}`)
		}
	}
}

// If an engine dies before the first byte of an answer, the request is sent once more, and only once.
func TestCrashRepeat(t *testing.T) {
	s := newStage(t).warm("chat")
	for _, live := range []bool{false, true} {
		body, want := chatBody, `{"fine":true}`
		if live {
			body, want = chatLive, "data: {\"n\":1}\n\ndata: [DONE]\n\n"
		}
		for crashes := range int32(3) {
			before := len(s.got())
			s.serve(dying(crashes, live))
			r := s.ask("POST", chatPath, body)
			if whole := strings.HasSuffix(r.text, want); whole != (crashes < 2) || !whole && !strings.Contains(r.text, `"engine_crashed"`) {
				t.Errorf("live %v, %d crashes: %d %s", live, crashes, r.status, r.text)
			}
			got := s.got()[before:]
			if len(got) != int(min(crashes, 1))+1 || string(got[0].body) != string(got[len(got)-1].body) {
				t.Errorf("live %v, %d crashes: sent %d times", live, crashes, len(got))
			}
		}
	}
	s.serve(dying(1, false))
	if r := s.ask("POST", chatPath, chatBody, "x-cold-wait: fail"); r.status != 502 || r.code() != "engine_crashed" {
		t.Errorf("a client that does not wait for loads: %d %s", r.status, r.text)
	}
}

// A constrained request is never repeated, and after the second crash its key's constrained requests are refused,
// whatever the format of the answers. Plain requests and other keys are served.
func TestCrashGuard(t *testing.T) {
	s := keyed(t, "").warm("chat")
	schema := `,"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{"type":"string"}}}}`
	plain, live := chatBody[:len(chatBody)-1]+schema, chatLive[:len(chatLive)-1]+schema
	for i, body := range []string{plain, live} {
		s.serve(dying(1, i == 1))
		if r := s.ask("POST", chatPath, body, ann); !strings.Contains(r.text, `"engine_crashed"`) || len(s.got()) != i+1 {
			t.Errorf("crash %d: %d %s, sent %d times", i+1, r.status, r.text, len(s.got()))
		}
	}
	s.serve(dying(0, false))
	limited(t, s.ask("POST", chatPath, plain, ann), "rate_limit_exceeded")
	s.well(s.ask("POST", chatPath, chatBody, ann))
	s.well(s.ask("POST", chatPath, plain, bob))

	open := newStage(t).warm("chat") // without keys all clients count as one
	for range 2 {
		open.serve(dying(1, false)).ask("POST", chatPath, plain)
	}
	limited(t, open.ask("POST", chatPath, plain), "rate_limit_exceeded")
	open.well(open.ask("POST", chatPath, chatBody))
}

// A crash with constrained requests of two keys counts against neither. Then the keys take turns at the engine, so that
// the next crash shows which key caused it, and the other key is served.
func TestRivals(t *testing.T) {
	s := keyed(t, "").warm("chat")
	var open atomic.Int32
	crash := make(chan struct{})
	s.serve(func(w http.ResponseWriter, r *http.Request) {
		open.Add(1)
		defer open.Add(-1)
		select {
		case <-crash:
			dying(1, false)(w, r)
		case <-r.Context().Done(): // the test failed
		}
	})
	answers := map[string]chan reply{ann: make(chan reply, 1), bob: make(chan reply, 1)}
	ask := func(key string, want int32) {
		t.Helper()
		go func() { answers[key] <- s.ask("POST", chatPath, constrainedBody, key) }()
		s.until("the engine has the requests", func() bool { return open.Load() == want })
	}
	crashed := func(key string) {
		t.Helper()
		if r := <-answers[key]; r.code() != "engine_crashed" {
			t.Errorf("%d %s", r.status, r.text)
		}
	}
	ask(ann, 1)
	ask(bob, 2)
	close(crash)
	crashed(ann)
	crashed(bob)

	crash = make(chan struct{})
	ask(ann, 1)
	ask(bob, 1)
	s.until("the other key waits for its turn", func() bool {
		s.server.suspects.mu.Lock()
		defer s.server.suspects.mu.Unlock()
		return len(s.server.suspects.waiting) == 1
	})
	s.well(s.serve(dying(0, false)).ask("POST", chatPath, chatBody, bob)) // a plain request does not wait
	close(crash)
	crashed(ann)
	s.well(<-answers[bob])
	limited(t, s.ask("POST", chatPath, constrainedBody, ann), "rate_limit_exceeded")
	s.well(s.ask("POST", chatPath, constrainedBody, bob))
}
