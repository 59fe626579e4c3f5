// Package worlds starts pools of real programs over a real redis-server, asks their models, and looks at what becomes of
// them.
package worlds

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
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
	Secret = "the-secret-of-the-fleet-0123456789abcdef" // of a fleet's runners
	Key    = "the-key-of-the-fleet-0123456789abcdef"    // of a fleet's admin

	// Slow are flags of a stand-in that streams for as long as a test wants.
	Slow = "--token-delay 20ms --tokens 100000"
)

// World is a running pool and the eyes of a test on it.
type World struct {
	*testenv.System // `gateway run`, or the first gateway of a fleet
	T               *testing.T
	Models          calls.Catalogue
	Client          *http.Client
	Rdb             redis.UniversalClient
	Host            string // that is looked at
	Key             string // that every request presents; "" where the system made an admin key for management alone

	Gateways []*testenv.Program          // of a fleet
	Runners  map[string]*testenv.Program // of a fleet, by host
	Addrs    map[string]string           // of the runners
}

// Start runs `gateway run`, whose one host, local, has a CPU and an NPU, over a redis-server.
func Start(t *testing.T, models calls.Catalogue, args ...string) *World {
	t.Helper()
	return StartOn(t, models, testenv.StartRedis(t), args...)
}

// StartOn is Start over a redis-server of the test's.
func StartOn(t *testing.T, models calls.Catalogue, server *testenv.RedisServer, args ...string) *World {
	t.Helper()
	return Of(t, models, testenv.Start(t, testenv.Spec{Models: models.YAML(calls.LocalHost), Args: args, Redis: server}))
}

// Of looks at a system that runs.
func Of(t *testing.T, models calls.Catalogue, s *testenv.System) *World {
	return &World{System: s, T: t, Models: models, Client: calls.Client(t, 64), Rdb: s.Redis(), Host: "local"}
}

// Fleet is a pool of single programs.
type Fleet struct {
	Models  calls.Catalogue
	Text    string // of the models file instead of Models, without hosts
	Recipes string // of the models file and of the runners
	Hosts   []Host
	// Gateways is how many there are, 0 is one; Args are their further flags.
	Gateways int
	Args     []string
	// Redis is the server's address; "" starts one.
	Redis string
	// Admin gives the gateways an admin key, which every request presents.
	Admin bool
}

// Host is a runner of a fleet.
type Host struct {
	Name  string
	Flags []string // without --devices it has the devices cpu and npu
	Env   []string
	Entry string // further fields of the host in the models file, which begin with a comma
	Redis string // the address at which the runner finds the redis-server, if not its own
}

// StartFleet returns when all hosts are ready. The world looks at the first one.
func StartFleet(t *testing.T, f Fleet) *World {
	t.Helper()
	if f.Redis == "" {
		f.Redis = testenv.Redis(t)
	}
	url := func(addr string) string { return "redis://" + addr + "/0" }
	text := f.Text
	if text == "" {
		text = f.Models.YAML("")
	}
	text += f.Recipes + "hosts:\n"
	own := filepath.Join(t.TempDir(), "recipes.yaml")
	if err := os.WriteFile(own, []byte(f.Recipes), 0o600); err != nil {
		t.Fatal(err)
	}
	w := &World{
		T: t, Models: f.Models, Client: calls.Client(t, 64), Host: f.Hosts[0].Name, Runners: map[string]*testenv.Program{}, Addrs: map[string]string{},
	}
	for _, h := range f.Hosts {
		if h.Redis == "" {
			h.Redis = f.Redis
		}
		flags := append([]string{"--devices=cpu npu"}, h.Flags...)
		if f.Recipes != "" {
			flags = append(flags, "--recipes="+own)
		}
		w.Runners[h.Name], w.Addrs[h.Name] = testenv.StartRunnerEnv(t, h.Env, url(h.Redis), Secret, h.Name, t.TempDir(), flags...)
		if !strings.Contains(h.Entry, "devices:") {
			h.Entry += ", devices: [cpu, npu]"
		}
		text += fmt.Sprintf("  %s: {driver: exec, address: %q, commands: {wake: [\"true\"], sleep: [\"true\"]}%s}\n", h.Name, w.Addrs[h.Name], h.Entry)
	}
	if f.Admin {
		w.Key = Key
		f.Args = append(f.Args, "--admin-key="+Key)
	}
	for range max(1, f.Gateways) {
		w.Gateways = append(w.Gateways, testenv.StartGateway(t, url(f.Redis), Secret, text, f.Args...))
	}
	w.System = &testenv.System{Program: w.Gateways[0], RedisAddr: f.Redis}
	w.Rdb = RedisAt(t, f.Redis)
	for _, h := range f.Hosts {
		kit.Becomes(t, "state of "+h.Name, "ready", func() string { return w.HostField(h.Name, "state") })
	}
	return w
}

// RedisAt is a client of a redis-server, for a test that looks.
func RedisAt(t *testing.T, addr string) *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, ReadTimeout: kit.Patience})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Runner is the program whose descendants the engines are.
func (w *World) Runner() *testenv.Program {
	if r := w.Runners[w.Host]; r != nil {
		return r
	}
	return w.Program
}

// HGet reads a field of a hash, "" when it is not there.
func (w *World) HGet(key, field string) string {
	w.T.Helper()
	v, err := w.Rdb.HGet(w.T.Context(), key, field).Result()
	if err != nil && err != redis.Nil {
		w.T.Fatal(err)
	}
	return v
}

// HostField reads a field of a host's record.
func (w *World) HostField(host, field string) string {
	w.T.Helper()
	return w.HGet("rv:{main}:host:"+host, field)
}

