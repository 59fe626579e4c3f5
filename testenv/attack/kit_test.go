package attack

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
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

	"reveille/testenv/calls"
)

// limit bounds every wait of these tests.
const limit = 2 * time.Minute

// Keys of a system that was started with withKeys.
const (
	inferKey  = "attack-infer-0123456789abcdef0123456789"
	otherKey  = "attack-other-0123456789abcdef0123456789"
	manageKey = "attack-manage-0123456789abcdef012345678"
	ownerKey  = "attack-owner-0123456789abcdef0123456789"
	adminKey  = "attack-admin-0123456789abcdef0123456789" // of --admin-key
)

// withKeys returns the flag of a file that holds inferKey, otherKey and manageKey, each with its one scope, and
// ownerKey with both.
func withKeys(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keys")
	lines := inferKey + " infer ann\n" + otherKey + " infer ben\n" + manageKey + " manage ops\n" + ownerKey + " infer,manage own\n"
	if err := os.WriteFile(path, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	return "--api-keys-file=" + path
}

// call makes one request and reads the response. headers are "Name: value" lines; "Host: x" sets the request's host.
func call(t *testing.T, method, url, body string, headers ...string) calls.Answer {
	t.Helper()
	return callWithin(t.Context(), t, method, url, body, headers...)
}

// callWithin is call for a client that leaves when ctx ends.
func callWithin(ctx context.Context, t *testing.T, method, url, body string, headers ...string) calls.Answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if strings.EqualFold(name, "Host") {
			req.Host = value
			continue
		}
		req.Header.Add(name, value)
	}
	return calls.Do(calls.Client(t, 1), req, nil)
}

// pids are the processes of n engines, as the owner's key reads them.
func pids(t *testing.T, url string, n int) string {
	t.Helper()
	var health struct {
		All []struct {
			PID int `json:"pid"`
		} `json:"all_models_loaded"`
	}
	a := call(t, "GET", url+"/v1/health", "", bearer(ownerKey))
	err := json.Unmarshal(a.Body, &health)
	text := fmt.Sprint(health.All)
	if err != nil || len(health.All) != n || strings.Contains(text, "{0}") {
		t.Fatalf("health: %v", a)
	}
	return text
}

// bearer is the header that presents a key.
func bearer(key string) string { return "Authorization: Bearer " + key }

// raw sends bytes as they are to a server at a URL or host:port and returns the first response.
func raw(t *testing.T, server, text string) (*http.Response, []byte, error) {
	t.Helper()
	conn, err := net.DialTimeout("tcp", strings.TrimPrefix(server, "http://"), limit)
	if err != nil {
		return nil, nil, err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(limit))
	if _, err := io.WriteString(conn, text); err != nil {
		return nil, nil, fmt.Errorf("write: %w", err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp, body, err
}

// canary is an HTTP server that nobody may call. Its URL is what attacks try to have fetched.
type canary struct {
	URL  string
	hits atomic.Int64
}

// newCanary starts a canary; the test fails if it was called by the end.
func newCanary(t *testing.T) *canary {
	t.Helper()
	c := &canary{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.hits.Add(1)
		t.Errorf("the canary was fetched: %s %s by %s", r.Method, r.URL, r.UserAgent())
	}))
	t.Cleanup(srv.Close)
	c.URL = srv.URL
	return c
}

// refused checks that a response has one of the statuses and a JSON error in the dialect of its path, whatever that is.
func refused(t *testing.T, what string, a calls.Answer, statuses ...int) {
	t.Helper()
	var body struct {
		Error any `json:"error"`
	}
	for _, s := range statuses {
		if a.Err == nil && a.Status == s && json.Unmarshal(a.Body, &body) == nil && body.Error != nil {
			return
		}
	}
	t.Errorf("%s: %v, want an error with one of the statuses %v", what, a, statuses)
}
