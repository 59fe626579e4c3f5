package httpapi_test

import (
	"fmt"
	"maps"
	"strings"
	"syscall"
	"testing"

	"github.com/VictoriaMetrics/metrics"

	"reveille/infra/rpc"
	"reveille/runner/batch"
	"reveille/runner/httpapi"
)

// When an engine dies, the queued requests that it has not seen are refused, so that they are sent again. The request
// that it worked on gets an error.
func TestBatchedRequestsFailWhenTheEngineExits(t *testing.T) {
	set := metrics.NewSet()
	b := start(t, func(c *httpapi.Config) { c.Metrics = set })
	b.engines.Meters = batch.NewMeters(set)
	b.load("queued")
	const waiting, tokens = 10, 4
	answers := make(chan answer, 1+waiting)
	ask := func() { answers <- b.call("POST", "/v1/embeddings", "queued", `{"input":"twelve bytes"}`) }
	until := func(gauge string, tokens int) {
		b.until(gauge, func() bool {
			return strings.Contains(b.call("GET", rpc.PathMetrics, "", "").body, fmt.Sprintf("reveille_runner_embedding_%s{model=\"queued\"} %d\n", gauge, tokens))
		})
	}
	go ask()
	until("in_flight_tokens", tokens)
	for range waiting {
		go ask()
	}
	until("pending_tokens", waiting*tokens)
	b.must(syscall.Kill(b.host.EngineOf("queued").PID(), syscall.SIGKILL))
	got := map[string]int{}
	for range 1 + waiting {
		a := <-answers
		got[fmt.Sprint(a.status, " ", a.header.Get(rpc.HeaderRefused), a.header.Get(rpc.HeaderCode))]++
	}
	if want := map[string]int{"421 not_loaded": waiting, "502 engine_crashed": 1}; !maps.Equal(got, want) {
		t.Errorf("responses %v, want %v", got, want)
	}
}
