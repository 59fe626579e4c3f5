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
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/power"
	"reveille/infra/power/drivers"
	"reveille/infra/power/kubernetes"
	"reveille/testenv/waketest"
)

const (
	token = "secret-token"
	list  = "/apis/apps/v1/namespaces/models/statefulsets"
	path  = list + "/gpu-1/scale"
	core  = "/api/v1/namespaces/models/"
)

var host = catalog.Host{Name: "gpu-1", Driver: catalog.DriverKubernetes, Workload: "statefulset/gpu-1"}

// api stands in for an API server with one StatefulSet; TestCluster has a real one, which takes minutes to build. As
// the controller does, it makes and removes the pod some time after the change.
type api struct {
	mu          sync.Mutex
	wanted      int
	exist       int
	ending      bool // the pod that exists
	starts      int
	unplaceable string                                        // what the scheduler says about the pod; "": it has a node
	events      []map[string]any                              // all events
	quota       bool                                          // no pod is created
	asked       map[string]url.Values                         // query of the last call by path
	answer      func(http.ResponseWriter, *http.Request) bool // in place of the usual answer, if it returns true
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
	case r.URL.Path == core+"pods" && r.Method == http.MethodGet:
		a.asked[r.URL.Path] = r.URL.Query()
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": "PodList", "items": a.pods(r.URL.Query().Get("fieldSelector"))})
		return
	case r.URL.Path == core+"events" && r.Method == http.MethodGet:
		a.asked[r.URL.Path] = r.URL.Query()
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": "EventList", "items": a.events})
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
	spec, status := map[string]int{}, map[string]any{"replicas": a.exist, "selector": "host=gpu-1"}
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
		a.ending, a.exist = false, min(a.wanted, a.exist-1)
	case a.exist < a.wanted && !a.quota:
		a.exist = a.wanted
		a.starts++
	}
}

