package system

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"reveille/testenv"
	"reveille/testenv/calls"
	"reveille/testenv/kit"
	"reveille/testenv/worlds"
)

const (
	glance = 10 * time.Millisecond  // between two looks
	firm   = 400 * time.Millisecond // a state that must not change is looked at this long
)

// world is a running system and the eyes of a test on it.
type world struct{ *worlds.World }

// start runs a system whose one host, local, has a CPU and an NPU, over a real redis-server.
func start(t *testing.T, models calls.Catalogue, args ...string) *world {
	t.Helper()
	return &world{worlds.Start(t, models, args...)}
}

// refused runs a gateway whose settings must be refused at the start, and returns what it said.
func refused(t *testing.T, models calls.Catalogue, args ...string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "models.yaml")
	if err := os.WriteFile(file, []byte(models.YAML(calls.LocalHost)), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), kit.Patience)
	defer cancel()
	args = append([]string{"run", "--addr=127.0.0.1:0", "--state-dir=" + testenv.ShortDir(t), "--models=" + file}, args...)
	out, err := exec.CommandContext(ctx, testenv.Build(t, "gateway"), args...).CombinedOutput()
	if err == nil || ctx.Err() != nil {
		t.Errorf("%v was not refused: %v", args, err)
	}
	return string(out)
}

// stays checks that what look returns is want now and stays so for a while.
func stays[T any](t *testing.T, what string, want T, look func() T) {
	t.Helper()
	expected := fmt.Sprint(want)
	for end := time.Now().Add(firm); time.Now().Before(end); time.Sleep(glance) {
		if got := fmt.Sprint(look()); got != expected {
			t.Fatalf("%s: %s, want %s", what, got, expected)
		}
	}
}

// lru lists the models of a type, the least recently used first.
func (w *world) lru(typ string) []string {
	w.T.Helper()
	return w.Rdb.ZRange(w.T.Context(), "rv:{main}:lru:local:"+typ, 0, -1).Val()
}

// waiting counts the requests that wait, by model.
func (w *world) waiting() map[string]int {
	w.T.Helper()
	var health struct {
		Loading []struct {
			Name    string `json:"model_name"`
			Waiting int
		} `json:"models_loading"`
	}
	w.Health(&health)
	n := map[string]int{}
	for _, m := range health.Loading {
		n[m.Name] = m.Waiting
	}
	return n
}

// engineCall makes a call to a model's engine, beside the gateway, so that it is no use of the model.
func (w *world) engineCall(method, model, path string) calls.Answer {
	w.T.Helper()
	req, err := http.NewRequestWithContext(w.T.Context(), method, strings.TrimSuffix(w.Field(model, "backend_url"), "/v1")+path, nil)
	if err != nil {
		w.T.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+environment(w.T, w.Engine(model), "STANDIN_API_KEY"))
	return calls.Do(w.Client, req, nil)
}

// stats asks a model's engine what it has seen.
func (w *world) stats(model string) (st struct {
	Calls    map[string]int
	InFlight int `json:"in_flight"`
	Canceled int `json:"cancelled"`
}) {
	w.T.Helper()
	a := w.engineCall(http.MethodGet, model, "/standin/stats")
	if err := json.Unmarshal(a.Body, &st); err != nil || a.Status != http.StatusOK {
		w.T.Fatalf("engine of %s: %v", model, a)
	}
	return st
}

// runnerMetrics are the metrics of the local host's runner.
func (w *world) runnerMetrics() string {
	w.T.Helper()
	a := calls.Get(w.T.Context(), w.Client, "http://"+w.HostField("local", "addr")+"/metrics")
	if a.Status != http.StatusOK {
		w.T.Fatalf("the runner's metrics: %v", a)
	}
	return string(a.Body)
}

// step lets the engine of a stand-in with --step make one token.
func (w *world) step(model string) {
	w.T.Helper()
	if a := w.engineCall(http.MethodPost, model, "/standin/step"); a.Status != http.StatusNoContent {
		w.T.Fatalf("step of %s: %v", model, a)
	}
}

// environment reads a variable of a process.
func environment(t *testing.T, pid int, name string) string {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		t.Fatal(err)
	}
	for v := range strings.SplitSeq(string(raw), "\x00") {
		if value, ok := strings.CutPrefix(v, name+"="); ok {
			return value
		}
	}
	t.Fatalf("process %d has no %s", pid, name)
	return ""
}

// tick lets the clock of the LRU times, which counts in milliseconds, move on.
func tick() {
	for began := time.Now(); time.Since(began) < 2*time.Millisecond; {
		time.Sleep(time.Millisecond)
	}
}
