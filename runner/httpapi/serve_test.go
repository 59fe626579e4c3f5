package httpapi_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"testing"
	"time"

	"reveille/infra/logring"
	"reveille/infra/rpc"
	"reveille/infra/state"
	"reveille/runner/fairqueue"
	"reveille/runner/httpapi"
)

const chat = "/v1/chat/completions"

func ask(stream bool) string {
	return fmt.Sprintf(`{"model":"real","stream":%v,"messages":[{"role":"user","content":"hello"}]}`, stream)
}

func TestResponseIsRelayed(t *testing.T) {
	b := start(t)
	b.load("real")
	if a := b.call("POST", chat, "real", ask(false)); a.status != 200 || !strings.Contains(a.body, `"choices"`) {
		t.Errorf("%+v", a)
	}
	if a := b.call("POST", chat, "real", ask(true)); a.status != 200 || !strings.HasSuffix(a.body, "data: [DONE]\n\n") || a.err != nil {
		t.Errorf("%+v", a)
	}
	if a := b.call("HEAD", "/health", "real", ""); a.status != 200 {
		t.Errorf("HEAD: %+v", a)
	}
	if a := b.call("POST", chat, "real", `{"messages":`); a.status != 400 || a.header.Get(rpc.HeaderCode) != "" {
		t.Errorf("an engine's own refusal: %+v", a)
	}
	var v struct{ Models []struct{ ID, Cmd string } }
	if a := b.call("GET", rpc.PathHost, "", ""); json.Unmarshal([]byte(a.body), &v) != nil || len(v.Models) != 1 || v.Models[0].ID != "real" {
		t.Errorf("view: %+v", a)
	}
	if a := b.call("GET", rpc.PathLogs+"real", "", ""); a.status != 200 || !strings.Contains(a.body, "listening") {
		t.Errorf("log: %+v", a)
	}
	b.until("no request is open", func() bool { return b.open() == 0 })
}

func TestInvalidRequestsAreRefused(t *testing.T) {
	b := start(t)
	b.load("fake")
	b.engines.handle = func(net.Conn, *http.Request) { t.Error("a refused request reached an engine") }
	foreign := rpc.NewSigner([]byte("another secret than ours"))
	late := rpc.NewSigner(secret)
	late.Correct("h", time.Now().Add(-time.Minute).UnixMilli())
	for name, c := range map[string]struct {
		change func(r *http.Request)
		model  string
		reason string
		time   bool
	}{
		"no signature": {func(r *http.Request) { r.Header.Del(rpc.HeaderAuth) }, "fake", rpc.RefusedAuth, false},
		"foreign secret": {func(r *http.Request) {
			r.Header.Set(rpc.HeaderAuth, foreign.Sign(rpc.Call{Method: "POST", Path: "/x", Host: "h", Model: "fake", Length: 2}))
		}, "fake", rpc.RefusedAuth, false},
		"clock is off": {func(r *http.Request) {
			r.Header.Set(rpc.HeaderAuth, late.Sign(rpc.Call{Method: "POST", Path: "/x", Host: "h", Model: "fake", Length: 2}))
		}, "fake", rpc.RefusedAuth, true},
		"another host": {func(r *http.Request) {
			r.Header.Set(rpc.HeaderAuth, b.signer.Sign(rpc.Call{Method: "POST", Path: "/x", Host: "other", Model: "fake", Length: 2}))
		}, "fake", rpc.RefusedHost, false},
		"another model": {func(r *http.Request) { r.Header.Set(rpc.HeaderModel, "real") }, "fake", rpc.RefusedAuth, false},
		"another query": {func(r *http.Request) { r.URL.RawQuery = "a=1" }, "fake", rpc.RefusedAuth, false},
		"not loaded":    {func(*http.Request) {}, "slow", rpc.RefusedNotLoaded, false},
	} {
		r := b.request(t.Context(), "POST", "/x", c.model, "{}")
		c.change(r)
		a := b.do(r)
		if a.status != rpc.StatusRefused || a.header.Get(rpc.HeaderRefused) != c.reason {
			t.Errorf("%s: %d %q, want %q", name, a.status, a.header.Get(rpc.HeaderRefused), c.reason)
		}
		ms, _ := strconv.ParseInt(a.header.Get(rpc.HeaderTime), 10, 64)
		if c.time != (ms != 0) || c.time && time.Since(time.UnixMilli(ms)).Abs() > 20*time.Second {
			t.Errorf("%s: %s %q", name, rpc.HeaderTime, a.header.Get(rpc.HeaderTime))
		}
	}
	twice := b.request(t.Context(), "GET", rpc.PathHost, "", "")
	if a := b.do(twice); a.status != 200 {
		t.Errorf("%+v", a)
	}
	if a := b.do(twice); a.header.Get(rpc.HeaderRefused) != rpc.RefusedAuth {
		t.Errorf("replayed: %+v", a)
	}
	for path, want := range map[string]int{rpc.PathHealth: 200, rpc.PathMetrics: 200, "/nothing": 404} {
		if a := b.call("GET", path, "", ""); a.status != want {
			t.Errorf("%s: %d", path, a.status)
		}
	}
	for path, want := range map[string]int{
		rpc.PathHealth: 200, rpc.PathMetrics: 200, rpc.PathHost: rpc.StatusRefused, rpc.PathLog: rpc.StatusRefused,
		rpc.PathLogs + "fake": rpc.StatusRefused, rpc.PathSendBack + "?model=fake&n=1": rpc.StatusRefused,
		rpc.PathSavedConversations: rpc.StatusRefused, "/nothing": rpc.StatusRefused,
	} {
		r := b.request(t.Context(), "GET", path, "", "")
		r.Header.Del(rpc.HeaderAuth)
		if a := b.do(r); a.status != want {
			t.Errorf("%s, unsigned: %d", path, a.status)
		}
	}
	rebound := b.request(t.Context(), "GET", rpc.PathMetrics, "", "")
	rebound.Header.Del(rpc.HeaderAuth)
	rebound.Host = "evil.example"
	if a := b.do(rebound); a.status != rpc.StatusRefused {
		t.Errorf("metrics under a foreign name: %+v", a)
	}
	if a := b.call("GET", rpc.PathLogs+"none", "", ""); a.status != 404 {
		t.Errorf("log of nothing: %+v", a)
	}
}