// pods are the pods that a field selector selects, with a size as real ones have.
func (a *api) pods(selector string) (out []any) {
	for n := range a.exist {
		name := fmt.Sprint("gpu-1-", n)
		if selector != "" && selector != "metadata.name="+name {
			continue
		}
		metadata := map[string]any{"name": name, "uid": "u1", "annotations": map[string]string{"a": strings.Repeat("x", 12<<10)}}
		condition := map[string]any{"type": "PodScheduled", "status": "True"}
		if a.unplaceable != "" {
			condition = map[string]any{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": a.unplaceable}
		}
		if a.ending && n == a.exist-1 {
			metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
		}
		out = append(out, map[string]any{"metadata": metadata, "status": map[string]any{"conditions": []any{condition}}})
	}
	return out
}

// happens adds an event, after a time from now.
func (a *api) happens(reason, message, kind, name string, after time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.events = append(a.events, map[string]any{
		"reason": reason, "message": message, "involvedObject": map[string]any{"kind": kind, "name": name},
		"eventTime": nil, "lastTimestamp": time.Now().Add(after).UTC().Format(time.RFC3339),
	})
}

// open starts the API server and returns the driver as a program has it, which finds the server by KUBECONFIG.
func open(t *testing.T) (*api, power.Driver) {
	t.Helper()
	a := &api{asked: map[string]url.Values{}}
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
	return a, drivers.Kubernetes(kubernetes.Config{Poll: 5 * time.Millisecond, Unplaced: 50 * time.Millisecond, Wait: 300 * time.Millisecond})
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

// A slot of a StatefulSet meets the contract while the slot before it is on. That one goes only after it.
func TestContractOfASlot(t *testing.T) {
	waketest.Run(t, func(t *testing.T) waketest.Fixture {
		a, d := open(t)
		a.wanted, a.exist = 1, 1
		second := host
		second.Name, second.Of, second.Slot, second.Max = "gpu-1-2", "gpu-1", 2, 2
		strange := second
		strange.Workload = "statefulset/other"
		t.Cleanup(func() {
			if a.wanted == 0 {
				t.Error("the first slot's pod is gone")
			}
		})
		return waketest.Fixture{Driver: d, Host: second, Strange: &strange, Starts: func() int {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.moveOn()
			return a.starts
		}}
	})
}

func TestSlotsSleepFromTheLast(t *testing.T) {
	a, d := open(t)
	slot := func(n int) catalog.Host {
		h := host
		h.Of, h.Slot, h.Max = "gpu-1", n, 3
		return h
	}
	if err := d.Wake(t.Context(), slot(3)); err != nil || a.wanted != 3 {
		t.Fatalf("wake of the third: %v, %d replicas", err, a.wanted)
	}
	a.wanted, a.exist = 100, 100
	if err := d.Wake(t.Context(), slot(50)); err != nil || a.wanted != 100 {
		t.Fatalf("wake of the fiftieth of a hundred: %v, %d replicas", err, a.wanted)
	}
	a.wanted, a.exist = 3, 3
	if err := d.Wake(t.Context(), slot(1)); err != nil || a.wanted != 3 {
		t.Fatalf("wake of the first, whose pod is there: %v, %d replicas", err, a.wanted)
	}
	if err := d.Sleep(t.Context(), slot(2)); !errors.Is(err, power.ErrInUse) || a.wanted != 3 {
		t.Errorf("sleep of the second before the third: %v, %d replicas", err, a.wanted)
	}
	both := make(chan error)
	go func() { both <- d.Sleep(t.Context(), slot(2)) }()
	if err := d.Sleep(t.Context(), slot(3)); err != nil {
		t.Error(err)
	}
	if err := <-both; err != nil || a.wanted != 1 {
		t.Errorf("sleep of the second with the third: %v, %d replicas", err, a.wanted)
	}
	a.unplaceable = "0/3 nodes are available"
	if err := d.Wake(t.Context(), slot(2)); !errors.Is(err, power.ErrNoCapacity) || a.wanted != 1 {
		t.Errorf("wake without a node: %v, %d replicas", err, a.wanted)
	}
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

// A leaderworkerset is scaled in its own API group.
func TestGroups(t *testing.T) {
	a, d := open(t)
	a.answer = func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/apis/leaderworkerset.x-k8s.io/v1/namespaces/models/leaderworkersets/big/scale" {
			t.Error(r.URL.Path)
		}
		_, _ = w.Write([]byte(`{"kind":"Scale","spec":{"replicas":1},"status":{"replicas":1}}`))
		return true
	}
	of := host
	of.Workload = "leaderworkerset/big"
	if got, err := d.State(t.Context(), of); err != nil || got != power.On {
		t.Errorf("%q, %v", got, err)
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

// A pod without a node is no capacity, with the cluster's words, and is not left behind.
func TestNoNode(t *testing.T) {
	const full, scalesNot = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.", "pod didn't trigger scale-up: 1 max node group size reached"
	const quota = `create Pod gpu-1-0 in StatefulSet gpu-1 failed error: pods "gpu-1-0" is forbidden: exceeded quota: gpus`
	for name, c := range map[string]struct {
		arrange func(*api)
		want    string // "" for a wake that succeeds
	}{
		"the scheduler finds none": {func(a *api) { a.unplaceable = full }, full},
		"the autoscaler adds none": {func(a *api) {
			a.unplaceable = full
			a.happens("TriggeredScaleUp", "pod triggered scale-up", "Pod", "gpu-1-0", -time.Minute)
			a.happens("NotTriggerScaleUp", scalesNot, "Pod", "gpu-1-0", 0)
		}, full + " " + scalesNot},
		"a quota refuses the pod": {func(a *api) {
			a.quota = true
			a.happens("FailedCreate", quota, "StatefulSet", "gpu-1", time.Second)
		}, quota},
		"an autoscaler adds one": {func(a *api) {
			a.unplaceable = full
			a.happens("NotTriggerScaleUp", scalesNot, "Pod", "gpu-1-0", -time.Minute)
			a.happens("TriggeredScaleUp", "pod triggered scale-up", "Pod", "gpu-1-0", 0)
			time.AfterFunc(200*time.Millisecond, func() { a.mu.Lock(); defer a.mu.Unlock(); a.unplaceable = "" })
		}, ""},
		"failures of earlier and of others": {func(a *api) {
			a.quota = true
			a.happens("FailedCreate", quota, "StatefulSet", "gpu-1", -time.Minute)
			a.happens("FailedCreate", quota, "StatefulSet", "gpu-10", time.Second)
			time.AfterFunc(100*time.Millisecond, func() { a.mu.Lock(); defer a.mu.Unlock(); a.quota = false })
		}, ""},
		"a Role without pods": {func(a *api) {
			a.unplaceable = full
			a.answer = func(w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path == core+"pods" {
					w.WriteHeader(http.StatusForbidden)
				}
				return r.URL.Path == core+"pods"
			}
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			a, d := open(t)
			c.arrange(a)
			err := d.Wake(t.Context(), host)
			if c.want == "" {
				if err != nil || a.wanted != 1 {
					t.Errorf("%v, replicas %d", err, a.wanted)
				}
				return
			}
			if !errors.Is(err, power.ErrNoCapacity) || !strings.HasSuffix(err.Error(), c.want) {
				t.Errorf("%v, want no capacity: %s", err, c.want)
			}
			if a.wanted != 0 {
				t.Errorf("replicas %d afterwards", a.wanted)
			}
			if q := a.asked[core+"pods"]; q.Get("labelSelector") != "host=gpu-1" {
				t.Errorf("pods by %v", q)
			}
		})
	}
}

// A caller with little time learns that the wake is accepted, not that its time is over.
func TestNodeThatComesLater(t *testing.T) {
	a, d := open(t)
	a.unplaceable = "0/3 nodes are available"
	a.happens("Nominated", "Pod should schedule on: nodeclaim/gpu-x", "Pod", "gpu-1-0", 0)
	ctx, cancel := context.WithTimeout(t.Context(), 5300*time.Millisecond)
	defer cancel()
	if err := d.Wake(ctx, host); err != nil || a.wanted != 1 {
		t.Errorf("%v, replicas %d", err, a.wanted)
	}
}

func TestServerThatHangs(t *testing.T) {
	a, d := open(t)
	a.answer = func(_ http.ResponseWriter, r *http.Request) bool {
		_, _ = io.Copy(io.Discard, r.Body) // the server notices a client that leaves only after its body
		<-r.Context().Done()
		panic(http.ErrAbortHandler) // a response could still reach the client while it closes the connection
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
	d := drivers.Remote(nil)[catalog.DriverKubernetes]
	if err := d.Wake(t.Context(), host); !errors.Is(err, power.ErrDenied) {
		t.Errorf("%v, want power.ErrDenied", err)
	}
}
