package httpapi_test

import (
	"strings"
	"testing"
	"time"
)

// When a machine is reclaimed, a stream ends with an error event and an unanswered request with 503, both with that
// reason.
func TestInterruptionCutsRequests(t *testing.T) {
	for name, c := range map[string]struct {
		first  string
		status int
	}{
		"stream":          {head("text/event-stream", "Transfer-Encoding: chunked\r\n") + "a\r\ndata: 1\n\n\n\r\n", 200},
		"no response yet": {"", 503},
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t)
			b.load("fake")
			got := b.hanging(c.first)
			b.host.Interrupt(time.Now())
			a := <-got
			if a.status != c.status || !strings.Contains(a.body, `"code":"host_interrupted"`) || a.err != nil {
				t.Errorf("%+v", a)
			}
			if c.status == 200 && !strings.HasPrefix(a.body, "data: 1\n\n") {
				t.Errorf("the stream was %q", a.body)
			}
		})
	}
}