// elsewhere is a listener whose connections come from another machine.
type elsewhere struct{ net.Listener }

func (l elsewhere) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return far{c}, err
}

type far struct{ net.Conn }

func (far) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(203, 0, 113, 7), Port: 1} }

// TestRemoteMetricsNeedASignature: a runner serves its metrics only to its own machine and to gateways.
func TestRemoteMetricsNeedASignature(t *testing.T) {
	b := start(t)
	srv := httpapi.New(httpapi.Config{Name: "h", Host: b.host, Secret: secret, Log: slog.New(slog.DiscardHandler)})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	b.must(err)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(elsewhere{ln}) }()
	b.url = "http://" + ln.Addr().String()
	signed := b.request(t.Context(), "GET", rpc.PathMetrics, "", "")
	if a := b.do(signed); a.status != 200 {
		t.Errorf("signed: %+v", a)
	}
	for name, value := range map[string]string{"X-Forwarded-For": "127.0.0.1", "Host": "localhost", rpc.HeaderAuth: ""} {
		r := b.request(t.Context(), "GET", rpc.PathMetrics, "", "")
		r.Header.Del(rpc.HeaderAuth)
		r.Header.Set(name, value)
		if a := b.do(r); a.status != rpc.StatusRefused || a.header.Get(rpc.HeaderRefused) != rpc.RefusedAuth || strings.Contains(a.body, "reveille_") {
			t.Errorf("with %s %q: %+v", name, value, a)
		}
	}
	b.must(srv.Shutdown(t.Context()))
	b.must(<-served)
}

// head returns an engine's response up to its body. The fakes close each connection after their response.
func head(kind, more string) string {
	return "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: " + kind + "\r\n" + more + "\r\n"
}

