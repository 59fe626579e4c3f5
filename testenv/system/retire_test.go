package system

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"reveille/testenv"
	"reveille/testenv/calls"
	"reveille/testenv/kit"
	"reveille/testenv/worlds"
)

// edit replaces the models file and has it read at once.
func (w *world) edit(models string) {
	w.T.Helper()
	w.SetModels(models)
	if err := syscall.Kill(w.PID(), syscall.SIGHUP); err != nil {
		w.T.Fatal(err)
	}
}

// stepped loads a stand-in with --step and opens a stream of two tokens; the second waits for a step of the record
// that the copy has once the model's entry has changed.
func (w *world) stepped(model string) (s *calls.Stream, retired string) {
	w.T.Helper()
	if a := w.Manage("/v1/load", fmt.Sprintf(`{"model_name":%q}`, model)); a.Status != http.StatusOK {
		w.T.Fatalf("load of %s: %v", model, a)
	}
	w.step(model)
	s = w.Chat(model, 2)
	return s, fmt.Sprintf("%s~%d", model, w.Engine(model))
}

// retired waits until a copy only finishes its requests.
func (w *world) retired(record, model string) {
	w.T.Helper()
	kit.Becomes(w.T, "former copy", model+" draining", func() string { return w.Field(record, "retired") + " " + w.Field(record, "state") })
}

// A stream that is open when its model's entry changes ends whole, however short the drain timeout; new requests get the
// new entry beside it. What lists models shows the new copy alone, what operators look at shows both.
func TestChangedEntryServesBesideOpenStreams(t *testing.T) {
	t.Parallel()
	w := start(t, calls.Catalogue{"a": "llm, " + calls.Options("--step")}, "--max-loaded-models=2", "--drain-timeout=100ms")
	s, old := w.stepped("a")
	changed := calls.Catalogue{"a": "llm, " + calls.Options("--tokens 3")}
	w.edit(changed.YAML(calls.LocalHost))
	w.retired(old, "a")
	if a := w.Use("a"); a.Header.Get("x-evicted") != "" {
		t.Errorf("evicted %q", a.Header.Get("x-evicted"))
	}
	if got := w.Field("a", "options"); !strings.Contains(got, "--tokens 3") {
		t.Errorf("served with %s", got)
	}
	fresh := w.Engine("a")
	if former := w.Engine(old); former == fresh || !alive(former) {
		t.Errorf("process %d of the former entry, %d of the new one", former, fresh)
	}

	var health struct {
		Loaded  []copyInHealth `json:"all_models_loaded"`
		Retired []copyInHealth `json:"models_retired"`
	}
	w.managed("/v1/health", &health)
	if want := []copyInHealth{{"a", fresh, "local", false}}; !slices.Equal(health.Loaded, want) && !slices.Equal(health.Loaded, []copyInHealth{{"a", fresh, "local", true}}) {
		t.Errorf("loaded %v, want %v", health.Loaded, want)
	}
	if want := []copyInHealth{{"a", w.Engine(old), "local", true}}; !slices.Equal(health.Retired, want) {
		t.Errorf("retired %v, want %v", health.Retired, want)
	}
	for _, path := range []string{"/running", "/api/ps", "/v1/models"} {
		if text := string((w.Get(path)).Body); strings.Contains(text, "~") || strings.Count(text, `"name":"a`)+strings.Count(text, `"id":"a"`) != 1 {
			t.Errorf("%s: %s", path, text)
		}
	}
	ps, err := exec.Command(testenv.Build(t, "gateway"), "ps", "--url="+w.URL, "--api-key="+w.AdminKey()).CombinedOutput()
	if err != nil || !strings.Contains(string(ps), "retired") || !strings.Contains(string(ps), fmt.Sprint(fresh)) {
		t.Errorf("gateway ps: %v\n%s", err, ps)
	}

	w.step(old)
	s.Whole(t)
	kit.Becomes(t, "record of the former copy", "", func() string { return w.Field(old, "state") })
	if w.Use("a"); w.Engine("a") != fresh {
		t.Error("the new copy went as well")
	}
}

