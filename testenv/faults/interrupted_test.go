package faults

import (
	"strings"
	"testing"
	"time"

	"reveille/testenv/calls"
	"reveille/testenv/imds"
	"reveille/testenv/kit"
	"reveille/testenv/worlds"
)

// spot starts a gateway over two hosts: `spot`, whose machine's metadata service is returned, and `other`, which the
// models that name no host may use too. The eyes of the world are on spot.
func spot(t *testing.T, models calls.Catalogue, args ...string) (*world, *imds.Service) {
	t.Helper()
	service := imds.Start(t, map[string]string{imds.InstanceID: "i-0123456789abcdef0", imds.Target: "InService"})
	w := &world{worlds.StartFleet(t, worlds.Fleet{Models: models, Hosts: []worlds.Host{
		{Name: "spot", Flags: append([]string{"--devices=cpu", "--instance=aws"}, args...), Env: []string{imds.Endpoint + "=" + service.URL}, Entry: ", devices: [cpu]"},
		{Name: "other", Flags: []string{"--devices=cpu"}, Entry: ", devices: [cpu]"},
	}})}
	return w, service
}

// Row 26: two minutes before AWS takes a spot instance its host drains. Its stream goes on; new requests go to another
// host, or are told to come back where there is none.
func TestRow26SpotNotice(t *testing.T) {
	t.Parallel()
	w, service := spot(t, calls.Catalogue{
		"a": "llm, hosts: [spot], " + calls.Options(worlds.Slow), "e": "embedding, hosts: [spot, other]", "r": "reranking, hosts: [spot], " + calls.Options("--load-time 60s"),
	})
	s := w.Chat("a", 100000)
	if a := w.Use("e"); a.Header.Get("x-runner") != "spot" {
		t.Fatalf("e is served by %s", a.Header.Get("x-runner"))
	}
	loading := worlds.Later(func() calls.Answer { return w.Ask("r") })
	kit.Becomes(t, "state of r", "loading", func() string { return w.Field("r", "state") })
	began := time.Now()
	service.Interrupt(began.Add(2 * time.Minute))
	kit.Becomes(t, "state of the host", "draining", func() string { return w.HGet("rv:{main}:host:spot", "state") })
	t.Logf("draining %v after the notice", time.Since(began))
	gone := calm{status: 503, typ: "server_error", code: "host_interrupted", retry: 30}
	gone.must(t, "a request whose load was under way", worlds.Await(t, "r", loading))
	gone.must(t, "a request for a model of this host alone", w.Ask("a"))
	for range 2 {
		if a := w.Use("e"); a.Header.Get("x-runner") != "other" {
			t.Errorf("e is served by %s", a.Header.Get("x-runner"))
		}
	}
	for range 20 {
		if e, err := s.Next(); err != nil || strings.Contains(e, "error") {
			t.Fatalf("the stream: %.200q, %v", e, err)
		}
	}
	if st := w.HGet("rv:{main}:host:spot", "state"); st != "draining" {
		t.Errorf("the host is %s", st)
	}
}

// Row 26, its end: 10 s before the machine stops, streams end with an error event, and the host is written asleep. The
// runner stays, or it would be started again.
func TestRow26SpotEnd(t *testing.T) {
	t.Parallel()
	w, service := spot(t, calls.Catalogue{"a": "llm, hosts: [spot], " + calls.Options(worlds.Slow), "silent": "reranking, hosts: [spot], " + calls.Options("--hang infer")})
	s := w.Chat("a", 100000)
	silent := worlds.Later(func() calls.Answer { return w.Ask("silent") })
	kit.Becomes(t, "requests of silent", "1", func() string { return w.Field("silent", "in_flight") })
	service.Interrupt(time.Now().Add(11 * time.Second))
	last, err := s.Last()
	endsWith(t, "stream", last, err, "host_interrupted")
	calm{status: 503, typ: "server_error", code: "host_interrupted", retry: 30}.must(t, "a request without an answer", worlds.Await(t, "silent", silent))
	kit.Becomes(t, "state of the host", "asleep", func() string { return w.HGet("rv:{main}:host:spot", "state") })
	if n := len(w.Loaded()); n != 0 {
		t.Errorf("%d models are left", n)
	}
	if v := w.view(); !v.Draining {
		t.Errorf("the runner says %+v", v)
	}
}