func TestEngineFaultsAreReported(t *testing.T) {
	b := start(t, func(c *httpapi.Config) { c.FirstByte = 300 * time.Millisecond })
	b.load("fake")
	const first = "data: {\"n\":1}\n\n"
	sse := head("text/event-stream", "Transfer-Encoding: chunked\r\n") + fmt.Sprintf("%x\r\n%s\r\n", len(first), first)
	write := func(s string) func(net.Conn, *http.Request) {
		return func(c net.Conn, _ *http.Request) { _, _ = io.WriteString(c, s) }
	}
	silent := func(s string) func(net.Conn, *http.Request) {
		return func(c net.Conn, _ *http.Request) { _, _ = io.WriteString(c, s); _, _ = io.Copy(io.Discard, c) }
	}
	for name, c := range map[string]struct {
		handle func(net.Conn, *http.Request)
		path   string
		status int
		code   string
		body   string // the end of it
		cut    bool
	}{
		"exits without a response": {write(""), chat, 502, "runner_failed", "", false},
		"dies in its head":         {write("HTTP/1.1 200 OK\r\nConte"), chat, 502, "runner_failed", "", false},
		"sends garbage":            {write("SSH-2.0\r\n"), chat, 502, "bad_engine_reply", "", false},
		"says nothing":             {silent(""), chat, 504, "upstream_timeout", "", false},
		"dies in a body":           {write(head("application/json", "Content-Length: 50\r\n") + "{"), chat, 200, "", "{", true},
		"falls silent in a body":   {silent(head("application/json", "Content-Length: 50\r\n") + "{"), chat, 200, "", "{", true},
		"dies in a stream":         {write(sse), chat, 200, "", first + `data: {"error":{"code":"runner_failed","message":"The connection to the engine was lost before the response was complete.","param":null,"type":"server_error"}}` + "\n\n", false},
		"falls silent in a stream": {silent(sse), chat, 200, "", `"type":"server_error"}}` + "\n\n", false},
		"dies in an event":         {write(sse + "6\r\ndata: \r\n"), "/v1/responses", 200, "", "\n\n" + `data: {"error":{"code":"runner_failed","message":"The connection to the engine was lost before the response was complete.","param":null,"type":"server_error"}}` + "\n\n", false},
		"dies in Anthropic's":      {write(sse), "/v1/messages", 200, "", first + `data: {"error":{"code":"runner_failed","message":"The connection to the engine was lost before the response was complete.","param":null,"type":"server_error"}}` + "\n\n", false},
		"own error":                {write("HTTP/1.1 500 Oh\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"), chat, 500, "", "{}", false},
	} {
		t.Run(name, func(t *testing.T) {
			b.engines.handle = c.handle
			for way, call := range ways {
				a := call(b, "POST", c.path, "fake", "{}")
				if a.status != c.status || a.header.Get(rpc.HeaderCode) != c.code || !strings.HasSuffix(a.body, c.body) || (a.err != nil) != c.cut {
					t.Errorf("%s: %d %q %q %v", way, a.status, a.header.Get(rpc.HeaderCode), a.body, a.err)
				}
				b.until("the request is counted off", func() bool { return b.open() == 0 })
			}
		})
	}
}

// sized returns a complete response with status 200.
func sized(kind, body string) string {
	return head(kind, fmt.Sprintf("Content-Length: %d\r\n", len(body))) + body
}

