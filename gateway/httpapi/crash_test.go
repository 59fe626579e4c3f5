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

// If an engine dies before the first byte of a response, the request is sent once more, and only once.
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

// A key whose requests crashed an engine twice while nobody else used it is refused the model, whatever the format of
// the responses. Other keys are served, and so are requests without a key.
func TestCrashesByOneKey(t *testing.T) {
	s := keyed(t, "").warm("chat")
	for i, body := range []string{chatBody, chatLive} {
		s.serve(dying(1, i == 1))
		s.well(s.ask("POST", chatPath, body, ann))
	}
	s.serve(dying(0, false))
	limited(t, s.ask("POST", chatPath, chatBody, ann), "rate_limit_exceeded")
	s.well(s.ask("POST", chatPath, chatBody, bob))

	open := newStage(t).warm("chat")
	for range 3 {
		open.well(open.serve(dying(1, false)).ask("POST", chatPath, chatBody))
	}
}