// copyInHealth is a model's copy as GET /v1/health tells of it.
type copyInHealth struct {
	Name   string `json:"model_name"`
	PID    int    `json:"pid"`
	Runner string `json:"runner"`
	Busy   bool   `json:"is_busy"`
}

// managed reads what a manager gets into v.
func (w *world) managed(path string, v any) {
	w.T.Helper()
	admin := *w.World
	admin.Key = w.AdminKey()
	a := admin.Get(path)
	if err := json.Unmarshal(a.Body, v); err != nil {
		w.T.Fatalf("%s: %v: %v", path, err, a)
	}
}

func alive(pid int) bool { return pid > 0 && syscall.Kill(pid, 0) == nil }

// Where there is no room for both copies, new requests wait until the open stream has ended.
func TestChangedEntryWaitsForRoom(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ fields, flag string }{
		"one slot": {"llm, ", "--max-loaded-models=1"},
		"one NPU":  {"llm, device: npu, ", "--max-loaded-models=2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := start(t, calls.Catalogue{"a": c.fields + calls.Options("--step")}, c.flag, "--drain-timeout=100ms", "--fair-after=100ms")
			s, old := w.stepped("a")
			w.edit(calls.Catalogue{"a": c.fields + calls.Options("--tokens 3")}.YAML(calls.LocalHost))
			w.retired(old, "a")
			got, _ := w.Later("a")
			kit.Becomes(t, "queue", []string{"a"}, w.Queued)
			stays(t, "former copy's process", true, func() bool { return alive(w.Engine(old)) })
			if n := w.Spawns("a"); n != 1 {
				t.Errorf("%d loads while there is no room", n)
			}
			w.step(old)
			s.Whole(t)
			w.Await("a", got)
			if got := w.Field("a", "options"); !strings.Contains(got, "--tokens 3") {
				t.Errorf("served with %s", got)
			}
		})
	}
}

// The retire timeout bounds how long a former copy may go on.
func TestRetireTimeout(t *testing.T) {
	t.Parallel()
	w := start(t, calls.Catalogue{"a": "llm, " + calls.Options("--step")}, "--retire-timeout=1s")
	s, old := w.stepped("a")
	w.edit(calls.Catalogue{"a": "llm"}.YAML(calls.LocalHost))
	w.retired(old, "a")
	got, _ := w.Later("a")
	w.cut(s)
	w.Await("a", got)
}

// cut reads a stream to its end, which must be an error.
func (w *world) cut(s *calls.Stream) {
	w.T.Helper()
	events, err := s.Rest()
	if err != nil || len(events) == 0 || !strings.Contains(events[len(events)-1], `"code":"draining"`) {
		w.T.Errorf("stream ended with %q, %v", events[max(0, len(events)-2):], err)
	}
}

// An unload of the model, or of all, ends its former copies as well, whether a new one is loaded or not.
func TestUnloadEndsRetiredCopies(t *testing.T) {
	t.Parallel()
	w := start(t, calls.Catalogue{"a": "llm, " + calls.Options("--step"), "b": "llm"}, "--max-loaded-models=3", "--drain-timeout=100ms")
	for i, body := range []string{`{"model_name":"a"}`, `{"model_name":"a","force":true}`, `{}`} {
		s, first := w.stepped("a")
		w.edit(calls.Catalogue{"a": "llm, " + calls.Options(fmt.Sprint("--step --tokens 1", i)), "b": "llm"}.YAML(calls.LocalHost))
		w.retired(first, "a")
		s2, second := w.stepped("a")
		w.edit(calls.Catalogue{"a": "llm, " + calls.Options(fmt.Sprint("--step --tokens 2", i)), "b": "llm"}.YAML(calls.LocalHost))
		w.retired(second, "a")
		if i > 0 {
			if a := w.Manage("/v1/load", `{"model_name":"a"}`); a.Status != http.StatusOK {
				t.Fatal(a)
			}
		}
		pids := []int{w.Engine(first), w.Engine(second)}
		if a := w.Manage("/v1/unload", body); a.Status != http.StatusOK {
			t.Fatalf("%s: %v", body, a)
		}
		for _, pid := range pids {
			if alive(pid) {
				t.Errorf("%s: process %d lives on", body, pid)
			}
		}
		w.cut(s)
		w.cut(s2)
		if left := w.Rdb.SMembers(t.Context(), "rv:{main}:models:local").Val(); len(left) > 0 {
			t.Errorf("%s leaves %v", body, left)
		}
	}
}

