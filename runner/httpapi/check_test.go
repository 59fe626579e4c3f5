package httpapi_test

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"reveille/infra/rpc"
	"reveille/runner/httpapi"
)

// checked asks the runner to check a model's engine, and reports whether it crashed recently.
func (b *bench) checked(model string) bool {
	b.Helper()
	a := b.call("GET", rpc.PathCheck+model, "", "")
	var c rpc.Check
	if err := json.Unmarshal([]byte(a.body), &c); a.status != 200 || err != nil {
		b.Errorf("check of %s: %+v", model, a)
	}
	return c.CrashedMS != nil
}

// A check asks the engine's loop for a sign of life. Only an engine whose loop gives none in time is ended, whatever
// its connection threads answer to others.
func TestCheck(t *testing.T) {
	silent := func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }
	says := func(text string) func(net.Conn) { return func(c net.Conn) { _, _ = io.WriteString(c, text) } }
	for name, c := range map[string]struct {
		loop  func(net.Conn)
		none  bool // the engine has no path that its loop answers
		ended bool
	}{
		"turns":                {loop: says(sized("application/json", "[]"))},
		"does not let look":    {loop: says("HTTP/1.1 501 No\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")},
		"fails":                {loop: says("HTTP/1.1 500 No\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")},
		"closes connections":   {loop: says("")},
		"has no path for that": {loop: silent, none: true},
		"hangs":                {loop: silent, ended: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t, func(c *httpapi.Config) { c.FirstByte = 100 * time.Millisecond })
			b.load("text")
			f := b.engines.fakes[0]
			if f.loop = "/slots"; c.none {
				f.loop = ""
			}
			b.engines.handle = func(conn net.Conn, r *http.Request) {
				if r.URL.Path != "/slots" {
					_, _ = io.WriteString(conn, sized("application/json", "{}"))
					return
				}
				if r.Method != "GET" || r.Header.Get("Authorization") != "Bearer engine-key" {
					t.Errorf("%s %v", r.Method, r.Header)
				}
				c.loop(conn)
			}
			chatter, stop := context.WithCancel(t.Context())
			var talk sync.WaitGroup
			talk.Go(func() {
				for chatter.Err() == nil {
					b.call("POST", "/tokenize", "text", "{}")
				}
			})
			if crashed := b.checked("text"); crashed != c.ended {
				t.Errorf("crashed: %v, want %v", crashed, c.ended)
			}
			stop()
			talk.Wait()
			if c.ended {
				b.until("the engine is gone", func() bool { return len(b.host.View().Models) == 0 })
				if metrics := b.call("GET", rpc.PathMetrics, "", "").body; !strings.Contains(metrics, `reveille_runner_engine_restarts_total{reason="no_answer"} 1`) {
					t.Error("the metric does not count the engine")
				}
			} else if v := b.host.View(); len(v.Models) != 1 || v.Models[0].State != "loaded" || len(b.engines.fakes) != 1 {
				t.Errorf("the engine did not stay: %+v", v.Models)
			}
			if c.ended && !b.checked("text") {
				t.Error("the crash is forgotten")
			}
		})
	}
}

// An engine that died by itself is reported, one that the host stopped is not.
func TestCheckAfterTheEnd(t *testing.T) {
	b := start(t)
	if b.checked("text") {
		t.Error("a model that was never loaded crashed")
	}
	b.load("text")
	b.host.UnloadSuspect("text", b.host.EngineOf("text"), "a test")
	b.until("the engine is gone", func() bool { return len(b.host.View().Models) == 0 })
	if b.checked("text") {
		t.Error("a model that was unloaded crashed")
	}
	b.load("text")
	_ = b.engines.fakes[1].Stop(t.Context())
	if !b.checked("text") {
		t.Error("a model whose engine died did not crash")
	}
	r := b.request(t.Context(), "GET", rpc.PathCheck+"text", "", "")
	r.Header.Del(rpc.HeaderAuth)
	if a := b.do(r); a.status != rpc.StatusRefused {
		t.Errorf("without a signature: %+v", a)
	}
}

// The loop of an engine with a request is checked at intervals, although the request's client neither leaves nor times
// out.
func TestLoopIsWatched(t *testing.T) {
	b := start(t, func(c *httpapi.Config) { c.FirstByte = 100 * time.Millisecond })
	b.load("text")
	b.engines.fakes[0].loop = "/slots"
	b.engines.handle = func(conn net.Conn, r *http.Request) {
		if r.URL.Path == "/slots" { // the loop hangs
			_, _ = io.Copy(io.Discard, conn)
			return
		}
		if _, err := io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"); err != nil {
			return
		}
		for {
			if _, err := io.WriteString(conn, "data: {}\n\n"); err != nil {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	if a := b.call("POST", "/v1/chat/completions", "text", `{"stream":true}`); a.status != 200 { // it ends with the engine
		t.Errorf("%+v", a)
	}
	if !b.checked("text") {
		t.Error("the engine was not ended")
	}
}

// A request without a body gives the engine's loop nothing to do, so the loop is not checked for it.
func TestLoopIsNotWatchedWithoutInput(t *testing.T) {
	b := start(t, func(c *httpapi.Config) { c.FirstByte = 100 * time.Millisecond })
	b.load("text")
	b.engines.fakes[0].loop = "/slots"
	var checks atomic.Int32
	b.engines.handle = func(conn net.Conn, r *http.Request) {
		if r.URL.Path == "/slots" {
			checks.Add(1)
		} else {
			time.Sleep(300 * time.Millisecond) // in which a watched loop is checked
		}
		_, _ = io.WriteString(conn, sized("application/json", "[]"))
	}
	if a := b.call("GET", "/props", "text", ""); a.status != 200 || checks.Load() != 0 {
		t.Errorf("%d checks, %+v", checks.Load(), a)
	}
}
