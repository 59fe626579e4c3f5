package httpapi_test

import (
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"reveille/infra/rpc"
	"reveille/runner/fairqueue"
	"reveille/runner/httpapi"
)

// Whatever an engine computes from a request's body needs a permit, even if it computes no sequence: templates and
// tokenizers run in its connection threads.
func TestComputingRequestsNeedAPermit(t *testing.T) {
	b := start(t, func(c *httpapi.Config) { c.FirstByte = 20 * time.Millisecond })
	b.load("fake")
	b.engines.fakes[0].permits = fairqueue.New(0)
	b.engines.handle = func(c net.Conn, _ *http.Request) { _, _ = io.WriteString(c, sized("application/json", "{}")) }
	for _, path := range []string{
		"/tokenize", "/v1/tokenize", "/detokenize", "/apply-template", "/v1/messages/count_tokens", "/v1/chat/completions/input_tokens", "/v1/responses/input_tokens", "/infill",
	} {
		if a := b.call("POST", path, "fake", "{}"); a.status != 504 || a.header.Get(rpc.HeaderCode) != "queue_timeout" {
			t.Errorf("POST %s: %d %s", path, a.status, a.body)
		}
	}
}

// Readings of an engine's state do not wait.
func TestReadingRequestsNeedNoPermit(t *testing.T) {
	b := start(t)
	b.load("fake")
	b.engines.fakes[0].permits = fairqueue.New(0)
	b.engines.handle = func(c net.Conn, _ *http.Request) { _, _ = io.WriteString(c, sized("application/json", "{}")) }
	for _, path := range []string{"/health", "/props", "/slots", "/metrics", "/v1/models"} {
		for _, method := range []string{"GET", "HEAD"} {
			if a := b.call(method, path, "fake", ""); a.status != 200 {
				t.Errorf("%s %s: %d %s", method, path, a.status, a.body)
			}
		}
	}
}

// A request that waits for a permit is sent back when a gateway asks for it, over HTTP and from this process. Those
// that the engine has are not.
func TestWaitingRequestsAreSentBack(t *testing.T) {
	b := start(t)
	b.load("fake")
	b.engines.fakes[0].permits = fairqueue.New(1)
	release := make(chan struct{})
	b.engines.handle = func(c net.Conn, _ *http.Request) {
		<-release
		_, _ = io.WriteString(c, sized("application/json", "{}"))
	}
	const path = "/v1/chat/completions"
	type caller func(method, path, model, body string) answer
	for name, call := range map[string]caller{"over HTTP": b.call, "in this process": b.direct} {
		first, second := make(chan answer, 1), make(chan answer, 1)
		open := b.open()
		go func() { first <- call("POST", path, "fake", "{}") }()
		b.until("the first request is with the engine", func() bool { return b.open() == open+1 })
		b.until("it has the permit", func() bool { return !tries(b.engines.fakes[0].permits) })
		go func() { second <- call("POST", path, "fake", "{}") }()
		b.until("the second waits", func() bool { return b.open() == open+2 })
		var a answer
		b.until("one is sent back", func() bool {
			if done := b.call("POST", rpc.PathSendBack+"?model=fake&n=5", "", ""); done.status != 200 {
				t.Fatalf("%s: send back: %+v", name, done)
			}
			select {
			case a = <-second:
				return true
			default:
				return false
			}
		})
		if a.status != rpc.StatusRefused || a.header.Get(rpc.HeaderRefused) != rpc.RefusedSentBack {
			t.Errorf("%s: the second: %+v", name, a)
		}
		release <- struct{}{}
		if a := <-first; a.status != 200 {
			t.Errorf("%s: the first: %+v", name, a)
		}
		b.until("both have ended", func() bool { return b.open() == open })
	}
	for _, bad := range [][2]string{{"GET", "?model=fake&n=1"}, {"POST", "?model=fake"}, {"POST", "?model=fake&n=-1"}} {
		if a := b.call(bad[0], rpc.PathSendBack+bad[1], "", ""); a.status != 400 {
			t.Errorf("%s %s: %+v", bad[0], bad[1], a)
		}
	}
	unsigned := b.request(t.Context(), "POST", rpc.PathSendBack+"?model=fake&n=1", "", "")
	unsigned.Header.Del(rpc.HeaderAuth)
	if a := b.do(unsigned); a.status != rpc.StatusRefused {
		t.Errorf("unsigned: %+v", a)
	}
	if a := b.call("POST", rpc.PathSendBack+"?model=none&n=1", "", ""); a.status != 200 {
		t.Errorf("a model that is not loaded: %+v", a)
	}
}

// tries reports whether a permit is free.
func tries(q *fairqueue.Queue) bool {
	if !q.TryAcquire("probe") {
		return false
	}
	q.Release("probe")
	return true
}
