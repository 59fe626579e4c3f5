package upstream

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A remote is a server that commands turn on and off.
type remote struct {
	*httptest.Server
	on, key string // files
	ill     atomic.Bool
}

func startRemote(t *testing.T) *remote {
	dir := t.TempDir()
	r := &remote{on: filepath.Join(dir, "on"), key: filepath.Join(dir, "key")}
	if err := os.WriteFile(r.key, []byte("remote-key\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		_, err := os.Stat(r.on)
		switch {
		case err != nil || r.ill.Load():
			w.WriteHeader(http.StatusServiceUnavailable)
		case req.Header.Get("Authorization") != "Bearer remote-key":
			w.WriteHeader(http.StatusUnauthorized)
		case req.URL.Path == "/health":
			w.WriteHeader(http.StatusNotFound)
		case req.URL.Path != "/v1/models":
			_, _ = w.Write([]byte(req.URL.Path + " " + string(body)))
		}
	}))
	t.Cleanup(r.Close)
	return r
}

// start runs a server until it is ready. end stops it and returns its error.
func start(t *testing.T, r *remote) (address string, end func() error) {
	t.Helper()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address = free.Addr().String()
	_ = free.Close()
	u, err := newServer(Settings{
		Listen: address, EngineKey: "engine-key", Model: "their-name", URL: r.URL + "/v1/", KeyFile: r.key, Wake: "touch '" + r.on + "'", Sleep: "rm '" + r.on + "'",
	})
	if err != nil {
		t.Fatal(err)
	}
	u.startPoll, u.servePoll = 10*time.Millisecond, 10*time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- u.run(ctx) }()
	end = func() error { cancel(); return <-done }
	t.Cleanup(cancel)
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if resp, err := http.Get("http://" + address + "/health"); err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return address, end
			}
		}
		if time.Now().After(deadline) {
			t.Fatal("not ready", end())
		}
	}
}

func call(t *testing.T, address, path, key string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address+path, strings.NewReader(`{"model":"ours","input":"x"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+key)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body)
}

func TestRelay(t *testing.T) {
	r := startRemote(t)
	defer http.DefaultClient.CloseIdleConnections()
	address, end := start(t, r)
	if status, got := call(t, address, "/v1/embeddings", "engine-key"); status != http.StatusOK || got != `/v1/embeddings {"model":"their-name","input":"x"}` {
		t.Errorf("the server got %q and answered %d", got, status)
	}
	if status, got := call(t, address, "/v1/embeddings", "another-key"); status != http.StatusUnauthorized || strings.Contains(got, "their-name") {
		t.Errorf("a request without the engine's key: %d %q", status, got)
	}
	if status, got := call(t, address, "/admin", "engine-key"); status != http.StatusNotFound || strings.Contains(got, "/admin") {
		t.Errorf("a path outside /v1 reached the server: %d %q", status, got)
	}
	if err := end(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(r.on); err == nil {
		t.Error("the server was not turned off")
	}
}

// TestEndsWithoutHealth: a server that no longer serves is turned off, and the next load turns it on again.
func TestEndsWithoutHealth(t *testing.T) {
	r := startRemote(t)
	defer http.DefaultClient.CloseIdleConnections()
	_, end := start(t, r)
	r.ill.Store(true)
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(r.on); err != nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the server was not turned off")
		}
	}
	if err := end(); err == nil || !strings.Contains(err.Error(), "no longer serves: status 503") {
		t.Error(err)
	}
}

func TestSettings(t *testing.T) {
	for want, s := range map[string]Settings{
		"REVEILLE_ENGINE_KEY": {URL: "http://h"},
		"option url":          {EngineKey: "k", URL: "h:80"},
		"option workload":     {EngineKey: "k", URL: "http://h", Workload: "deployment/a", Wake: "true"},
		"option wake":         {EngineKey: "k", URL: "http://h", Wake: "true"},
		"option sleep":        {EngineKey: "k", URL: "http://h", Wake: "true", Sleep: "'"},
	} {
		if _, err := newServer(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q in it", s, err, want)
		}
	}
}
