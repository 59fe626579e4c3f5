package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"reveille/testenv/kit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// startEngine serves a loaded stand-in with the given flags until the test ends.
func startEngine(t *testing.T, flags string) (*server, string) {
	t.Helper()
	cfg, err := parse(strings.Fields(flags), noEnv, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(cfg, slog.New(slog.DiscardHandler), func() { panic(http.ErrAbortHandler) })
	web := httptest.NewServer(s.handler())
	t.Cleanup(func() {
		web.CloseClientConnections()
		web.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	if err := s.load(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s, web.URL
}

// post sends a body and returns status, content type and answer.
func post(t *testing.T, url, body string) (int, string, string) {
	t.Helper()
	resp, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header.Get("Content-Type"), string(b)
}

// get decodes a JSON answer into v.
func get(t *testing.T, url string, v any) int {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(v); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode
}

func TestHealthWhileLoading(t *testing.T) {
	cfg, _ := parse(nil, noEnv, io.Discard)
	s := newServer(cfg, slog.New(slog.DiscardHandler), nil)
	for _, path := range []string{"/health", "/v1/models"} {
		w := httptest.NewRecorder()
		s.handler().ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		if w.Code != http.StatusServiceUnavailable {
			t.Errorf("%s while loading: %d", path, w.Code)
		}
	}
	if err := s.load(t.Context()); err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	s.handler().ServeHTTP(w, httptest.NewRequest("GET", "/health", nil))
	if w.Code != 200 {
		t.Errorf("health when loaded: %d", w.Code)
	}
}

func TestKeyAndType(t *testing.T) {
	_, url := startEngine(t, "--api-key secret --type embedding")
	if status, _, _ := post(t, url+"/v1/embeddings", `{"input":"a"}`); status != http.StatusUnauthorized {
		t.Errorf("without key: %d", status)
	}
	if status := get(t, url+"/health", &struct{}{}); status != 200 {
		t.Errorf("health needs no key: %d", status)
	}
	for path, want := range map[string]int{"/v1/embeddings": 200, "/v1/chat/completions": 501} {
		req, _ := http.NewRequestWithContext(t.Context(), "POST", url+path, strings.NewReader(`{"input":"a"}`))
		req.Header.Set("Authorization", "Bearer secret")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s: %d, want %d", path, resp.StatusCode, want)
		}
	}
}

func TestRefusals(t *testing.T) {
	_, url := startEngine(t, "--oom-over 10")
	for _, tc := range []struct {
		path, body string
		status     int
		text       string
	}{
		{"/v1/chat/completions", `{`, 400, "parse"},
		{"/v1/chat/completions", `{"messages":[]}`, 400, "messages"},
		{"/v1/completions", `{}`, 400, "prompt"},
		{"/v1/embeddings", `{"input":[]}`, 400, "input"},
		{"/v1/embeddings", `{"input":"a","encoding_format":"hex"}`, 400, "encoding_format"},
		{"/v1/embeddings", `{"input":"0123456789012345678901234567890123456789"}`, 500, "failed to allocate compute buffers: out of memory"},
		{"/v1/rerank", `{"query":"a","documents":[]}`, 400, "documents"},
		{"/v1/rerank", `{"query":"a","documents":[1]}`, 400, "document"},
		{"/v1/audio/transcriptions", `{}`, 400, "multipart"},
		{"/v1/audio/speech", `{"input":"a","response_format":"mp3"}`, 400, "response_format"},
		{"/v1/images/generations", `{"prompt":""}`, 400, "prompt"},
		{"/v1/images/generations", `{"prompt":"a","n":11}`, 400, "'n'"},
		{"/tokenize", `[`, 400, "parse"},
		{"/v1/nothing", `{}`, 404, ""},
	} {
		status, _, body := post(t, url+tc.path, tc.body)
		if status != tc.status || !strings.Contains(body, tc.text) {
			t.Errorf("%s %s: %d %s", tc.path, tc.body, status, body)
		}
	}
}

func TestStatsAndCancel(t *testing.T) {
	s, url := startEngine(t, "--token-delay 10m")
	ctx, leave := context.WithCancel(t.Context())
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		req, _ := http.NewRequestWithContext(ctx, "POST", url+"/v1/chat/completions",
			bytes.NewReader([]byte(`{"stream":true,"messages":[{"role":"user","content":"x"}]}`)))
		if resp, err := http.DefaultClient.Do(req); err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
	}()
	kit.Eventually(t, "call in flight", func() bool { return s.stats.snapshot().InFlight == 1 })
	leave()
	<-gone
	kit.Eventually(t, "call cancelled", func() bool {
		st := s.stats.snapshot()
		return st.InFlight == 0 && st.Cancelled == 1 && st.MaxConcurrent == 1 && st.Calls["chat/completions"] == 1
	})
	var st Stats
	get(t, url+"/standin/stats", &st)
	if st.Cancelled != 1 {
		t.Errorf("stats over HTTP: %+v", st)
	}
}

func TestStep(t *testing.T) {
	_, url := startEngine(t, "--step --tokens 2")
	resp, err := http.Post(url+"/v1/chat/completions", "", strings.NewReader(`{"stream":true,"messages":[{"role":"user","content":"x"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewReader(resp.Body)
	next := func() string {
		t.Helper()
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		_, _ = lines.ReadString('\n')
		return line
	}
	if first := next(); !strings.Contains(first, `"assistant"`) {
		t.Error(first)
	}
	for range 2 {
		if status, _, body := post(t, url+"/standin/step", ""); status != http.StatusNoContent {
			t.Fatal(status, body)
		}
		if token := next(); !strings.Contains(token, `"content":"`) {
			t.Error(token)
		}
	}
	if rest, err := io.ReadAll(lines); err != nil || !strings.HasSuffix(string(rest), "[DONE]\n\n") {
		t.Errorf("%s %v", rest, err)
	}
}
