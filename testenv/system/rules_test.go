package system

import (
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

// Rule 3: one NPU model on a host, whatever its type and however many slots are free.
func TestRule03OneModelOnTheNPU(t *testing.T) {
	t.Parallel()
	w := start(t, calls.Catalogue{
		"npu-llm": "llm, device: npu", "npu-embed": "embedding, device: npu", "npu-audio": "audio, device: npu",
		"cpu-llm": "llm", "cpu-embed": "embedding",
	}, "--max-loaded-models=3")
	for _, step := range []struct {
		model, evicts string
		loaded        []string
	}{
		{"npu-llm", "", []string{"npu-llm"}},
		{"cpu-llm", "", []string{"cpu-llm", "npu-llm"}},
		{"npu-embed", "npu-llm", []string{"cpu-llm", "npu-embed"}},
		{"cpu-embed", "", []string{"cpu-embed", "cpu-llm", "npu-embed"}},
		{"npu-audio", "npu-embed", []string{"cpu-embed", "cpu-llm", "npu-audio"}},
		{"npu-llm", "npu-audio", []string{"cpu-embed", "cpu-llm", "npu-llm"}},
	} {
		if got := w.Use(step.model).Header.Get("x-evicted"); got != step.evicts {
			t.Errorf("%s evicted %q, want %q", step.model, got, step.evicts)
		}
		kit.Becomes(t, "loaded after "+step.model, step.loaded, w.Loaded)
		if strings.HasPrefix(step.model, "npu") {
			if got := w.Rdb.Get(t.Context(), "rv:{main}:npu:local").Val(); got != step.model {
				t.Errorf("npu:local is %q, want %q", got, step.model)
			}
		}
	}
}

func TestRule03BusyNPUIsWaitedFor(t *testing.T) {
	t.Parallel()
	w := start(t, calls.Catalogue{
		"npu-llm": "llm, device: npu, " + calls.Options(worlds.Slow), "npu-embed": "embedding, device: npu",
	}, "--max-loaded-models=3")
	s := w.Chat("npu-llm", 60)
	got, _ := w.Later("npu-embed")
	kit.Becomes(t, "queue", []string{"npu-embed"}, w.Queued)
	stays(t, "loaded while the NPU is busy", []string{"npu-llm"}, w.Loaded)
	s.Whole(t)
	w.Await("npu-embed", got)
	kit.Becomes(t, "loaded", []string{"npu-embed"}, w.Loaded)
}

func TestRule03Seats(t *testing.T) {
	t.Parallel()
	models := calls.Catalogue{
		"npu-llm": "llm, device: npu", "npu-llm-2": "llm, device: npu", "npu-embed": "embedding, device: npu", "npu-audio": "audio, device: npu",
	}
	host := "hosts:\n  local: {driver: local, devices: [npu], npu_seats: {llm: 1, embedding: 1}}\n"
	w := &world{worlds.Of(t, models, testenv.Start(t, testenv.Spec{
		Models: models.YAML(host), Args: []string{"--max-loaded-models=3"}, Redis: testenv.StartRedis(t),
	}))}
	w.Use("npu-llm")
	w.Use("npu-embed")
	kit.Becomes(t, "both seats taken", []string{"npu-embed", "npu-llm"}, w.Loaded)
	if got := w.Use("npu-llm-2").Header.Get("x-evicted"); got != "npu-llm" {
		t.Errorf("evicted %q, want the other llm", got)
	}
	if a := w.Ask("npu-audio"); a.Status < 500 || a.Code() == "" {
		t.Errorf("no seat for its type: %v", a)
	}
	kit.Becomes(t, "loaded in the end", []string{"npu-embed", "npu-llm-2"}, w.Loaded)
}

// Rule 4: a busy model is not evicted, the load waits.
func TestRule04BusyStays(t *testing.T) {
	t.Parallel()
	w := start(t, calls.Catalogue{"a": "llm, " + calls.Options(worlds.Slow), "b": "llm"}, "--fair-after=100ms")
	s := w.Chat("a", 80)
	pid := w.Engine("a")
	got, _ := w.Later("b")
	kit.Becomes(t, "queue", []string{"b"}, w.Queued)
	stays(t, "a's process", pid, func() int { return w.Engine("a") })
	done := s.Drain()
	a := w.Await("b", got)
	select {
	case at, whole := <-done:
		if !whole {
			t.Error("the busy model's stream was cut")
		}
		_ = at
	default:
		t.Error("b was served while a was busy")
	}
	if a.Header.Get("x-evicted") != "a" {
		t.Errorf("evicted %q, want a", a.Header.Get("x-evicted"))
	}
}

// Rule 5: loads are first come first served.
func TestRule05FirstComeFirstServed(t *testing.T) {
	t.Parallel()
	models := calls.Catalogue{"a": "llm, " + calls.Options(worlds.Slow)}
	later := []string{"z", "m", "b", "q"}
	for _, m := range later {
		models[m] = "llm"
	}
	w := start(t, models)
	s := w.Chat("a", 2000)
	var got []<-chan calls.Answer
	for i, m := range later {
		c, _ := w.Later(m)
		got = append(got, c)
		kit.Becomes(t, "queue", later[:i+1], w.Queued)
	}
	s.Leave()
	for i, c := range got {
		w.Await(later[i], c)
	}
	if order := begun(w.Log()); !slices.Equal(order, append([]string{"a"}, later...)) {
		t.Errorf("loads began in the order %v, want a and then %v", order, later)
	}
}

// Rule 5: a load that waits for a busy victim lets 8 later ones pass that need not wait.
func TestRule05Passing(t *testing.T) {
	t.Parallel()
	w := start(t, calls.Catalogue{
		"a": "llm, " + calls.Options(worlds.Slow), "b": "llm", "e1": "embedding", "e2": "embedding",
	}, "--fair-after=100ms")
	s := w.Chat("a", 20000)
	b, _ := w.Later("b")
	kit.Becomes(t, "queue", []string{"b"}, w.Queued)
	for i := range 8 {
		w.Use([]string{"e1", "e2"}[i%2])
	}
	ninth, _ := w.Later("e1")
	kit.Becomes(t, "queue", []string{"b", "e1"}, w.Queued)
	stays(t, "queue behind a load that was passed often enough", []string{"b", "e1"}, w.Queued)
	s.Leave()
	w.Await("b", b)
	w.Await("e1", ninth)
	order := begun(w.Log())
	if want := []string{"a", "e1", "e2", "e1", "e2", "e1", "e2", "e1", "e2", "b", "e1"}; !slices.Equal(order, want) {
		t.Errorf("loads began in the order %v, want %v", order, want)
	}
}

// begun lists the loads that a log says to have started, in order.
func begun(log string) []string {
	var models []string
	for line := range strings.Lines(log) {
		if strings.Contains(line, `msg="load started"`) {
			_, rest, _ := strings.Cut(line, " model=")
			model, _, _ := strings.Cut(rest, " ")
			models = append(models, model)
		}
	}
	return models
}

// Rule 6: a failed load empties the host, all types, and is tried once more.
func TestRule06FailedLoadClearsAndRetries(t *testing.T) {
	t.Parallel()
	w := start(t, calls.Catalogue{
		"x": "llm", "e": "embedding, " + calls.Options("--call-cost 1500ms"), "f": "llm, " + calls.Options("--load-time 1100ms --fail-load 1"),
		"broken": "audio, " + calls.Options("--load-time 1100ms --fail-load -1"),
	}, "--max-loaded-models=3")
	w.Use("x")
	busy, _ := w.Later("e")
	kit.Becomes(t, "e is busy", true, func() bool { return w.Engine("e") > 0 && w.stats("e").InFlight == 1 })
	a := w.Use("f")
	select {
	case got := <-busy:
		if got.Status != http.StatusOK {
			t.Errorf("the request that was open at the failed load: %v", got)
		}
	default:
		t.Error("a busy model was cleared away")
	}
	kit.Becomes(t, "loaded after the second try", []string{"f"}, w.Loaded)
	evicted := strings.Split(a.Header.Get("x-evicted"), ",")
	if slices.Sort(evicted); !slices.Equal(evicted, []string{"e", "x"}) {
		t.Errorf("x-evicted %v, want e and x", evicted)
	}
	if n := w.Spawns("f"); n != 2 {
		t.Errorf("%d starts of f, want 2", n)
	}

	a = w.Ask("broken")
	if a.Status != 500 || a.Code() != "model_load_error" || a.Header.Get("x-should-retry") != "false" {
		t.Errorf("a load that fails twice: %v", a)
	}
	if n := w.Spawns("broken"); n != 2 {
		t.Errorf("%d starts of broken, want 2", n)
	}
	kit.Becomes(t, "loaded after two failures", []string(nil), w.Loaded)
	w.Use("x") // comes back with its next request
}

// Rule 6: a missing file fails at once, clears nothing and is not tried again.
func TestRule06MissingFile(t *testing.T) {
	t.Parallel()
	w := start(t, calls.Catalogue{
		"x": "llm", "e": "embedding", "y": "llm, " + calls.Options("--need-file /nonexistent/weights.gguf"), "real": "llm, recipe: llamacpp, checkpoint: /nonexistent/real.gguf",
	}, "--max-loaded-models=3")
	w.Use("x")
	w.Use("e")
	pids := func() []int { return []int{w.Engine("x"), w.Engine("e")} }
	before := pids()
	for model, starts := range map[string]int{"y": 1, "real": 0} {
		a := w.Ask(model)
		if a.Status != http.StatusNotFound || a.Code() != "model_file_not_found" || a.Header.Get("x-should-retry") != "false" {
			t.Errorf("%s: %v", model, a)
		}
		if strings.Contains(a.Error().Message, "/nonexistent") {
			t.Errorf("%s: the message tells a path of the host: %s", model, a.Error().Message)
		}
		if n := w.Spawns(model); n != starts {
			t.Errorf("%d starts of %s, want %d", n, model, starts)
		}
	}
	stays(t, "processes of x and e", before, pids)
}

// A model that cannot load makes no room for itself: what can be known without an engine is looked at before anything
// is evicted.
func TestRule06BrokenModelEvictsNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%q", path)
	}
	whole, err := os.ReadFile(testenv.Models(t).MiniLM)
	if err != nil {
		t.Fatal(err)
	}
	gguf := file("whole.gguf", string(whole))
	broken := map[string]string{
		"missing":   "checkpoint: /nonexistent/real.gguf",
		"pointer":   "checkpoint: " + file("pointer.gguf", "version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 9\n"),
		"cut":       "checkpoint: " + file("cut.gguf", string(whole[:len(whole)/3])),
		"half":      "checkpoint: " + file("half-00001-of-00002.gguf", string(whole)),
		"second":    "checkpoint: " + file("second-00002-of-00002.gguf", string(whole)),
		"projector": "checkpoint: " + gguf + ", mmproj: /nonexistent/mmproj.gguf",
	}
	models := calls.Catalogue{"good": "llm", "vectors": "embedding", "program": "llm, recipe: vllm, checkpoint: " + fmt.Sprintf("%q", dir)}
	for name, rest := range broken {
		models[name] = "llm, recipe: llamacpp, " + rest
	}
	w := start(t, models, "--max-loaded-models=1")
	w.Use("good")
	w.Use("vectors")
	pids := func() []int { return []int{w.Engine("good"), w.Engine("vectors")} }
	before := pids()
	for name := range models {
		if name == "good" || name == "vectors" {
			continue
		}
		for range 3 {
			if a := w.Ask(name); a.Status < 400 {
				t.Errorf("%s: %v", name, a)
			}
		}
		if after := pids(); !slices.Equal(after, before) {
			t.Fatalf("%s: processes were %v and are %v", name, before, after)
		}
	}
}

