package httpapi

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"reveille/gateway/accesslog"
)

// TestChecksRunInOrder combines faults in pairs: the earlier check wins.
func TestChecksRunInOrder(t *testing.T) {
	set := keyFile(t, "both-key infer,manage\ninfer-key infer\nmanage-key manage\n")
	s := newStage(t, func(_ *stage, c *Config) { c.Keys = set; c.MaxBody = 4096 })
	model := regexp.MustCompile(`"model":"[^"]*"`)
	type ask struct {
		key, method, path, body string
	}
	faults := []struct {
		name   string
		apply  func(*ask)
		status int
		code   string
	}{
		{"no key", func(a *ask) { a.key = "wrong" }, 401, "invalid_api_key"},
		{"no scope", func(a *ask) { a.key = "manage-key" }, 403, "insufficient_scope"},
		{"wrong method", func(a *ask) { a.method = "PUT" }, 405, "method_not_allowed"},
		{"too large", func(a *ask) { a.body += strings.Repeat(" ", 70_000) }, 413, "request_too_large"},
		{"no JSON", func(a *ask) { a.body = "{" + a.body }, 400, "invalid_json"},
		{"no model", func(a *ask) { a.body = model.ReplaceAllString(a.body, `"model":""`) }, 400, "missing_required_parameter"},
		{"unknown model", func(a *ask) { a.body = model.ReplaceAllString(a.body, `"model":"nobody"`) }, 404, "model_not_found"},
		{"wrong type", func(a *ask) { a.body = model.ReplaceAllString(a.body, `"model":"vec"`) }, 400, "model_type_mismatch"},
	}
	good := ask{"infer-key", "POST", chatPath, chatBody}
	for i, first := range faults {
		for j, second := range faults[i:] {
			a := good
			second.apply(&a) // the later one first: where both change the same field, the earlier one must win
			first.apply(&a)
			if first.name == "no scope" && second.name == "wrong method" {
				continue // a wrong method has no route and so no scope
			}
			r := s.ask(a.method, a.path, a.body, "Authorization: Bearer "+a.key)
			if r.status != first.status || r.code() != first.code {
				t.Errorf("%s and %s (%d,%d): %d %s", first.name, second.name, i, j, r.status, r.text)
			}
		}
	}
	if len(s.got()) != 0 || len(s.loads) != 0 {
		t.Error("a refused request started something")
	}
}

func TestFreeMetrics(t *testing.T) {
	set := keyFile(t, "infer-key infer\n")
	s := newStage(t, func(_ *stage, c *Config) { c.Keys, c.FreeMetrics = set, true })
	for path, want := range map[string]int{"/metrics": 200, "/v1/models": 401} {
		if r := s.ask("GET", path, ""); r.status != want {
			t.Errorf("%s: %d", path, r.status)
		}
	}
}

