package kubernetes_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/power"
	"reveille/infra/power/drivers"
	"reveille/testenv/waketest"
)

const (
	token = "secret-token"
	list  = "/apis/apps/v1/namespaces/models/statefulsets"
	path  = list + "/gpu-1/scale"
)

var host = catalog.Host{Name: "gpu-1", Driver: catalog.DriverKubernetes, Workload: "statefulset/gpu-1"}

// api stands in for an API server with one StatefulSet; TestCluster has a real one, which takes minutes to build. As
// the controller does, it makes and removes the pod some time after the change.
type api struct {
	mu     sync.Mutex
	wanted int
	exist  int
	ending bool // the pod that exists
	starts int
	answer func(http.ResponseWriter, *http.Request) bool // in place of the usual answer, if it returns true
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	fail := func(status int, message string) {
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": "Status", "message": message, "code": status})
	}
	switch {
	case r.Header.Get("Authorization") != "Bearer "+token:
		fail(http.StatusUnauthorized, "Unauthorized")
		return
	case a.answer != nil && a.answer(w, r):
		return
	case r.URL.Path != path:
		fail(http.StatusNotFound, `statefulsets.apps "x" not found`)
		return
	case r.Method == http.MethodPatch:
		var patch struct{ Spec struct{ Replicas int } }
		if r.Header.Get("Content-Type") != "application/merge-patch+json" || json.NewDecoder(r.Body).Decode(&patch) != nil {
			fail(http.StatusUnsupportedMediaType, "not a merge patch")
			return
		}
		a.wanted = patch.Spec.Replicas
		a.ending = a.ending || a.wanted < a.exist
	case r.Method != http.MethodGet:
		fail(http.StatusMethodNotAllowed, r.Method)
		return
	}
	spec, status := map[string]int{}, map[string]int{"replicas": a.exist}
	if a.wanted > 0 {
		spec["replicas"] = a.wanted // zeros are left out, as by the real one
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"apiVersion": "autoscaling/v1", "kind": "Scale", "spec": spec, "status": status})
	if r.Method == http.MethodGet {
		a.moveOn()
	}
}

// moveOn advances the controller's time. A pod that has started to end is replaced, not revived.
func (a *api) moveOn() {
	switch {
	case a.ending:
		a.ending, a.exist = false, 0
	case a.exist < a.wanted:
		a.exist = a.wanted
		a.starts++
	}
}

// open starts the API server and returns the driver as a program has it, which finds the server by KUBECONFIG.
func open(t *testing.T) (*api, power.Driver) {
	t.Helper()
	a := &api{}
	server := httptest.NewTLSServer(a)
	t.Cleanup(server.Close)
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	file := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(file, fmt.Appendf(nil, `apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u, namespace: models}}]
clusters: [{name: c, cluster: {server: %q, certificate-authority-data: %s}}]
users: [{name: u, user: {token: %s}}]
`, server.URL, base64.StdEncoding.EncodeToString(authority), token), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", file)
	return a, drivers.Remote()[catalog.DriverKubernetes]
}

func TestContract(t *testing.T) {
	waketest.Run(t, func(t *testing.T) waketest.Fixture {
		a, d := open(t)
		strange := host
		strange.Workload = "deployment/other"
		return waketest.Fixture{Driver: d, Host: host, Strange: &strange, Starts: func() int {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.moveOn()
			return a.starts
		}}
	})
}

func TestStates(t *testing.T) {
	a, d := open(t)
	for _, c := range []struct {
		wanted, exist int
		want          power.Power
	}{{0, 0, power.Off}, {1, 0, power.Starting}, {1, 1, power.On}, {0, 1, power.Stopping}} {
		a.wanted, a.exist = c.wanted, c.exist
		if got, err := d.State(t.Context(), host); err != nil || got != c.want {
			t.Errorf("%d wanted, %d exist: %q (%v), want %q", c.wanted, c.exist, got, err, c.want)
		}
	}
}

func TestRefusals(t *testing.T) {
	a, d := open(t)
	for _, c := range []struct {
		status int
		body   string
		want   error
	}{
		{403, `{"message":"statefulsets.apps \"gpu-1\" is forbidden"}`, power.ErrDenied},
		{404, `{"message":"not found"}`, power.ErrUnknownHost},
		{409, `{}`, power.ErrThrottled},
		{422, `{"message":"invalid"}`, power.ErrFailed},
		{429, "slow down", power.ErrThrottled},
		{503, "", power.ErrThrottled},
		{200, "<html>", power.ErrFailed},
		{200, `{"kind":"Pod"}`, power.ErrFailed},
		{200, `{"kind":"Scale","spec":{"replicas":"many"}}`, power.ErrFailed},
		{200, strings.Repeat(" ", 2<<20) + `{"kind":"Scale"}`, power.ErrFailed},
		{500, `{"message":"` + strings.Repeat("x", 10000) + `"}`, power.ErrThrottled},
	} {
		a.answer = func(w http.ResponseWriter, _ *http.Request) bool {
			w.WriteHeader(c.status)
			_, _ = w.Write([]byte(c.body))
			return true
		}
		_, err := d.State(t.Context(), host)
		if !errors.Is(err, c.want) || len(err.Error()) > 1000 {
			t.Errorf("%d %.40q: %v, want %v", c.status, c.body, err, c.want)
		}
	}
	a.answer = nil
	for _, workload := range []string{"", "gpu-1", "statefulset/../../../secrets", "pod/gpu-1"} {
		strange := host
		strange.Workload = workload
		if err := d.Wake(t.Context(), strange); !errors.Is(err, power.ErrUnknownHost) {
			t.Errorf("workload %q: %v", workload, err)
		}
	}
}

func TestServerThatHangs(t *testing.T) {
	a, d := open(t)
	a.answer = func(_ http.ResponseWriter, r *http.Request) bool {
		_, _ = io.Copy(io.Discard, r.Body) // the server notices a client that leaves only after its body
		<-r.Context().Done()
		return true
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := d.Wake(ctx, host); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, want the end of the context", err)
	}
}

func TestNoCluster(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	t.Setenv("HOME", t.TempDir())
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	d := drivers.Remote()[catalog.DriverKubernetes]
	if err := d.Wake(t.Context(), host); !errors.Is(err, power.ErrDenied) {
		t.Errorf("%v, want power.ErrDenied", err)
	}
}