// Rule 6: options that an engine refuses touch no other model. Batches that llama-server aborts on are planned around,
// or refused before it starts.
func TestRule06RefusedOptions(t *testing.T) {
	t.Parallel()
	testenv.Engines(t)
	files := testenv.Models(t)
	real := func(typ, file string) string {
		return typ + ", recipe: llamacpp, checkpoint: " + fmt.Sprintf("%q", file)
	}
	w := start(t, calls.Catalogue{
		"busy": "llm, " + calls.Options(worlds.Slow), "e": real("embedding", files.MiniLM), "g": real("llm", files.Gemma),
		"bad": real("llm", files.Gemma) + `, options: {llamacpp_args: "-np 8 -b 4 -ub 2"}`,
	}, "--max-loaded-models=3")
	s := w.Chat("busy", 100000)
	for _, body := range []string{`{"model_name":"e","n_batch":1}`, `{"model_name":"e","llamacpp_args":"-b 1"}`} {
		if a := w.Manage("/v1/load", body); a.Status != http.StatusBadRequest {
			t.Errorf("%s: %v", body, a)
		}
	}
	for _, body := range []string{`{"model_name":"e","n_batch":2}`, `{"model_name":"e","n_batch":100}`, `{"model_name":"e","n_batch":101,"n_parallel":7}`, `{"model_name":"g","n_batch":2,"ctx_size":256}`} {
		if a := w.Manage("/v1/load", body); a.Status != http.StatusOK {
			t.Errorf("%s: %v", body, a)
		}
		if strings.Contains(body, "n_batch\":10") { // a batch of two has no room for a word
			w.Use("e")
		}
	}
	pid, starts := w.Engine("e"), w.Spawns("bad")
	a := w.Manage("/v1/load", `{"model_name":"bad"}`)
	if a.Status != http.StatusInternalServerError || a.Code() != "model_load_error" {
		t.Error(a)
	}
	if n := w.Spawns("bad") - starts; n != 1 {
		t.Errorf("%d starts, want 1", n)
	}
	if w.Engine("e") != pid {
		t.Error("another model was cleared away")
	}
	w.Use("e")
	s.Leave()
}

