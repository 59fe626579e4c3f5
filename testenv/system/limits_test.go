package system

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"reveille/gateway/manage"
	"reveille/testenv"
	"reveille/testenv/calls"
	"reveille/testenv/kit"
	"reveille/testenv/worlds"
)

// A limit that says nothing sensible is refused at the start.
func TestRule01RefusedLimits(t *testing.T) {
	t.Parallel()
	for _, limit := range []string{"0", "-2", "many", "1 2 3 4 5 6 7", "1 0"} {
		if out := refused(t, calls.Catalogue{"a": "llm"}, "--max-loaded-models="+limit); !strings.Contains(out, "max-loaded-models") || !strings.Contains(out, limit[strings.LastIndex(limit, " ")+1:]) {
			t.Errorf("%q: %s", limit, out)
		}
	}
}

// Rule 2: a use counts at its start and at its end.
func TestRule02UseTimes(t *testing.T) {
	t.Parallel()
	w := start(t, calls.Catalogue{"a": "llm, " + calls.Options("--token-delay 20ms --tokens 400"), "b": "llm", "c": "llm"}, "--max-loaded-models=2")
	w.Use("a")
	tick()
	w.Use("b")
	tick()
	order := func() []string { return w.lru("llm") }
	s := w.Chat("a", 300)
	kit.Becomes(t, "order once a is in use", []string{"b", "a"}, order)
	w.Use("b")
	kit.Becomes(t, "order after b was used meanwhile", []string{"a", "b"}, order)
	s.Whole(t)
	kit.Becomes(t, "order after the end of the use of a", []string{"b", "a"}, order)
	if got := w.Use("c").Header.Get("x-evicted"); got != "b" {
		t.Errorf("evicted %q, want b", got)
	}
}

// Rule 2 on every route: a request counts as a use at its start and at its end, and protects its model in between.
func TestRule02UseTimesOfRoutes(t *testing.T) {
	t.Parallel()
	models := calls.Catalogue{}
	for _, m := range []string{"a", "b", "c"} {
		models["llm-"+m], models["embedding-"+m], models["reranking-"+m] = "llm", "embedding", "reranking"
	}
	w := start(t, models, "--max-loaded-models=2")
	for _, r := range []struct{ typ, path, body string }{
		{"llm", "/v1/completions", `"prompt":"hi"`},
		{"llm", "/v1/responses", `"input":"hi"`},
		{"llm", "/v1/messages", `"max_tokens":4,"messages":[{"role":"user","content":"hi"}]`},
		{"llm", "/api/chat", `"stream":false,"messages":[{"role":"user","content":"hi"}]`},
		{"embedding", "/v1/embeddings", `"input":["one","two","three"]`},
		{"reranking", "/v1/rerank", `"query":"q","documents":["one","two"]`},
	} {
		ask := func(m string) calls.Answer { return w.Post(r.path, `{"model":"`+r.typ+"-"+m+`",`+r.body+`}`) }
		use := func(m string) calls.Answer {
			a := ask(m)
			if !a.OK() {
				t.Fatalf("%s: %v", r.path, a)
			}
			kit.Eventually(t, r.path+": its end is noted", func() bool {
				var health manage.HealthReport
				w.Health(&health)
				return !slices.ContainsFunc(health.Loaded, func(l manage.LoadedModel) bool { return l.Name == r.typ+"-"+m && l.Busy })
			})
			time.Sleep(20 * time.Millisecond) // times count in milliseconds, and the end's comes right after
			return a
		}
		last := func() string {
			order := w.lru(r.typ)
			return order[len(order)-1]
		}
		use("a")
		use("b")
		pid := w.Engine(r.typ + "-a")
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		kit.Eventually(t, "the engine of a stands still", func() bool {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			return err == nil && strings.Contains(string(stat), ") T ")
		})
		open := worlds.Later(func() calls.Answer { return ask("a") })
		kit.Becomes(t, r.path+": used last once a is in use", r.typ+"-a", last)
		use("b")
		kit.Becomes(t, r.path+": used last", r.typ+"-b", last)
		if got := use("c").Header.Get("x-evicted"); got != r.typ+"-b" {
			t.Errorf("%s: while a is busy %q goes", r.path, got)
		}
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		w.Await(r.path, open)
		kit.Becomes(t, r.path+": used last after the end", r.typ+"-a", last)
	}
}

// What a runner and `gateway run` are told about contexts and batches, by flags or by the environment, reaches the real engine.
func TestSettingsReachTheEngine(t *testing.T) {
	t.Parallel()
	testenv.Engines(t)
	files := testenv.Models(t)
	models := calls.Catalogue{"talk": "llm, recipe: llamacpp, checkpoint: " + files.Tiny, "vec": "embedding, recipe: llamacpp, checkpoint: " + files.MiniLM}
	runner := func(h worlds.Host) *worlds.World {
		h.Name = "h"
		return worlds.StartFleet(t, worlds.Fleet{Models: models, Hosts: []worlds.Host{h}})
	}
	flags := []string{"--ctx-size=1536", "--n-batch=320"}
	for name, w := range map[string]*worlds.World{
		"a runner's flags": runner(worlds.Host{Flags: flags}), "flags": worlds.Start(t, models, flags...),
		"a runner's variables": runner(worlds.Host{Env: []string{"REVEILLE_CTX_SIZE=1536", "REVEILLE_N_BATCH=320"}}),
	} {
		for m, want := range map[string]string{"talk": "--ctx-size 1536 ", "vec": "--batch-size 320 "} {
			if a := w.Post("/v1/load", `{"model_name":"`+m+`"}`); !a.OK() {
				t.Fatal(a)
			}
			args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", w.Engine(m)))
			if text := strings.ReplaceAll(string(args), "\x00", " "); err != nil || !strings.Contains(text, want) {
				t.Errorf("%s, %s: %v %s", name, m, err, text)
			}
		}
	}
}

// Two pools on one Redis do not see one another.
func TestTwoPoolsOnOneRedis(t *testing.T) {
	t.Parallel()
	server := &testenv.RedisServer{Addr: testenv.Redis(t)} // whose other pool goes on when one ends
	one := worlds.StartOn(t, calls.Catalogue{"a": "llm"}, server, "--pool=one")
	two := worlds.StartOn(t, calls.Catalogue{"b": "llm"}, server, "--pool=two")
	for w, models := range map[*worlds.World][2]string{one: {"a", "b"}, two: {"b", "a"}} {
		w.Use(models[0])
		if a := calls.Infer(t.Context(), w.Client, w.URL, "llm", models[1]); a.Status != http.StatusNotFound {
			t.Errorf("a model of the other pool: %v", a)
		}
	}
	if a := one.Manage("/v1/unload", "{}"); !a.OK() {
		t.Fatal(a)
	}
	if a := two.Use("b"); a.Header.Get("x-cold-start") != "" {
		t.Error("an unload in one pool reached the other")
	}
	for w, want := range map[*worlds.World]string{one: "[]", two: "[b]"} {
		var health struct {
			Loaded []struct {
				Name string `json:"model_name"`
			} `json:"all_models_loaded"`
			Runners []struct{ ID string }
		}
		w.Health(&health)
		names := []string{}
		for _, m := range health.Loaded {
			names = append(names, m.Name)
		}
		if fmt.Sprint(names) != want || len(health.Runners) != 1 {
			t.Errorf("%+v, want %s", health, want)
		}
	}
}
