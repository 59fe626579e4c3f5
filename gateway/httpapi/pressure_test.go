package httpapi

import (
	"bufio"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"reveille/gateway/pressure"
)

// Near its memory limit a gateway keeps no connections, then refuses new requests. Open requests continue.
func TestMemorySteps(t *testing.T) {
	var used atomic.Int64
	var gauge *pressure.Gauge
	goOn := make(chan struct{})
	s := newStage(t, func(_ *stage, c *Config) {
		gauge = pressure.New(1000, used.Load)
		c.Memory = gauge
	}).warm("chat").serve(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, one)
		w.(http.Flusher).Flush()
		<-goOn
		_, _ = io.WriteString(w, end)
	})
	set := func(n int64) { used.Store(n); gauge.Sample() }
	stream := s.open(t.Context(), "POST", chatPath, chatLive)
	if first, err := bufio.NewReader(io.LimitReader(stream.Body, int64(len(one)))).ReadString('\n'); err != nil {
		t.Fatalf("%q %v", first, err)
	}
	models := "GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"

	set(930)
	if r := s.dial().say(models); r.status != 200 || r.header.Get("Connection") != "close" {
		t.Errorf("at 93 %%: %d, Connection %q", r.status, r.header.Get("Connection"))
	}
	set(960)
	for _, body := range []string{chatBody, chatBody[:len(chatBody)-1] + `,"x":"` + strings.Repeat("y", 1<<20) + `"}`} {
		r := s.dial().say(post(chatPath, body))
		if r.status != 503 || r.code() != "overloaded" || r.header.Get("Retry-After") == "" || r.header.Get("Connection") != "close" {
			t.Errorf("at 96 %%, a body of %d bytes: %d %q %v", len(body), r.status, r.text, r.header)
		}
	}
	if r := s.ask("POST", "/v1/load", `{"model_name":"chat"}`); r.status != 503 || r.code() != "overloaded" {
		t.Errorf("load: %d %q", r.status, r.text)
	}
	for _, path := range []string{"/live", "/ready", "/health", "/metrics"} {
		if r := s.ask("GET", path, ""); r.status != 200 {
			t.Errorf("%s: %d", path, r.status)
		}
	}
	if r := s.ask("POST", "/v1/nothing", "{}"); r.status != 404 {
		t.Errorf("no such route: %d", r.status)
	}
	close(goOn)
	if r := s.read(stream); !strings.HasSuffix(r.text, end) {
		t.Errorf("the open stream: %q", r.text)
	}
	set(500)
	if r := s.dial().say(models); r.status != 200 || r.header.Get("Connection") == "close" {
		t.Errorf("at 50 %%: %d, Connection %q", r.status, r.header.Get("Connection"))
	}
	if r := s.ask("GET", "/metrics", ""); !strings.Contains(r.text, "reveille_gateway_memory_used_bytes 500\n") || !strings.Contains(r.text, "reveille_gateway_memory_limit_bytes 1000\n") {
		t.Error("the metrics do not tell")
	}
}
