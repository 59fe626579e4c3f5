package httpapi_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"reveille/infra/rpc"
)

// An answer whose JSON nests too deep is the request's fault, like one that is too long, because the request determines
// what the model writes. The engine keeps running.
func TestDeepAnswers(t *testing.T) {
	b := start(t)
	b.load("fake")
	deep := `{"content":[{"type":"tool_use","input":` + strings.Repeat("[", 600) + strings.Repeat("]", 600) + `}]}`
	event := "data: {}\n\ndata: " + deep + "\n\n"
	for name, c := range map[string]struct {
		reply  string
		status int
	}{
		"whole":  {sized("application/json", deep), 400},
		"stream": {head("text/event-stream", "Transfer-Encoding: chunked\r\n") + fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(event), event), 200},
	} {
		b.engines.handle = func(conn net.Conn, _ *http.Request) { _, _ = io.WriteString(conn, c.reply) }
		for range 2 * 3 { // twice as many as restart an engine with bad replies
			a := b.call("POST", "/v1/messages", "fake", "{}")
			if a.status != c.status || !strings.Contains(a.body, `"code":"invalid_request","message":"The answer is longer than 16 MiB or nests too deep`) || a.err != nil {
				t.Fatalf("%s: %d %q %v", name, a.status, a.body, a.err)
			}
		}
		b.until("the requests are counted off", func() bool { return b.open() == 0 })
		if v := b.host.View(); len(v.Models) != 1 || v.Models[0].Closed || len(b.engines.fakes) != 1 {
			t.Errorf("%s: the engine did not stay: %+v", name, v.Models)
		}
	}
	if metrics := b.call("GET", rpc.PathMetrics, "", "").body; !strings.Contains(metrics, `reveille_runner_engine_restarts_total{reason="bad_reply"} 0`) {
		t.Error("the answers are counted as nonsense")
	}
}