// Rule 7: a model loaded for a request serves it before it may be evicted, however many others want the slot.
func TestRule07LoadedForARequestServesIt(t *testing.T) {
	t.Parallel()
	models := calls.Catalogue{}
	var names []string
	for i := range 5 {
		names = append(names, fmt.Sprintf("m%d", i))
		models[names[i]] = "llm, " + calls.Options("--token-delay 1ms")
	}
	models["first"] = "llm, " + calls.Options(worlds.Slow)
	w := start(t, models, "--fair-after=50ms")
	held := w.Chat("first", 20000) // no slot is free before all wait
	got := map[string][]<-chan calls.Answer{}
	for range 4 {
		for _, m := range names {
			c, _ := w.Later(m)
			got[m] = append(got[m], c)
		}
	}
	waiting := map[string]int{}
	for _, m := range names {
		waiting[m] = 4
	}
	kit.Becomes(t, "requests that wait", waiting, w.waiting)
	held.Leave()
	for m, list := range got {
		for _, c := range list {
			w.Await(m, c)
		}
	}
	for _, m := range names {
		if n := w.Spawns(m); n != 1 {
			t.Errorf("%d loads of %s for requests that waited together, want 1", n, m)
		}
	}
}

// Rule 8: pinned models are never victims.
func TestRule08Pins(t *testing.T) {
	t.Parallel()
	w := start(t, calls.Catalogue{"a": "llm, pin: true", "b": "llm", "c": "llm"})
	w.Use("a")
	pid := w.Engine("a")
	refusedBy := func(a calls.Answer, status int) {
		t.Helper()
		if a.Status != status || a.Code() != "slots_pinned_error" || !strings.Contains(a.Error().Message, "a") {
			t.Errorf("want %d slots_pinned_error, got %v", status, a)
		}
	}
	refusedBy(w.Ask("b"), http.StatusServiceUnavailable)
	load := w.Manage("/v1/load", `{"model_name":"b"}`)
	refusedBy(load, http.StatusConflict)
	if load.Header.Get("x-should-retry") != "false" {
		t.Error("409 without x-should-retry: false")
	}
	if got := w.Engine("a"); got != pid {
		t.Errorf("a's process %d became %d", pid, got)
	}
	if a := w.Manage("/v1/internal/pin", `{"model_name":"a","pinned":false}`); a.Status != http.StatusOK {
		t.Fatalf("unpin: %v", a)
	}
	w.Use("b")
	if a := w.Manage("/v1/internal/pin", `{"model_name":"b","pinned":true}`); a.Status != http.StatusOK {
		t.Fatalf("pin: %v", a)
	}
	kit.Becomes(t, "pinned", "1", func() string { return w.Field("b", "pinned") })
	refusedBy(w.Ask("c"), http.StatusServiceUnavailable)
}

