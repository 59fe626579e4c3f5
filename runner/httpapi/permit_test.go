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