// An engine gets no more concurrent requests than it has permits. The others wait in order, and do not delay a request
// that only reads the engine's state.
func TestRequestsWaitTheirTurn(t *testing.T) {
	b := start(t)
	b.load("fake")
	b.engines.fakes[0].permits = fairqueue.New(1)
	seen, next := make(chan string, 10), make(chan struct{})
	b.engines.handle = func(c net.Conn, r *http.Request) {
		if r.Method == "POST" && r.URL.Path == chat {
			seen <- r.URL.RawQuery
			<-next
		}
		_, _ = io.WriteString(c, sized("application/json", "{}"))
	}
	waiting := func(n int) {
		t.Helper()
		b.until(fmt.Sprintf("%d wait", n), func() bool {
			return strings.Contains(b.call("GET", rpc.PathMetrics, "", "").body, fmt.Sprintf("reveille_runner_requests_waiting %d\n", n))
		})
	}
	answers := make(chan answer, 10)
	ask := func(query string) context.CancelFunc {
		ctx, cancel := context.WithCancel(t.Context())
		req := b.request(ctx, "POST", chat+"?"+query, "fake", "{}")
		go func() {
			resp, err := b.client.Do(req)
			if err != nil {
				answers <- answer{err: err}
				return
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			answers <- answer{resp.StatusCode, resp.Header, string(body), err}
		}()
		return cancel
	}
	ask("n=0")
	select {
	case got := <-seen:
		if got != "n=0" {
			t.Error(got)
		}
	case a := <-answers:
		t.Fatalf("%+v", a)
	}
	leave := ask("n=1")
	waiting(1)
	ask("n=2")
	waiting(2)
	if a := b.call("GET", "/props", "fake", ""); a.status != 200 {
		t.Errorf("%+v", a)
	}
	leave()
	if a := <-answers; a.err == nil {
		t.Errorf("a disconnected client has a response: %+v", a)
	}
	waiting(1)
	for range 2 {
		next <- struct{}{}
		if a := <-answers; a.status != 200 || a.body != "{}" {
			t.Errorf("%+v", a)
		}
	}
	if got := <-seen; got != "n=2" {
		t.Errorf("%s had its turn", got)
	}
	b.until("no request is open", func() bool { return b.open() == 0 })
}

// A tenant with many requests delays its own: the next permit goes to a waiting tenant that has none.
func TestTenantsTakeTurns(t *testing.T) {
	b := start(t)
	b.load("fake")
	b.engines.fakes[0].permits = fairqueue.New(1)
	seen, next := make(chan string, 10), make(chan struct{})
	b.engines.handle = func(c net.Conn, r *http.Request) {
		seen <- r.URL.RawQuery
		<-next
		_, _ = io.WriteString(c, sized("application/json", "{}"))
	}
	answers := make(chan answer, 10)
	for n, query := range []string{"a=0", "a=1", "a=2", "a=3", "b=0"} {
		req := b.request(t.Context(), "POST", chat+"?"+query, "fake", "{}")
		req.Header.Set(rpc.HeaderTenant, query[:1])
		go func() { answers <- b.do(req) }()
		b.until(fmt.Sprintf("%d wait", n), func() bool {
			return b.open() == n+1 && strings.Contains(b.call("GET", rpc.PathMetrics, "", "").body, fmt.Sprintf("reveille_runner_requests_waiting %d\n", n))
		})
	}
	for _, want := range []string{"a=0", "b=0", "a=1", "a=2", "a=3"} {
		if got := <-seen; got != want {
			t.Errorf("%s had the turn of %s", got, want)
		}
		next <- struct{}{}
		if a := <-answers; a.status != 200 {
			t.Errorf("%+v", a)
		}
	}
}

func TestPermitWaitTimesOut(t *testing.T) {
	b := start(t, func(c *httpapi.Config) { c.FirstByte = 100 * time.Millisecond })
	b.load("fake")
	b.engines.fakes[0].permits = fairqueue.New(0)
	if a := b.call("POST", chat, "fake", "{}"); a.status != 504 || a.header.Get(rpc.HeaderCode) != "queue_timeout" {
		t.Errorf("%+v", a)
	}
	b.until("no request is open", func() bool { return b.open() == 0 })
}

// After three invalid responses in a minute the engine is restarted, once its other requests are done.
func TestInvalidResponsesRestartTheEngine(t *testing.T) {
	b := start(t)
	b.load("fake")
	goOn, began := make(chan struct{}), make(chan struct{})
	b.engines.handle = func(c net.Conn, r *http.Request) {
		if r.URL.Path == "/long" {
			close(began)
			<-goOn
			_, _ = io.WriteString(c, sized("text/plain", "done"))
			return
		}
		_, _ = io.WriteString(c, "SSH-2.0\r\n")
	}
	long := make(chan answer, 1)
	go func() { long <- b.call("POST", "/long", "fake", "{}") }()
	<-began
	for i := range 3 {
		time.Sleep(time.Duration(min(i, 1)) * 1100 * time.Millisecond) // bad responses within a second count once
		if v := b.host.View(); len(v.Models) != 1 || v.Models[0].Closed {
			t.Fatalf("after %d: %+v", i, v.Models)
		}
		if a := b.call("POST", chat, "fake", "{}"); a.status != 502 {
			t.Fatalf("%+v", a)
		}
	}
	b.until("the model takes no request", func() bool { v := b.host.View(); return len(v.Models) == 1 && v.Models[0].Closed })
	close(goOn)
	if a := <-long; a.status != 200 || a.body != "done" {
		t.Errorf("another request's response: %+v", a)
	}
	b.until("the engine is gone", func() bool { return len(b.host.View().Models) == 0 })
	b.load("fake")
	if n := len(b.engines.fakes); n != 2 {
		t.Errorf("%d engines were started, want 2", n)
	}
}

// An engine that falls silent is probed. It stays if it responds to the probe, and is ended if it does not.
func TestSilentEngineIsProbed(t *testing.T) {
	for name, c := range map[string]struct {
		probe string // the response to it
		ended bool
	}{
		"responds to the probe": {probe: sized("application/json", "{}")},
		"refuses the probe":     {probe: "HTTP/1.1 404 No\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"},
		"fails the probe":       {probe: "HTTP/1.1 500 No\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", ended: true},
		"breaks the probe":      {probe: "", ended: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t, func(c *httpapi.Config) { c.FirstByte = 100 * time.Millisecond })
			b.load("text")
			probed := make(chan string, 8)
			b.engines.handle = func(conn net.Conn, r *http.Request) {
				if r.URL.Path == chat {
					_, _ = io.Copy(io.Discard, conn)
					return
				}
				_, _ = io.WriteString(conn, c.probe)
				probed <- r.Method + " " + r.URL.Path + " " + r.Header.Get("Authorization")
			}
			for seen, tries := 0, 0; seen < 2; tries++ { // the second probe comes when the first has been judged
				if a := b.call("POST", chat, "text", `{"stream":true}`); a.status != 504 || a.header.Get(rpc.HeaderCode) != "upstream_timeout" {
					t.Errorf("%+v", a)
				}
				select {
				case p := <-probed:
					if seen++; p != "POST /v1/completions Bearer engine-key" {
						t.Errorf("probed with %s", p)
					}
				case <-time.After(time.Second):
					if tries > 30 {
						t.Fatal("no probe")
					}
				}
				if c.ended {
					b.until("the engine is gone", func() bool { return len(b.host.View().Models) == 0 })
					return
				}
			}
			if v := b.host.View(); len(v.Models) != 1 || v.Models[0].State != "loaded" || len(b.engines.fakes) != 1 {
				t.Errorf("the engine did not stay: %+v", v.Models)
			}
		})
	}
}