// Rule 9: beyond the count there is a memory budget.
func TestRule09MemoryBudget(t *testing.T) {
	t.Parallel()
	w := start(t, calls.Catalogue{
		"a": "llm, memory: 400MiB", "b": "embedding, memory: 400MiB", "c": "llm, memory: 400MiB", "big": "llm, memory: 900MiB",
		"huge": "llm, memory: 1025MiB",
	}, "--max-loaded-models=3", "--memory-budget=cpu=1GiB")
	w.Use("a")
	tick()
	w.Use("b")
	tick()
	if got := w.Use("c").Header.Get("x-evicted"); got != "a" {
		t.Errorf("evicted %q, want a", got)
	}
	a := w.Ask("huge")
	if a.Status != 500 || a.Code() != "model_too_large" || a.Header.Get("x-should-retry") != "false" {
		t.Errorf("a model that never fits: %v", a)
	}
	for _, n := range []int{1025 << 20, 1 << 30} {
		if !strings.Contains(a.Error().Message, fmt.Sprint(n)) {
			t.Errorf("the refusal lacks the number %d: %s", n, a.Error().Message)
		}
	}
	kit.Becomes(t, "loaded after the refusal", []string{"b", "c"}, w.Loaded)
	w.Use("big")
	kit.Becomes(t, "loaded", []string{"big"}, w.Loaded)
}

