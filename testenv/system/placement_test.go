package system

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"reveille/testenv"
	"reveille/testenv/kit"
)

const fleetSecret = "fleet-fleet-fleet-fleet-fleet-fl"

// fleet starts a gateway over runners of their own: host → flags of its runner. entries are further fields of the hosts
// in the models file, devices included; without them a host has the devices cpu and npu.
func fleet(t *testing.T, models catalogue, tail string, hosts map[string][]string, entries map[string]string) *world {
	t.Helper()
	server := testenv.StartRedis(t)
	url := "redis://" + server.Addr + "/0"
	text, _, _ := strings.Cut(models.yaml(), "hosts:\n")
	text += tail + "hosts:\n"
	own := filepath.Join(t.TempDir(), "recipes.yaml")
	if err := os.WriteFile(own, []byte(tail), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(hosts)) {
		_, addr := testenv.StartRunner(t, url, fleetSecret, name, t.TempDir(), append([]string{"--devices=cpu npu", "--recipes=" + own}, hosts[name]...)...)
		entry := entries[name]
		if !strings.Contains(entry, "devices:") {
			entry += ", devices: [cpu, npu]"
		}
		text += fmt.Sprintf("  %s: {driver: exec, address: %q, commands: {wake: [\"true\"], sleep: [\"true\"]}%s}\n", name, addr, entry)
	}
	const key = "the-key-of-the-fleet-0123456789abcdef"
	g := testenv.StartGateway(t, url, fleetSecret, text, "--admin-key="+key)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr, MaxRetries: -1})
	t.Cleanup(func() { _ = rdb.Close() })
	w := &world{System: &testenv.System{Program: g, RedisAddr: server.Addr}, t: t, rdb: rdb, types: models.types(), key: key}
	for name := range hosts {
		kit.Becomes(t, "state of "+name, "ready", func() string { return w.of(name, "state") })
	}
	return w
}

// of reads a field of a host's record.
func (w *world) of(host, field string) string {
	return w.rdb.HGet(w.t.Context(), "rv:{main}:host:"+host, field).Val()
}

// tickets counts the tickets for a model by host.
func (w *world) tickets(model string) map[string]int {
	w.t.Helper()
	out := map[string]int{}
	for _, key := range w.rdb.Keys(w.t.Context(), "rv:{main}:ticket:*").Val() {
		if t := w.rdb.HGetAll(w.t.Context(), key).Val(); t["model"] == model {
			out[t["host"]]++
		}
	}
	return out
}