// Field reads a field of a model's record, "" when there is none.
func (w *World) Field(model, name string) string {
	w.T.Helper()
	return w.HGet("rv:{main}:model:"+w.Host+":"+model, name)
}

// Engine is the process of a model, 0 when it is not loaded.
func (w *World) Engine(model string) int {
	w.T.Helper()
	pid, _ := strconv.Atoi(w.Field(model, "pid"))
	return pid
}

// Loaded lists the loaded models by name.
func (w *World) Loaded() []string {
	w.T.Helper()
	names, err := w.Rdb.SMembers(w.T.Context(), "rv:{main}:models:"+w.Host).Result()
	if err != nil {
		w.T.Fatal(err)
	}
	slices.Sort(names)
	return slices.DeleteFunc(names, func(m string) bool { return w.Field(m, "state") != "loaded" })
}

// Queued lists the models that wait in the host's queue, in order.
func (w *World) Queued() []string {
	w.T.Helper()
	ids := w.Rdb.LRange(w.T.Context(), "rv:{main}:queue:"+w.Host, 0, -1).Val()
	for i, id := range ids {
		ids[i] = w.HGet("rv:{main}:ticket:"+id, "model")
	}
	return ids
}

// Spawns counts the engines that were started for a model, by the runner's log.
func (w *World) Spawns(model string) int {
	n := 0
	for line := range strings.Lines(w.Runner().Log()) {
		if strings.Contains(line, `msg="engine started"`) && strings.Contains(line, " model="+model+" ") {
			n++
		}
	}
	return n
}

// Health reads what the gateway tells of its models into v.
func (w *World) Health(v any) {
	w.T.Helper()
	a := w.Get("/v1/health")
	if err := json.Unmarshal(a.Body, v); err != nil {
		w.T.Fatalf("health: %v: %v", err, a)
	}
}

// Call makes a call. It may be called from any goroutine.
func (w *World) Call(ctx context.Context, method, path, body string) calls.Answer {
	req, err := http.NewRequestWithContext(ctx, method, w.URL+path, strings.NewReader(body))
	return w.Do(req, err)
}

// Do makes a request with the key, and reads its response.
func (w *World) Do(req *http.Request, err error) calls.Answer {
	if err == nil && w.Key != "" {
		req.Header.Set("Authorization", "Bearer "+w.Key)
	}
	return calls.Do(w.Client, req, err)
}

// Get makes a GET call.
func (w *World) Get(path string) calls.Answer { return w.Call(w.T.Context(), http.MethodGet, path, "") }

// Post makes a call with a JSON body.
func (w *World) Post(path, body string) calls.Answer {
	ctx, cancel := context.WithTimeout(w.T.Context(), 2*kit.Patience)
	defer cancel()
	return w.Call(ctx, http.MethodPost, path, body)
}

// Manage is Post with the admin key.
func (w *World) Manage(path, body string) calls.Answer {
	w.T.Helper()
	admin := *w
	if admin.Key == "" {
		admin.Key = w.AdminKey()
	}
	return admin.Post(path, body)
}

// Ask uses a model.
func (w *World) Ask(model string) calls.Answer { return w.AskAt(w.URL, model) }

// AskAt is Ask at another gateway.
func (w *World) AskAt(base, model string) calls.Answer {
	ctx, cancel := context.WithTimeout(w.T.Context(), 2*kit.Patience)
	defer cancel()
	return w.Do(calls.Request(ctx, base, w.Models.Type(model), model))
}

// AskFor is Ask with a client that waits no longer than so many seconds.
func (w *World) AskFor(model string, seconds int) calls.Answer {
	ctx, cancel := context.WithTimeout(w.T.Context(), 2*kit.Patience)
	defer cancel()
	req, err := calls.Request(ctx, w.URL, w.Models.Type(model), model)
	if err == nil {
		req.Header.Set("x-wait-timeout", strconv.Itoa(seconds))
	}
	return w.Do(req, err)
}

// Chat opens a stream of that many tokens and returns when its first token is there, so that the model is busy.
func (w *World) Chat(model string, tokens int) *calls.Stream {
	w.T.Helper()
	return calls.Open(w.T, w.Client, w.URL, model, tokens)
}

// Use is Ask for a request that must succeed.
func (w *World) Use(model string) calls.Answer {
	w.T.Helper()
	a := w.Ask(model)
	if !a.OK() {
		w.T.Fatalf("%s: %v", model, a)
	}
	return a
}

// Later makes the request of Ask in the background; the response comes on the channel. cancel makes the client go away.
func (w *World) Later(model string) (got <-chan calls.Answer, cancel context.CancelFunc) {
	w.T.Helper()
	ctx, cancel := context.WithTimeout(w.T.Context(), 2*kit.Patience)
	w.T.Cleanup(cancel)
	return Later(func() calls.Answer { return w.Do(calls.Request(ctx, w.URL, w.Models.Type(model), model)) }), cancel
}

// Await takes a response that must come, with status 200.
func (w *World) Await(what string, c <-chan calls.Answer) calls.Answer {
	w.T.Helper()
	a := Await(w.T, what, c)
	if !a.OK() {
		w.T.Fatalf("%s: %v", what, a)
	}
	return a
}

// Later makes a call in the background.
func Later(call func() calls.Answer) <-chan calls.Answer {
	c := make(chan calls.Answer, 1)
	go func() { c <- call() }()
	return c
}

// Await takes a response that must come.
func Await(t *testing.T, what string, c <-chan calls.Answer) calls.Answer {
	t.Helper()
	select {
	case a := <-c:
		return a
	case <-time.After(kit.Patience):
		t.Fatalf("%s: no response in %v", what, kit.Patience)
		return calls.Answer{}
	}
}