// While an engine has a request, its main loop is checked at intervals, whatever its other threads respond. An engine
// whose loop hangs is ended, although the request's client neither leaves nor times out.
func TestStuckLoopEndsTheEngine(t *testing.T) {
	says := func(text string) func(net.Conn) { return func(c net.Conn) { _, _ = io.WriteString(c, text) } }
	for name, c := range map[string]struct {
		loop  func(net.Conn)
		ended bool
	}{
		"turns":              {loop: says(sized("application/json", "[]"))},
		"fails":              {loop: says("HTTP/1.1 500 No\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")},
		"closes connections": {loop: says("")},
		"hangs":              {loop: func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }, ended: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t, func(c *httpapi.Config) { c.FirstByte = 100 * time.Millisecond })
			b.load("text")
			checks := make(chan struct{}, 8)
			b.engines.fakes[0].loop = "/slots"
			b.engines.handle = func(conn net.Conn, r *http.Request) {
				if r.URL.Path == "/slots" {
					if r.Method != "GET" || r.Header.Get("Authorization") != "Bearer engine-key" {
						t.Errorf("%s %v", r.Method, r.Header)
					}
					checks <- struct{}{}
					c.loop(conn)
					return
				}
				_, err := io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
				for range 400 { // the check comes after 2 s
					if err != nil || len(checks) > 0 && !c.ended {
						return
					}
					_, err = io.WriteString(conn, "data: {}\n\n")
					time.Sleep(20 * time.Millisecond)
				}
			}
			if a := b.call("POST", "/own", "text", `{"stream":true}`); a.status != 200 {
				t.Errorf("%+v", a)
			}
			if len(checks) == 0 {
				t.Error("no check")
			}
			if c.ended {
				b.until("the engine is gone", func() bool { return len(b.host.View().Models) == 0 })
				metrics := b.call("GET", rpc.PathMetrics, "", "").body
				if !strings.Contains(metrics, `reveille_runner_engine_restarts_total{reason="no_answer"} 1`) {
					t.Error("the metric does not count the engine")
				}
			} else if v := b.host.View(); len(v.Models) != 1 || v.Models[0].State != "loaded" || len(b.engines.fakes) != 1 {
				t.Errorf("the engine did not stay: %+v", v.Models)
			}
		})
	}
}