// A model goes to the host whose memory can hold it, also when only a runner can tell what it needs: then each host that
// refuses is asked once, and later requests do not ask again. A model that fits nowhere is refused with all the figures.
func TestPlacementSeesMemory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	weights := func(name string, size int64) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(path, size); err != nil {
			t.Fatal(err)
		}
		return path
	}
	w := fleet(t, catalogue{
		"said":   "llm, memory: 500MiB",
		"read":   "embedding, checkpoint: " + weights("read.bin", 400<<20),
		"vast":   "reranking, checkpoint: " + weights("vast.bin", 4<<30),
		"chosen": "audio, memory: 250MiB, hosts: [a, b]",
		"stated": "image, memory: 2GiB",
	}, "", map[string][]string{"a": {"--memory-budget=cpu=200MiB"}, "b": {"--memory-budget=cpu=300MiB"}, "c": {"--memory-budget=cpu=1GiB"}}, nil)
	if got := w.of("a", "memory_budget"); got != fmt.Sprint("cpu=", 200<<20) {
		t.Errorf("memory_budget of a: %q", got)
	}
	served := func(model, host string) {
		t.Helper()
		if got := w.use(model).header.Get("x-runner"); got != host {
			t.Errorf("%s is served by %s, want %s", model, got, host)
		}
	}
	served("said", "c")
	served("chosen", "b")
	for _, model := range []string{"said", "chosen"} {
		if n := len(w.tickets(model)); n != 1 {
			t.Errorf("%s was tried on %v", model, w.tickets(model))
		}
	}
	served("read", "c")
	if got := fmt.Sprint(w.tickets("read")); got != "map[a:1 b:1 c:1]" {
		t.Errorf("read was tried on %s", got)
	}
	if got := w.of("a", "need:read"); !strings.Contains(got, `"device":"cpu"`) {
		t.Errorf("need of read on a: %q", got)
	}
	if a := w.manage("/v1/unload", `{"model_name":"read"}`); a.status != http.StatusOK {
		t.Fatalf("unload: %v", a)
	}
	served("read", "c")
	if got := fmt.Sprint(w.tickets("read")); !strings.HasPrefix(got, "map[a:1 b:1 c:") {
		t.Errorf("after an unload read was tried on %s", got)
	}

	tooLarge := func(model string, figures ...int) {
		t.Helper()
		a := w.ask(model)
		if a.status != http.StatusInternalServerError || a.code() != "model_too_large" || a.header.Get("x-should-retry") != "false" {
			t.Errorf("%s: %v", model, a)
		}
		for _, n := range figures {
			if !strings.Contains(a.message(), fmt.Sprint(n)) {
				t.Errorf("the refusal of %s lacks %d: %s", model, n, a.message())
			}
		}
	}
	tooLarge("stated", 1<<30, 2<<30) // what the largest host has, and the need
	tooLarge("vast", 1<<30, 4<<30)
	before := fmt.Sprint(w.tickets("vast"))
	tooLarge("vast", 1<<30)
	if after := fmt.Sprint(w.tickets("vast")); after != before {
		t.Errorf("vast was tried on %s, and then on %s", before, after)
	}
	if n := len(w.tickets("stated")); n != 0 {
		t.Errorf("stated was tried on %v", w.tickets("stated"))
	}
	if a := w.manage("/v1/load", `{"model_name":"vast","ctx_size":512}`); a.code() != "model_too_large" {
		t.Errorf("load with other options: %v", a)
	}
}

// Between hosts that would have to evict, the one goes first whose victim was used longest ago; the model's list of hosts
// goes before.
func TestVictimsOfSeveralHosts(t *testing.T) {
	t.Parallel()
	w := fleet(t, catalogue{"m": "llm, hosts: [a]", "n": "llm, hosts: [b]", "o": "llm", "listed": "llm, hosts: [a, b]"}, "", map[string][]string{"a": nil, "b": nil}, nil)
	for _, m := range []string{"m", "n", "m"} {
		w.use(m)
		tick()
	}
	used := func() bool {
		at := func(host, model string) float64 {
			return w.rdb.ZScore(t.Context(), "rv:{main}:lru:"+host+":llm", model).Val()
		}
		return at("a", "m") > at("b", "n")
	}
	kit.Becomes(t, "m was used after n", true, used)
	tick()
	if a := w.use("o"); a.header.Get("x-runner") != "b" || a.header.Get("x-evicted") != "n" {
		t.Errorf("o went to %s and evicted %q, want b and n", a.header.Get("x-runner"), a.header.Get("x-evicted"))
	}
	if a := w.use("listed"); a.header.Get("x-runner") != "a" {
		t.Errorf("a model whose list begins with a went to %s", a.header.Get("x-runner"))
	}
}

// recipes with a choice of backend, and one that needs a GPU unless a flag of the runner says otherwise.
const backendRecipes = `
recipes:
  choice:
    inherit: standin
    devices: cpu
    backend_option: choice_backend
    backends: {cpu: {devices: cpu}, gpu: {devices: gpu}, npu: {devices: npu}}
    options: {choice_backend: {kind: string, values: [cpu, gpu, npu]}}
  llamacpp:
    command: [standin, [--host, "{host}"], [--port, "{port}"], [--model, "{alias}"], [--type, "{type}"]]
    env: {STANDIN_API_KEY: "{api_key}"}
    checkpoint: any
    encoder_cache: none
`

