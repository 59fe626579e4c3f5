package system

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"reveille/testenv"
	"reveille/testenv/calls"
	"reveille/testenv/kit"
	"reveille/testenv/worlds"
)

// fleet starts a gateway over hosts that have the recipes.
func fleet(t *testing.T, recipes string, hosts []worlds.Host, models calls.Catalogue) *world {
	t.Helper()
	return &world{worlds.StartFleet(t, worlds.Fleet{Models: models, Recipes: recipes, Hosts: hosts, Admin: true})}
}

// tickets counts the tickets for a model by host.
func (w *world) tickets(model string) map[string]int {
	w.T.Helper()
	out := map[string]int{}
	for _, key := range w.Rdb.Keys(w.T.Context(), "rv:{main}:ticket:*").Val() {
		if t := w.Rdb.HGetAll(w.T.Context(), key).Val(); t["model"] == model {
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
	w := fleet(t, "", []worlds.Host{
		{Name: "a", Flags: []string{"--memory-budget=cpu=200MiB"}}, {Name: "b", Flags: []string{"--memory-budget=cpu=300MiB"}},
		{Name: "c", Flags: []string{"--memory-budget=cpu=1GiB"}},
	}, calls.Catalogue{
		"said":   "llm, memory: 500MiB",
		"read":   "embedding, checkpoint: " + weights("read.bin", 400<<20),
		"vast":   "reranking, checkpoint: " + weights("vast.bin", 4<<30),
		"chosen": "audio, memory: 250MiB, hosts: [a, b]",
		"stated": "image, memory: 2GiB",
	})
	if got := w.HostField("a", "memory_budget"); got != fmt.Sprint("cpu=", 200<<20) {
		t.Errorf("memory_budget of a: %q", got)
	}
	served := func(model, host string) {
		t.Helper()
		if got := w.Use(model).Header.Get("x-runner"); got != host {
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
	if got := w.HostField("a", "need:read"); !strings.Contains(got, `"device":"cpu"`) {
		t.Errorf("need of read on a: %q", got)
	}
	if a := w.Manage("/v1/unload", `{"model_name":"read"}`); a.Status != http.StatusOK {
		t.Fatalf("unload: %v", a)
	}
	served("read", "c")
	if got := fmt.Sprint(w.tickets("read")); !strings.HasPrefix(got, "map[a:1 b:1 c:") {
		t.Errorf("after an unload read was tried on %s", got)
	}

	tooLarge := func(model string, figures ...int) {
		t.Helper()
		a := w.Ask(model)
		if a.Status != http.StatusInternalServerError || a.Code() != "model_too_large" || a.Header.Get("x-should-retry") != "false" {
			t.Errorf("%s: %v", model, a)
		}
		for _, n := range figures {
			if !strings.Contains(a.Error().Message, fmt.Sprint(n)) {
				t.Errorf("the refusal of %s lacks %d: %s", model, n, a.Error().Message)
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
	if a := w.Manage("/v1/load", `{"model_name":"vast","ctx_size":512}`); a.Code() != "model_too_large" {
		t.Errorf("load with other options: %v", a)
	}
}

// Between hosts that would have to evict, the one goes first whose victim was used longest ago; the model's list of hosts
// goes before.
func TestVictimsOfSeveralHosts(t *testing.T) {
	t.Parallel()
	w := fleet(t, "", []worlds.Host{{Name: "a"}, {Name: "b"}},
		calls.Catalogue{"m": "llm, hosts: [a]", "n": "llm, hosts: [b]", "o": "llm", "listed": "llm, hosts: [a, b]"})
	for _, m := range []string{"m", "n", "m"} {
		w.Use(m)
		tick()
	}
	used := func() bool {
		at := func(host, model string) float64 {
			return w.Rdb.ZScore(t.Context(), "rv:{main}:lru:"+host+":llm", model).Val()
		}
		return at("a", "m") > at("b", "n")
	}
	kit.Becomes(t, "m was used after n", true, used)
	tick()
	if a := w.Use("o"); a.Header.Get("x-runner") != "b" || a.Header.Get("x-evicted") != "n" {
		t.Errorf("o went to %s and evicted %q, want b and n", a.Header.Get("x-runner"), a.Header.Get("x-evicted"))
	}
	if a := w.Use("listed"); a.Header.Get("x-runner") != "a" {
		t.Errorf("a model whose list begins with a went to %s", a.Header.Get("x-runner"))
	}
}

// A load that fails goes on to the next host: to the one that has a working engine, past one without the program and one
// where the program only crashes. The next request goes there too.
func TestFailedLoadGoesOn(t *testing.T) {
	t.Parallel()
	hosts := []worlds.Host{{Name: "a"}}
	for name, program := range map[string]string{"b": "/bin/false", "c": testenv.Standin(t)} {
		dir := t.TempDir()
		if err := os.Symlink(program, filepath.Join(dir, "mine")); err != nil {
			t.Fatal(err)
		}
		hosts = append(hosts, worlds.Host{Name: name, Flags: []string{"--engines-dir=" + dir}})
	}
	w := fleet(t, `
recipes:
  mine:
    inherit: standin
    command: [mine, [--host, "{host}"], [--port, "{port}"], [--model, "{alias}"], [--type, "{type}"]]
`, hosts, calls.Catalogue{"good": "embedding, hosts: [a]", "x": "llm, recipe: mine, hosts: [a, b, c]"})
	w.Use("good")
	before := w.Engine("good")
	for range 2 {
		if a := w.Use("x"); a.Header.Get("x-runner") != "c" {
			t.Errorf("%v on %s", a, a.Header.Get("x-runner"))
		}
	}
	if w.Engine("good") != before {
		t.Error("the model on the host without the program was evicted for it")
	}
	for _, host := range []string{"a", "b"} {
		if n := w.tickets("x")[host]; n != 1 {
			t.Errorf("%d tickets on %s", n, host)
		}
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
	w := fleet(t, backendRecipes, []worlds.Host{{Name: "a", Flags: []string{"--llamacpp-backend=cpu"}}}, calls.Catalogue{
		"n": "llm, device: npu", "w": "audio, recipe: choice, device: cpu", "g": "image, recipe: choice, device: gpu, options: {choice_backend: gpu}",
		"l": "reranking, recipe: llamacpp, checkpoint: x, device: gpu",
	})
	npu := func() string { return w.Rdb.Get(t.Context(), "rv:{main}:npu:a").Val() }
	device := func(model string) string {
		return w.Rdb.HGet(t.Context(), "rv:{main}:model:a:"+model, "device").Val()
	}
	load := func(body string) (got struct{ Device string }) {
		t.Helper()
		a := w.Manage("/v1/load", body)
		if a.Status != http.StatusOK {
			t.Fatalf("%s: %v", body, a)
		}
		if err := json.Unmarshal(a.Body, &got); err != nil {
			t.Fatal(err)
		}
		return got
	}
	w.Use("n")
	kit.Becomes(t, "on the NPU", "n", npu)
	if got := load(`{"model_name":"w","choice_backend":"npu","save_options":true}`).Device; got != "npu" {
		t.Errorf("the load says device %q", got)
	}
	kit.Becomes(t, "on the NPU after a load for it", "w", npu)
	kit.Becomes(t, "record of n", "", func() string { return device("n") })

	w.Use("n") // takes it back
	kit.Becomes(t, "on the NPU", "n", npu)
	if a := w.Use("w"); a.Header.Get("x-evicted") != "n" {
		t.Errorf("a request with saved options evicted %q", a.Header.Get("x-evicted"))
	}
	kit.Becomes(t, "on the NPU by saved options", "w", npu)
	if got := device("w"); got != "npu" {
		t.Errorf("device of w is %q", got)
	}

	if a := w.Ask("g"); a.Status != http.StatusServiceUnavailable {
		t.Errorf("a model for a GPU that nobody has: %v", a)
	}
	if got := load(`{"model_name":"g","choice_backend":"cpu"}`).Device; got != "cpu" {
		t.Errorf("the load says device %q", got)
	}
	w.Use("g")

	w.Use("l")
	if got := device("l"); got != "cpu" {
		t.Errorf("device of l is %q, its runner's flag says cpu", got)
	}
}

// npu_seats of a host in the models file bind its runner; a flag of the runner overrules them.
func TestSeatsOfTheModelsFile(t *testing.T) {
	t.Parallel()
	seats := ", npu_seats: {llm: 1, audio: 1}"
	w := fleet(t, "", []worlds.Host{
		{Name: "a", Entry: seats}, {Name: "b", Flags: []string{"--npu-seats=llm=1 audio=0"}, Entry: seats},
	}, calls.Catalogue{
		"l1": "llm, device: npu, hosts: [a]", "a1": "audio, device: npu, hosts: [a]", "l2": "llm, device: npu, hosts: [b]", "a2": "audio, device: npu, hosts: [b]",
		"e1": "embedding, device: npu, hosts: [a]",
	})
	npu := func(host string) func() string {
		return func() string { // in the order of their names, not of their loads
			models := strings.Split(w.Rdb.Get(t.Context(), "rv:{main}:npu:"+host).Val(), ",")
			slices.Sort(models)
			return strings.Join(models, ",")
		}
	}
	w.Use("l1")
	if a := w.Use("a1"); a.Header.Get("x-evicted") != "" {
		t.Errorf("with a seat for each, audio evicted %q", a.Header.Get("x-evicted"))
	}
	kit.Becomes(t, "on the NPU of a", "a1,l1", npu("a"))
	if a := w.Ask("e1"); a.Status != http.StatusServiceUnavailable {
		t.Errorf("a type without a seat: %v", a)
	}
	w.Use("l2")
	if a := w.Ask("a2"); a.Status != http.StatusServiceUnavailable {
		t.Errorf("the flag gives audio no seat: %v", a)
	}
	kit.Becomes(t, "on the NPU of b", "l2", npu("b"))
}
