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
	cfg, err := parse(strings.Fields(flags), func(string) string { return "" }, io.Discard)
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
	kit.Eventually(t, "call canceled", func() bool {
		st := s.stats.snapshot()
		return st.InFlight == 0 && st.Canceled == 1 && st.MaxConcurrent == 1 && st.Calls["chat/completions"] == 1
	})
	var st Stats
	get(t, url+"/standin/stats", &st)
	if st.Canceled != 1 {
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
