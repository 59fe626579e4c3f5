package system

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"reveille/testenv"
	"reveille/testenv/calls"
	"reveille/testenv/kit"
)

const (
	glance = 10 * time.Millisecond  // between two looks
	firm   = 400 * time.Millisecond // a state that must not change is looked at this long
)

// slow are flags of a stand-in that streams for as long as a test wants.
const slow = "--token-delay 20ms --tokens 100000"

// world is a running system with stand-in engines and the eyes of a test on it.
type world struct {
	*testenv.System
	t     *testing.T
	rdb   redis.UniversalClient
	types map[string]string // by model
	key   string            // that every request presents; "" where the system made an admin key for management alone
}

// start runs a system whose one host, local, has a CPU and an NPU, over a real redis-server.
func start(t *testing.T, models catalogue, args ...string) *world {
	t.Helper()
	w, _ := startWithRedis(t, models, args...)
	return w
}

// startWithRedis is start for tests about Redis' faults.
func startWithRedis(t *testing.T, models catalogue, args ...string) (*world, *testenv.RedisServer) {
	t.Helper()
	server := testenv.StartRedis(t)
	s := testenv.Start(t, testenv.Spec{Models: models.yaml(), Args: args, Redis: server})
	return &world{System: s, t: t, rdb: s.Redis(), types: models.types()}, server
}

// refused runs a gateway whose settings must be refused at the start, and returns what it said.
func refused(t *testing.T, models catalogue, args ...string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "models.yaml")
	if err := os.WriteFile(file, []byte(models.yaml()), 0o600); err != nil {
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

// catalogue is a models file of stand-ins in short: name → type and further fields in YAML's flow form,
// "llm, device: npu".
type catalogue map[string]string

// hostFields is the key under which a catalogue holds further fields of its host.
const hostFields = "host"

func (c catalogue) yaml() string {
	models := calls.Catalogue(maps.Clone(c))
	delete(models, hostFields)
	return models.YAML(fmt.Sprintf("hosts:\n  local: {driver: local, devices: [cpu, npu]%s}\n", c[hostFields]))
}

func (c catalogue) types() map[string]string {
	out := map[string]string{}
	for name, fields := range c {
		out[name], _, _ = strings.Cut(fields, ",")
	}
	return out
}

// answer is a finished HTTP exchange.
type answer struct {
	status int
	header http.Header
	body   []byte
	err    error
}

// code is the error code of an answer, "" for none.
func (a answer) code() string {
	var e struct{ Error struct{ Code string } }
	_ = json.Unmarshal(a.body, &e)
	return e.Error.Code
}

// message is the error message of an answer, "" for none.
func (a answer) message() string {
	var e struct{ Error struct{ Message string } }
	_ = json.Unmarshal(a.body, &e)
	return e.Error.Message
}

func (a answer) String() string {
	if a.err != nil {
		return a.err.Error()
	}
	return fmt.Sprintf("%d %s", a.status, bytes.TrimSpace(a.body[:min(len(a.body), 400)]))
}

// request makes the request that suits a model's type.
func (w *world) request(ctx context.Context, model string) *http.Request {
	w.t.Helper()
	req, err := calls.Request(ctx, w.URL, w.types[model], model)
	if err != nil {
		w.t.Fatalf("model %q: %v", model, err)
	}
	if w.key != "" {
		req.Header.Set("Authorization", "Bearer "+w.key)
	}
	return req
}

// do makes a request and reads its answer. It may be called from any goroutine.
func do(req *http.Request) answer {
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return answer{err: err}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return answer{status: resp.StatusCode, header: resp.Header, body: body, err: err}
}

// ask uses a model and returns the answer.
func (w *world) ask(model string) answer {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 2*kit.Patience)
	defer cancel()
	return do(w.request(ctx, model))
}

// use is ask for a request that must succeed.
func (w *world) use(model string) answer {
	w.t.Helper()
	a := w.ask(model)
	if a.err != nil || a.status != http.StatusOK {
		w.t.Fatalf("%s: %v", model, a)
	}
	return a
}

// later makes a request in the background; the answer comes on the channel. cancel makes the client go away.
func (w *world) later(model string) (got <-chan answer, cancel context.CancelFunc) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 2*kit.Patience)
	w.t.Cleanup(cancel)
	req := w.request(ctx, model)
	c := make(chan answer, 1)
	go func() { c <- do(req) }()
	return c, cancel
}

// await takes an answer that must come, with status 200.
func (w *world) await(what string, c <-chan answer) answer {
	w.t.Helper()
	select {
	case a := <-c:
		if a.err != nil || a.status != http.StatusOK {
			w.t.Fatalf("%s: %v", what, a)
		}
		return a
	case <-time.After(kit.Patience):
		w.t.Fatalf("%s: no answer in %v", what, kit.Patience)
		return answer{}
	}
}