// Rule 9 for each GPU: a load takes the fewest that hold it, its engine sees no others, and a refusal names them.
func TestRule09EachGPU(t *testing.T) {
	bin := t.TempDir()
	smi := "#!/bin/sh\nprintf '0, NVIDIA A2, 2048, 2048\\n1, NVIDIA A2, 2048, 2048\\n'\n"
	if err := os.WriteFile(filepath.Join(bin, "nvidia-smi"), []byte(smi), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+string(os.PathListSeparator)+os.Getenv("PATH"))
	t.Setenv("CUDA_VISIBLE_DEVICES", "") // and back at the end
	if err := os.Unsetenv("CUDA_VISIBLE_DEVICES"); err != nil {
		t.Fatal(err)
	}
	models := calls.Catalogue{
		"a": "llm, device: gpu, memory: 800MiB", "b": "llm, device: gpu, memory: 800MiB", "second": "embedding, device: [\"gpu:1\"], memory: 800MiB",
		"wide": "llm, device: gpu, memory: 1500MiB", "huge": "llm, device: gpu, gpus: 1, memory: 1025MiB", "third": "llm, device: [\"gpu:2\"], memory: 1MiB",
	}
	s := testenv.Start(t, testenv.Spec{Models: models.YAML("hosts:\n  local: {driver: local, devices: [cpu, gpu]}\n"), Args: []string{"--max-loaded-models=-1"}, Redis: testenv.StartRedis(t)})
	w := &world{worlds.Of(t, calls.Catalogue(models), s)}
	on := func(model, visible, cards string) {
		t.Helper()
		env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", w.Engine(model)))
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for kv := range strings.SplitSeq(string(env), "\x00") {
			if v, ok := strings.CutPrefix(kv, "CUDA_VISIBLE_DEVICES="); ok {
				got = v
			}
		}
		if got != visible || w.Field(model, "cards") != cards {
			t.Errorf("%s sees %q and has %q, want %q and %q", model, got, w.Field(model, "cards"), visible, cards)
		}
	}
	w.Use("a")
	on("a", "0", "gpu:0=838860800")
	tick()
	w.Use("b")
	on("b", "1", "gpu:1=838860800")
	tick()
	if got := w.Use("second").Header.Get("x-evicted"); got != "b" {
		t.Errorf("evicted %q, want b", got)
	}
	on("second", "1", "gpu:1=838860800")
	for model, text := range map[string]string{"huge": "1073741824 a host has on gpu:0", "third": "gpu:2"} {
		if a := w.Ask(model); a.Status < 500 || !strings.Contains(a.Error().Message, text) {
			t.Errorf("%s: %v, want %q", model, a, text)
		}
	}
	kit.Becomes(t, "loaded after the refusals", []string{"a", "second"}, w.Loaded)
	w.Use("wide")
	on("wide", "", "gpu:0=786432000 gpu:1=786432000")
	kit.Becomes(t, "loaded", []string{"wide"}, w.Loaded)
}