// What an engine receives: the request as it arrived, with the engine's own key and nothing of the protocol.
func TestEngineGetsItsOwnKey(t *testing.T) {
	b := start(t)
	b.load("fake")
	got := make(chan *http.Request, 1)
	b.engines.handle = func(c net.Conn, r *http.Request) {
		got <- r
		_, _ = io.WriteString(c, head("application/json", "Content-Length: 2\r\n")+"{}")
	}
	r := b.request(t.Context(), "POST", "/v1/x?y=1", "fake", "{}")
	r.Header.Set("Cookie", "secret")
	b.do(r)
	e := <-got
	if e.RequestURI != "/v1/x?y=1" || e.Header.Get("Authorization") != "Bearer engine-key" || e.ContentLength != 2 {
		t.Errorf("%s %v", e.RequestURI, e.Header)
	}
	for name := range e.Header {
		if strings.HasPrefix(name, "X-Reveille") || name == "Cookie" {
			t.Errorf("the engine sees %s", name)
		}
	}
}

// A gateway that leaves frees the engine and the reference to it within about a second, whatever the engine is doing.
func TestDisconnectEndsTheEngineRequest(t *testing.T) {
	b := start(t)
	b.load("fake")
	for name, first := range map[string]string{"before a response": "", "in a silent stream": head("text/event-stream", "Transfer-Encoding: chunked\r\n")} {
		t.Run(name, func(t *testing.T) {
			began, left := make(chan struct{}), make(chan struct{})
			b.engines.handle = func(c net.Conn, _ *http.Request) {
				_, _ = io.WriteString(c, first)
				close(began)
				_, _ = io.Copy(io.Discard, c)
				close(left)
			}
			ctx, leave := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() {
				resp, err := b.client.Do(b.request(ctx, "POST", chat, "fake", "{}"))
				if err == nil {
					_, err = io.Copy(io.Discard, resp.Body)
					_ = resp.Body.Close()
				}
				ended <- err
			}()
			<-began
			b.until("one request is open", func() bool { return b.open() == 1 })
			leave()
			<-ended
			select {
			case <-left:
			case <-time.After(10 * time.Second):
				t.Fatal("the engine goes on")
			}
			b.until("the reference is released", func() bool { return b.open() == 0 })
		})
	}
}

// hanging makes a request to the model fake, whose engine says first and no more. It returns when that was said; the
// response comes on the channel.
func (b *bench) hanging(first string) <-chan answer {
	began := make(chan struct{})
	b.engines.handle = func(conn net.Conn, _ *http.Request) {
		_, _ = io.WriteString(conn, first)
		close(began)
		_, _ = io.Copy(io.Discard, conn)
	}
	got, arrived := make(chan answer, 1), make(chan struct{})
	ctx := httptrace.WithClientTrace(b.Context(), &httptrace.ClientTrace{GotFirstResponseByte: func() { close(arrived) }})
	go func() { got <- b.do(b.request(ctx, "POST", chat, "fake", "{}")) }()
	<-began
	if first != "" {
		<-arrived
	}
	return got
}