// manage makes a management call with a JSON body and the admin key.
func (w *world) manage(path, body string) answer {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 2*kit.Patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.URL+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	key := w.key
	if key == "" {
		key = w.AdminKey()
	}
	req.Header.Set("Authorization", "Bearer "+key)
	return do(req)
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

// loaded lists the models that are loaded, by name.
func (w *world) loaded() []string {
	w.t.Helper()
	names, err := w.rdb.SMembers(w.t.Context(), "rv:{main}:models:local").Result()
	if err != nil {
		w.t.Fatal(err)
	}
	slices.Sort(names)
	return slices.DeleteFunc(names, func(m string) bool { return w.field(m, "state") != "loaded" })
}

// field reads a field of a model's record, "" when there is none.
func (w *world) field(model, name string) string {
	w.t.Helper()
	v, err := w.rdb.HGet(w.t.Context(), "rv:{main}:model:local:"+model, name).Result()
	if err != nil && err != redis.Nil {
		w.t.Fatal(err)
	}
	return v
}

// pid is the process of a model's engine, 0 when it is not loaded.
func (w *world) pid(model string) int {
	w.t.Helper()
	pid, _ := strconv.Atoi(w.field(model, "pid"))
	return pid
}

// lru lists the models of a type, the least recently used first.
func (w *world) lru(typ string) []string {
	w.t.Helper()
	return w.rdb.ZRange(w.t.Context(), "rv:{main}:lru:local:"+typ, 0, -1).Val()
}

// queued lists the models that wait in the host's queue, in order.
func (w *world) queued() []string {
	w.t.Helper()
	ids := w.rdb.LRange(w.t.Context(), "rv:{main}:queue:local", 0, -1).Val()
	for i, id := range ids {
		ids[i] = w.rdb.HGet(w.t.Context(), "rv:{main}:ticket:"+id, "model").Val()
	}
	return ids
}

// health reads what the gateway tells of its models into v.
func (w *world) health(v any) {
	w.t.Helper()
	a := do(w.get("/v1/health"))
	if err := json.Unmarshal(a.body, v); err != nil {
		w.t.Fatalf("health: %v: %v", err, a)
	}
}

// waiting counts the requests that wait, by model.
func (w *world) waiting() map[string]int {
	w.t.Helper()
	var health struct {
		Loading []struct {
			Name    string `json:"model_name"`
			Waiting int
		} `json:"models_loading"`
	}
	w.health(&health)
	n := map[string]int{}
	for _, m := range health.Loading {
		n[m.Name] = m.Waiting
	}
	return n
}

// loads counts the engines that were started for a model, by the runner's log.
func (w *world) loads(model string) int {
	n := 0
	for line := range strings.Lines(w.Log()) {
		if strings.Contains(line, `msg="engine started"`) && strings.Contains(line, " model="+model+" ") {
			n++
		}
	}
	return n
}

// stats asks a model's engine what it has seen, beside the gateway, so that the question is no use of the model.
func (w *world) stats(model string) (st struct {
	Calls     map[string]int
	InFlight  int `json:"in_flight"`
	Cancelled int
}) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, strings.TrimSuffix(w.field(model, "backend_url"), "/v1")+"/standin/stats", nil)
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+environment(w.t, w.pid(model), "STANDIN_API_KEY"))
	a := do(req)
	if err := json.Unmarshal(a.body, &st); err != nil || a.status != http.StatusOK {
		w.t.Fatalf("engine of %s: %v", model, a)
	}
	return st
}

// runnerMetrics are the metrics of the local host's runner.
func (w *world) runnerMetrics() string {
	w.t.Helper()
	addr, err := w.rdb.HGet(w.t.Context(), "rv:{main}:host:local", "addr").Result()
	if err != nil {
		w.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, "http://"+addr+"/metrics", nil)
	if err != nil {
		w.t.Fatal(err)
	}
	a := do(req)
	if a.err != nil || a.status != http.StatusOK {
		w.t.Fatalf("the runner's metrics: %v", a)
	}
	return string(a.body)
}

// step lets the engine of a stand-in with --step make one token.
func (w *world) step(model string) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodPost, strings.TrimSuffix(w.field(model, "backend_url"), "/v1")+"/standin/step", nil)
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+environment(w.t, w.pid(model), "STANDIN_API_KEY"))
	if a := do(req); a.status != http.StatusNoContent {
		w.t.Fatalf("step of %s: %v", model, a)
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