// Rule 10: request > saved > catalog > recipe; other options reload.
func TestRule10Options(t *testing.T) {
	t.Parallel()
	w := start(t, calls.Catalogue{"a": "llm, options: {ctx_size: 2048}", "plain": "embedding"})
	context := func() string {
		_, rest, _ := strings.Cut(w.Field("a", "options"), `"ctx_size":`)
		n, _, _ := strings.Cut(rest, ",")
		return strings.Trim(n, "} ")
	}
	load := func(body string) int {
		t.Helper()
		if a := w.Manage("/v1/load", body); a.Status != http.StatusOK {
			t.Fatalf("%s: %v", body, a)
		}
		return w.Engine("a")
	}
	w.Use("a")
	if got := context(); got != "2048" {
		t.Errorf("catalog: ctx_size %s, want 2048", got)
	}
	first := w.Engine("a")
	if pid := load(`{"model_name":"a"}`); pid != first {
		t.Error("a load without other options replaced the process")
	}
	second := load(`{"model_name":"a","ctx_size":1024}`)
	if got := context(); second == first || got != "1024" {
		t.Errorf("request: ctx_size %s, want 1024; process %d after %d", got, second, first)
	}
	if pid := load(`{"model_name":"a","ctx_size":1024}`); pid != second {
		t.Error("a load with the same options replaced the process")
	}
	w.Use("a")
	if w.Engine("a") != second {
		t.Error("a request replaced the process")
	}
	third := load(`{"model_name":"a","ctx_size":512,"save_options":true}`)
	if got := context(); third == second || got != "512" {
		t.Errorf("saving request: ctx_size %s, want 512", got)
	}
	if a := w.Manage("/v1/unload", `{"model_name":"a"}`); a.Status != http.StatusOK {
		t.Fatalf("unload: %v", a)
	}
	w.Use("a")
	if got := context(); got != "512" {
		t.Errorf("saved: ctx_size %s, want 512", got)
	}
	load(`{"model_name":"a","ctx_size":null}`)
	if got := context(); got != "2048" {
		t.Errorf("null skips the saved value: ctx_size %s, want 2048", got)
	}
	pid := w.Engine("a")
	for _, body := range []string{
		`{"model_name":"a","ctx_size":"many"}`, `{"model_name":"a","ctx_size":-2}`, `{"model_name":"a","llamacpp_args":"-np 2"}`, `{"model_name":7}`, `{}`,
	} {
		if a := w.Manage("/v1/load", body); a.Status != http.StatusBadRequest {
			t.Errorf("%s: %v", body, a)
		}
	}
	if a := w.Manage("/v1/load", `{"model_name":"nobody"}`); a.Status != http.StatusNotFound {
		t.Errorf("unknown model: %v", a)
	}
	if w.Engine("a") != pid {
		t.Error("a refused load replaced the process")
	}
}