// An entry that is taken out: its stream goes on, its name is unknown, and others find a slot as beside any busy model.
func TestRemovedEntry(t *testing.T) {
	t.Parallel()
	w := start(t, calls.Catalogue{"a": "llm, pin: true, " + calls.Options("--step"), "b": "llm", "c": "llm"}, "--max-loaded-models=2", "--drain-timeout=100ms")
	s, old := w.stepped("a")
	w.edit(calls.Catalogue{"b": "llm", "c": "llm"}.YAML(calls.LocalHost))
	w.retired(old, "a")
	if a := w.Ask("a"); a.Status != http.StatusNotFound {
		t.Errorf("a: %v", a)
	}
	w.Use("b")
	if got := w.Use("c").Header.Get("x-evicted"); got != "b" { // idle, though used after the former copy
		t.Errorf("c evicted %q, want b", got)
	}
	w.step(old)
	s.Whole(t)
	kit.Becomes(t, "records", []string{"c"}, w.Loaded)
}

// Who waited for a load that an edit overtakes is served by it; the model then goes for its new entry.
func TestEntryChangesDuringTheLoad(t *testing.T) {
	t.Parallel()
	w := start(t, calls.Catalogue{"a": "llm, " + calls.Options("--load-time 1500ms"), "b": "llm"})
	got, _ := w.Later("a")
	kit.Becomes(t, "state of a", "loading", func() string { return w.Field("a", "state") })
	w.edit(calls.Catalogue{"a": "llm, " + calls.Options("--tokens 3"), "new": "embedding"}.YAML(calls.LocalHost))
	w.Models["new"] = "embedding"
	kit.Becomes(t, "the new catalogue", true, func() bool { return w.Ask("new").Status != http.StatusNotFound })
	w.Await("a", got)
	kit.Becomes(t, "record of the former entry", "", func() string { return w.Field("a", "state") })
	w.Use("a")
	if got := w.Field("a", "options"); !strings.Contains(got, "--tokens 3") || w.Spawns("a") != 2 {
		t.Errorf("served with %s after %d loads", got, w.Spawns("a"))
	}
}

// The same on the real engine, with an entry that is edited as people do.
func TestChangedEntryOnTheRealEngine(t *testing.T) {
	testenv.Engines(t)
	raw, err := os.ReadFile(filepath.Join(testenv.Root(t), "testenv", "local", "models.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	s := testenv.Start(t, testenv.Spec{Models: string(raw), Args: []string{"--max-loaded-models=2", "--drain-timeout=100ms"}})
	w := &world{worlds.Of(t, nil, s)}
	busy := w.Chat("gemma-3-270m", 300)
	old := fmt.Sprintf("gemma-3-270m~%d", w.Engine("gemma-3-270m"))
	w.edit(strings.Replace(string(raw), `options: {ctx_size: 4096, llamacpp_args: "-np 4"}`, `options: {ctx_size: 2048, llamacpp_args: "-np 2"}`, 1))
	w.retired(old, "gemma-3-270m")
	w.Chat("gemma-3-270m", 4).Whole(t)
	if !alive(w.Engine(old)) || !strings.Contains(w.Field("gemma-3-270m", "cmd"), "2048") {
		t.Errorf("the former copy's process is %d, the new one's command %s", w.Engine(old), w.Field("gemma-3-270m", "cmd"))
	}
	busy.Whole(t)
	kit.Becomes(t, "record of the former copy", "", func() string { return w.Field(old, "state") })
}