// TestKeepAlive serves every kind of refusal and odd request on one connection.
func TestKeepAlive(t *testing.T) {
	s := newStage(t).warm("chat")
	c := s.dial()
	for _, q := range []struct {
		text   string
		status int
		code   string
	}{
		{post(chatPath, chatBody), 200, ""},
		{post("/v1/nothing", "{}"), 404, "unknown_url"},
		{post("/v1/models", "{}"), 405, "method_not_allowed"},
		{post(chatPath, ""), 400, "invalid_json"},
		{post(chatPath, "[1]"), 400, "invalid_json"},
		{post(chatPath, `"text"`), 400, "invalid_json"},
		{post(chatPath, "\xef\xbb\xbf"+chatBody), 200, ""},
		{post(chatPath, `{"model":"chat","messages":"`+"\xff"+`"}`), 400, "invalid_json"},
		{post(chatPath, strings.Repeat(`{"a":`, 1001)+"1"+strings.Repeat("}", 1001)), 400, "invalid_json"},
		{post(chatPath, chatBody+"x"), 400, "invalid_json"},
		{post(chatPath, `{"messages":[{}]}`), 400, "missing_required_parameter"},
		{post(chatPath, `{"model":7,"messages":[{}]}`), 400, "invalid_type"},
		{post(chatPath, `{"model":"chat","messages":[]}`), 400, "missing_required_parameter"},
		{post(chatPath, `{"model":"chat","messages":[{}],"stream":"yes"}`), 400, "invalid_type"},
		{post(chatPath, `{"model":"chat","messages":[{}],"id_slot":1}`), 400, "unsupported_parameter"},
		{post(chatPath, `{"model":"SAME","messages":[{}]}`), 400, "model_ambiguous"},
		{post(chatPath, `{"model":"nobody","messages":[{}]}`), 404, "model_not_found"},
		{post(chatPath, `{"model":"vec","messages":[{}]}`), 400, "model_type_mismatch"},
		{post(chatPath, chatBody, "Content-Encoding: gzip"), 415, "unsupported_media_type"},
		{post(chatPath, chatBody, "x-cold-wait: soon"), 400, "invalid_type"},
		{post(chatPath, chatBody, "x-wait-timeout: -1"), 400, "invalid_type"},
		{post(chatPath, chatBody, "x-wait-timeout: NaN"), 400, "invalid_type"},
		{post("/v1/audio/transcriptions", "{}", "Content-Type: application/json"), 415, "unsupported_media_type"},
		{post("/v1/audio/transcriptions", "--b\r\n", "Content-Type: multipart/form-data; boundary=b"), 400, "invalid_request"},
		{post("/v1/audio/transcriptions", "--b\r\nContent-Disposition: form-data; name=\"model\"\n\nother\r\n\r\nm\r\n--b--", "Content-Type: multipart/form-data; boundary=b"), 400, "invalid_request"},
		{post(chatPath, chatBody, "Content-Type: application/x-www-form-urlencoded"), 200, ""},
		{post(chatPath, chatBody, "Content-Type: text/plain", "x-wait-timeout: Inf", "Content-Encoding: identity"), 200, ""},
		{"POST " + chatPath + " HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + fmt.Sprintf("%x\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n", 7, chatBody[:7], len(chatBody)-7, chatBody[7:]), 200, ""},
		{"HEAD /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", 200, ""},
		{"HEAD " + chatPath + " HTTP/1.1\r\nHost: localhost\r\n\r\n", 405, ""},
		{"OPTIONS /anything HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost:3000\r\nAccess-Control-Request-Headers: x-mine\r\n\r\n", 204, ""},
		{post(chatPath, chatBody), 200, ""},
	} {
		r := c.say(q.text)
		if r.status != q.status || r.code() != q.code {
			t.Fatalf("%.120q: %d %s, want %d %s", q.text, r.status, r.text, q.status, q.code)
		}
		if id := r.header.Get("x-request-id"); id == "" || r.header.Get("request-id") != id {
			t.Errorf("%.60q: no request id", q.text)
		}
		if r.header.Get("Vary") != "Origin" || r.header.Get("Connection") == "close" {
			t.Errorf("%.60q: %v", q.text, r.header)
		}
		if r.status >= 400 && r.text != "" && !json.Valid([]byte(r.text)) {
			t.Errorf("%.60q: the body is no JSON: %s", q.text, r.text)
		}
	}
	if r := c.say("OPTIONS / HTTP/1.1\r\nHost: localhost\r\nAccess-Control-Request-Headers: x-mine\r\n\r\n"); r.header.Get("Access-Control-Allow-Headers") != "x-mine" {
		t.Errorf("preflight: %v", r.header)
	}
}

func TestExpectContinue(t *testing.T) {
	set := keyFile(t, "infer-key infer\n")
	file := filepath.Join(t.TempDir(), "access.log")
	lines, end, err := accesslog.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	s := newStage(t, func(_ *stage, c *Config) { c.Keys, c.MaxBody, c.AccessLog = set, 1<<20, lines }).warm("chat")
	head := func(path, key string, n int) string {
		return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: localhost\r\nx-api-key: %s\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", path, key, n)
	}
	c := s.dial()
	if r := c.say(head(chatPath, "infer-key", len(chatBody))); r.status != 100 {
		t.Fatalf("no leave to send: %d", r.status)
	}
	if r := c.say(chatBody); r.status != 200 {
		t.Fatalf("%d %s", r.status, r.text)
	}
	if r := c.say(post(chatPath, chatBody, "x-api-key: infer-key")); r.status != 200 {
		t.Fatalf("the connection did not survive: %d", r.status)
	}
	for _, q := range []struct {
		path, key string
		n, status int
	}{{chatPath, "wrong", 100, 401}, {"/v1/nothing", "infer-key", 100, 404}, {chatPath, "infer-key", 2 << 20, 413}} {
		if r := s.dial().say(head(q.path, q.key, q.n)); r.status != q.status || r.code() == "" {
			t.Errorf("%+v: %d %s", q, r.status, r.text)
		}
	}
	end()
	var logged []string
	text, err := os.ReadFile(file)
	for line := range strings.Lines(string(text)) {
		if at := strings.Index(line, `"status":`); strings.Contains(line, `"method":"POST"`) {
			logged = append(logged, line[at+9:at+12])
		}
	}
	if want := []string{"200", "200", "401", "404", "413"}; !slices.Equal(logged, want) {
		t.Errorf("in the access log %v, want %v (%v)", logged, want, err)
	}
}

// TestMalformedRequests: requests that the HTTP library refuses get our bodies and headers.
func TestMalformedRequests(t *testing.T) {
	s := newStage(t, func(_ *stage, c *Config) { c.MaxBody = 100_000 })
	for _, q := range []struct {
		text, code string
		status     int
	}{
		{"POST " + chatPath + " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100001\r\n\r\n", "request_too_large", 413},
		{"POST /v1/nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100001\r\n\r\n", "unknown_url", 404},
		{"POST " + chatPath + " HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n20000\r\n" + strings.Repeat("x", 0x20000) + "\r\n0\r\n\r\n", "request_too_large", 413},
		{"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nx-long: " + strings.Repeat("y", 20_000) + "\r\n\r\n", "headers_too_large", 431},
		{"GET /v1/models HTTP/9\r\nHost: localhost\r\n\r\n", "invalid_request", 400},
		{"nonsense\r\n\r\n", "invalid_request", 400},
		{post(chatPath, "", "Transfer-Encoding: chunked") + "0\r\n\r\n", "invalid_request", 400},
	} {
		c := s.dial()
		r := c.say(q.text)
		if r.status != q.status || r.code() != q.code || r.header.Get("x-request-id") == "" {
			t.Errorf("%.60q: %d %v %s", q.text, r.status, r.header, r.text)
		}
		if r.header.Get("Connection") != "close" {
			t.Errorf("%.60q: the connection stays", q.text)
		}
	}
	if r := s.dial().say("POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200000\r\n\r\n"); r.status != 413 || r.json["type"] != "error" {
		t.Errorf("dialect: %d %s", r.status, r.text)
	}
}

// TestLargeBodyStillGetsItsResponse: a client that keeps sending can still read why it was refused.
func TestLargeBodyStillGetsItsResponse(t *testing.T) {
	s := newStage(t, func(_ *stage, c *Config) { c.MaxBody = 1000 })
	c := s.dial()
	sent := make(chan error, 1)
	go func() {
		_, err := io.WriteString(c.c, "POST "+chatPath+" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4000000\r\n\r\n"+strings.Repeat("x", 4_000_000))
		sent <- err
	}()
	if r := c.hear("POST"); r.status != 413 {
		t.Fatalf("%d %s", r.status, r.text)
	}
	if err := <-sent; err != nil {
		t.Error("the connection was reset while the client sent:", err)
	}
}

func TestPanics(t *testing.T) {
	s := newStage(t).warm("chat")
	s.handle("live", func(*Server, *request) error { panic("boom") })
	c := s.dial()
	if r := c.say("GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n"); r.status != 500 || r.json["status"] != "error" {
		t.Errorf("%d %s", r.status, r.text)
	}
	if r := c.say("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"); r.status != 200 {
		t.Errorf("after a panic: %d", r.status)
	}
	// While a response is delivered, when everything is held.
	s.handle("chat", func(_ *Server, r *request) error {
		cl, err := r.parse()
		if err != nil {
			return err
		}
		x := &exchange{call: cl, path: []byte(chatPath)}
		x.translate = func([]byte) ([]byte, error) { panic("boom") }
		return x.serveInference()
	})
	if r := c.say(post(chatPath, chatBody)); r.status != 500 {
		t.Errorf("%d %s", r.status, r.text)
	}
	if !strings.Contains(s.log.String(), "boom") {
		t.Error("a panic was not logged")
	}
}

func TestRequestIDs(t *testing.T) {
	s := newStage(t).warm("chat")
	if r := s.ask("POST", chatPath, chatBody, "x-request-id: mine-1"); r.header.Get("x-request-id") != "mine-1" || s.got()[0].id != "mine-1" {
		t.Errorf("%v, runner %v", r.header, s.got())
	}
	if r := s.ask("POST", chatPath, chatBody, "x-request-id: bad one"); !strings.HasPrefix(r.header.Get("x-request-id"), "req_") {
		t.Errorf("%v", r.header)
	}
}

// Refused requests are logged; of a flood, only some.
func TestRefusalsAreLogged(t *testing.T) {
	s := newStage(t)
	for range 50 {
		s.ask("POST", chatPath, `{"model":"nobody","messages":[{"role":"user","content":"a secret"}]}`)
	}
	text := s.log.String()
	const line = `level=INFO msg="request refused"`
	if n := strings.Count(text, line); n < 1 || n > 3*refusalLines || !strings.Contains(text, "status=404 code=model_not_found param=model") || strings.Contains(text, "a secret") {
		t.Errorf("%d lines: %s", n, text)
	}
}