// A backend that is chosen by a load's options, saved ones or a runner's flag decides what the model uses: the NPU lock,
// and where it can be placed.
func TestBackendDecidesTheDevice(t *testing.T) {
	t.Parallel()
	w := fleet(t, catalogue{
		"n": "llm, device: npu", "w": "audio, recipe: choice, device: cpu", "g": "image, recipe: choice, device: gpu, options: {choice_backend: gpu}",
		"l": "reranking, recipe: llamacpp, checkpoint: x, device: gpu",
	}, backendRecipes, map[string][]string{"a": {"--llamacpp-backend=cpu"}}, nil)
	npu := func() string { return w.rdb.Get(t.Context(), "rv:{main}:npu:a").Val() }
	device := func(model string) string {
		return w.rdb.HGet(t.Context(), "rv:{main}:model:a:"+model, "device").Val()
	}
	load := func(body string) (got struct{ Device string }) {
		t.Helper()
		a := w.manage("/v1/load", body)
		if a.status != http.StatusOK {
			t.Fatalf("%s: %v", body, a)
		}
		if err := json.Unmarshal(a.body, &got); err != nil {
			t.Fatal(err)
		}
		return got
	}
	w.use("n")
	kit.Becomes(t, "on the NPU", "n", npu)
	if got := load(`{"model_name":"w","choice_backend":"npu","save_options":true}`).Device; got != "npu" {
		t.Errorf("the load says device %q", got)
	}
	kit.Becomes(t, "on the NPU after a load for it", "w", npu)
	kit.Becomes(t, "record of n", "", func() string { return device("n") })

	w.use("n") // takes it back
	kit.Becomes(t, "on the NPU", "n", npu)
	if a := w.use("w"); a.header.Get("x-evicted") != "n" {
		t.Errorf("a request with saved options evicted %q", a.header.Get("x-evicted"))
	}
	kit.Becomes(t, "on the NPU by saved options", "w", npu)
	if got := device("w"); got != "npu" {
		t.Errorf("device of w is %q", got)
	}

	if a := w.ask("g"); a.status != http.StatusServiceUnavailable {
		t.Errorf("a model for a GPU that nobody has: %v", a)
	}
	if got := load(`{"model_name":"g","choice_backend":"cpu"}`).Device; got != "cpu" {
		t.Errorf("the load says device %q", got)
	}
	w.use("g")

	w.use("l")
	if got := device("l"); got != "cpu" {
		t.Errorf("device of l is %q, its runner's flag says cpu", got)
	}
}

// npu_seats of a host in the models file bind its runner; a flag of the runner overrules them.
func TestSeatsOfTheModelsFile(t *testing.T) {
	t.Parallel()
	w := fleet(t, catalogue{
		"l1": "llm, device: npu, hosts: [a]", "a1": "audio, device: npu, hosts: [a]", "l2": "llm, device: npu, hosts: [b]", "a2": "audio, device: npu, hosts: [b]",
		"e1": "embedding, device: npu, hosts: [a]",
	}, "", map[string][]string{"a": nil, "b": {"--npu-seats=llm=1 audio=0"}},
		map[string]string{"a": ", npu_seats: {llm: 1, audio: 1}", "b": ", npu_seats: {llm: 1, audio: 1}"})
	npu := func(host string) func() string {
		return func() string { // in the order of their names, not of their loads
			models := strings.Split(w.rdb.Get(t.Context(), "rv:{main}:npu:"+host).Val(), ",")
			slices.Sort(models)
			return strings.Join(models, ",")
		}
	}
	w.use("l1")
	if a := w.use("a1"); a.header.Get("x-evicted") != "" {
		t.Errorf("with a seat for each, audio evicted %q", a.header.Get("x-evicted"))
	}
	kit.Becomes(t, "on the NPU of a", "a1,l1", npu("a"))
	if a := w.ask("e1"); a.status != http.StatusServiceUnavailable {
		t.Errorf("a type without a seat: %v", a)
	}
	w.use("l2")
	if a := w.ask("a2"); a.status != http.StatusServiceUnavailable {
		t.Errorf("the flag gives audio no seat: %v", a)
	}
	kit.Becomes(t, "on the NPU of b", "l2", npu("b"))
}