// An unload that cuts ends a stream with an error event, and a request without a response with 503.
func TestUnloadCutsWithAnError(t *testing.T) {
	for name, c := range map[string]struct{ first, want string }{
		"stream":          {head("text/event-stream", "Transfer-Encoding: chunked\r\n") + "a\r\ndata: 1\n\n\n\r\n", `"code":"draining"`},
		"no response yet": {"", `"code":"draining"`},
	} {
		t.Run(name, func(t *testing.T) {
			b := start(t)
			b.load("fake")
			got := b.hanging(c.first)
			b.until("unload is queued", func() bool {
				s, err := b.store.Snapshot(t.Context())
				b.must(err)
				_, err = b.store.Acquire(t.Context(), state.Want{
					Gateway: "g", Model: "fake", Unload: true, OwnTicket: true, Unattended: true, Host: "h", Revision: s.RevisionOf("h", ""), Fields: map[string]string{"force": "1"},
				})
				return err == nil
			})
			a := <-got
			if !strings.Contains(a.body, c.want) || a.err != nil {
				t.Errorf("%+v", a)
			}
			b.until("the model is gone", func() bool { return len(b.host.View().Models) == 0 })
		})
	}
}

func TestUnreadableRequestsAreRefused(t *testing.T) {
	b := start(t, func(c *httpapi.Config) { c.Bodies.MaxBody = 1000 })
	b.load("fake")
	b.engines.handle = func(net.Conn, *http.Request) { t.Error("reached an engine") }
	if a := b.call("POST", chat, "fake", strings.Repeat("x", 2000)); a.status != 413 || !strings.Contains(a.body, "request_too_large") {
		t.Errorf("huge body: %+v", a)
	}
	for name, raw := range map[string]string{
		"two framings": "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"no HTTP":      "hello\r\n\r\n",
		"huge head":    "GET / HTTP/1.1\r\nHost: h\r\nA: " + strings.Repeat("x", 20<<10) + "\r\n\r\n",
	} {
		c, err := net.Dial("tcp", strings.TrimPrefix(b.url, "http://"))
		b.must(err)
		_, _ = io.WriteString(c, raw)
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else {
			body, _ := io.ReadAll(resp.Body)
			if resp.StatusCode < 400 || resp.StatusCode > 431 || !json.Valid(body) {
				t.Errorf("%s: %d %q", name, resp.StatusCode, body)
			}
		}
		_ = c.Close()
	}
}

func TestFollowedLogSendsNewLines(t *testing.T) {
	b := start(t)
	b.load("real")
	ctx, leave := context.WithCancel(t.Context())
	resp, err := b.client.Do(b.request(ctx, "GET", rpc.PathLogs+"real?follow=1&no-history=1", "", ""))
	b.must(err)
	defer resp.Body.Close()
	b.call("POST", chat, "real", ask(false))
	line, err := bufio.NewReader(resp.Body).ReadString('\n')
	if err != nil || line == "" {
		t.Errorf("%q %v", line, err)
	}
	leave() // the silent log is given up, or Shutdown at the end of the test would wait for it
}

// The runner's own log is for gateways alone, and a reader who follows it does not hold up the runner's end.
func TestRunnerServesItsLog(t *testing.T) {
	ring := logring.New(0)
	b := start(t, func(c *httpapi.Config) { c.Ring = ring })
	ring.Append("level=INFO msg=hello", time.Now())
	if a := b.call("GET", rpc.PathLog, "", ""); a.status != 200 || a.body != "level=INFO msg=hello\n" {
		t.Errorf("%+v", a)
	}
	unsigned := b.request(t.Context(), "GET", rpc.PathLog, "", "")
	unsigned.Header.Del(rpc.HeaderAuth)
	if a := b.do(unsigned); a.status != rpc.StatusRefused || strings.Contains(a.body, "hello") {
		t.Errorf("without a signature: %+v", a)
	}
	resp, err := b.client.Do(b.request(t.Context(), "GET", rpc.PathLog+"?follow=1", "", ""))
	b.must(err)
	defer resp.Body.Close()
	lines := bufio.NewReader(resp.Body)
	if line, err := lines.ReadString('\n'); err != nil || line != "level=INFO msg=hello\n" {
		t.Errorf("%q %v", line, err)
	}
	end, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	b.must(b.server.Shutdown(end))
	if line, err := lines.ReadString('\n'); err != io.EOF {
		t.Errorf("%q %v", line, err)
	}
}
