package faults

import (
	"strings"
	"testing"
	"time"

	"reveille/testenv"
	"reveille/testenv/calls"
	"reveille/testenv/imds"
	"reveille/testenv/kit"
)

// spot starts a gateway over two hosts: `spot`, whose machine's metadata service is returned, and `other`, which the
// models that name no host may use too. The eyes of the world are on spot.
func spot(t *testing.T, models calls.Catalogue, args ...string) (*world, *imds.Service) {
	t.Helper()
	service := imds.Start(t, map[string]string{imds.InstanceID: "i-0123456789abcdef0", imds.Target: "InService"})
	redis := testenv.Redis(t)
	url := "redis://" + redis + "/0"
	runner, addr := testenv.StartRunnerEnv(t, []string{imds.Endpoint + "=" + service.URL}, url, secret, "spot", t.TempDir(), append([]string{"--devices=cpu", "--instance=aws"}, args...)...)
	_, otherAddr := testenv.StartRunner(t, url, secret, "other", t.TempDir(), "--devices=cpu")
	host := func(name, addr string) string {
		return "  " + name + ": {driver: exec, address: \"" + addr + "\", devices: [cpu], commands: {wake: [\"true\"], sleep: [\"true\"]}}\n"
	}
	gateway := testenv.StartGateway(t, url, secret, models.YAML("hosts:\n"+host("spot", addr)+host("other", otherAddr)))
	w := &world{t: t, url: gateway.URL, host: "spot", models: models, client: calls.Client(t, 16), rdb: redisAt(t, redis), log: runner.Log, pid: runner.PID()}
	for _, name := range []string{"spot", "other"} {
		kit.Becomes(t, "state of "+name, "ready", func() string { return w.hget("rv:{main}:host:"+name, "state") })
	}
	return w, service
}

// Row 26: two minutes before AWS takes a spot instance its host drains. Its stream goes on; new requests go to another
// host, or are told to come back where there is none.
func TestRow26SpotNotice(t *testing.T) {
	t.Parallel()
	w, service := spot(t, calls.Catalogue{
		"a": "llm, hosts: [spot], " + calls.Options(slow), "e": "embedding, hosts: [spot, other]", "r": "reranking, hosts: [spot], " + calls.Options("--load-time 60s"),
	})
	s := calls.Open(t, w.client, w.url, "a", 100000)
	if a := w.use("e"); a.Header.Get("x-runner") != "spot" {
		t.Fatalf("e is served by %s", a.Header.Get("x-runner"))
	}
	loading := later(func() calls.Answer { return w.ask("r") })
	kit.Becomes(t, "state of r", "loading", func() string { return w.field("r", "state") })
	began := time.Now()
	service.Interrupt(began.Add(2 * time.Minute))
	kit.Becomes(t, "state of the host", "draining", func() string { return w.hget("rv:{main}:host:spot", "state") })
	t.Logf("draining %v after the notice", time.Since(began))
	gone := calm{status: 503, typ: "server_error", code: "host_interrupted", retry: 30}
	gone.must(t, "a request whose load was under way", await(t, "r", loading))
	gone.must(t, "a request for a model of this host alone", w.ask("a"))
	for range 2 {
		if a := w.use("e"); a.Header.Get("x-runner") != "other" {
			t.Errorf("e is served by %s", a.Header.Get("x-runner"))
		}
	}
	for range 20 {
		if e, err := s.Next(); err != nil || strings.Contains(e, "error") {
			t.Fatalf("the stream: %.200q, %v", e, err)
		}
	}
	if st := w.hget("rv:{main}:host:spot", "state"); st != "draining" {
		t.Errorf("the host is %s", st)
	}
}

// Row 26, its end: 10 s before the machine stops, streams end with an error event, and the host is written asleep. The
// runner stays, or it would be started again.
func TestRow26SpotEnd(t *testing.T) {
	t.Parallel()
	w, service := spot(t, calls.Catalogue{"a": "llm, hosts: [spot], " + calls.Options(slow), "silent": "reranking, hosts: [spot], " + calls.Options("--hang infer")})
	s := calls.Open(t, w.client, w.url, "a", 100000)
	silent := later(func() calls.Answer { return w.ask("silent") })
	kit.Becomes(t, "requests of silent", "1", func() string { return w.field("silent", "in_flight") })
	service.Interrupt(time.Now().Add(11 * time.Second))
	last, err := s.Last()
	endsWith(t, "stream", last, err, "host_interrupted")
	calm{status: 503, typ: "server_error", code: "host_interrupted", retry: 30}.must(t, "a request without an answer", await(t, "silent", silent))
	kit.Becomes(t, "state of the host", "asleep", func() string { return w.hget("rv:{main}:host:spot", "state") })
	if n := len(w.loaded()); n != 0 {
		t.Errorf("%d models are left", n)
	}
	if v := w.view(); !v.Draining {
		t.Errorf("the runner says %+v", v)
	}
}
