package system

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"
	"time"

	"reveille/testenv"
	"reveille/testenv/calls"
	"reveille/testenv/kit"
	"reveille/testenv/worlds"
)

// Ctrl-C in the middle of everything: a stream, a load, a request in the queue. System.Stop checks what is left: nothing.
func TestStopInTheMiddle(t *testing.T) {
	t.Parallel()
	w := start(t, calls.Catalogue{
		"a": "llm, " + calls.Options(worlds.Slow), "b": "llm", "e": "embedding, " + calls.Options("--load-time 30s"), "stubborn": "reranking, " + calls.Options("--ignore-sigterm"),
	}, "--shutdown-timeout=2s", "--drain-timeout=1s")
	w.Use("stubborn")
	s := w.Chat("a", 100000)
	queued, _ := w.Later("b")
	kit.Becomes(t, "queue", []string{"b"}, w.Queued)
	loading, _ := w.Later("e")
	kit.Becomes(t, "state of e", "loading", func() string { return w.Field("e", "state") })
	done := s.Drain()
	w.Stop()
	for what, c := range map[string]<-chan calls.Answer{"queued": queued, "loading": loading} {
		select {
		case a := <-c:
			if a.Status != http.StatusServiceUnavailable || a.Code() != "draining" || a.Header.Get("Retry-After") == "" {
				t.Errorf("%s: %v", what, a)
			}
		case <-time.After(kit.Patience):
			t.Errorf("%s: no response", what)
		}
	}
	if _, whole := <-done; whole {
		t.Error("a stream that was cut looks complete")
	}
}

// A background job of a script, which is started with SIGINT ignored, drains at the first SIGINT and ends at the second one,
// however long a stream is still open.
func TestInterruptsOfABackgroundJob(t *testing.T) {
	t.Parallel()
	file, engines := filepath.Join(t.TempDir(), "models.yaml"), t.TempDir()
	err := errors.Join(os.WriteFile(file, []byte(calls.Catalogue{"a": "llm, " + calls.Options(worlds.Slow)}.YAML(calls.LocalHost)), 0o600), os.Symlink(testenv.Standin(t), filepath.Join(engines, "standin")))
	if err != nil {
		t.Fatal(err)
	}
	job := testenv.StartProgram(t, "job", "/bin/sh", "-c", `trap "" INT; exec "$@"`, "sh", testenv.Build(t, "gateway"),
		"run", "--addr=127.0.0.1:0", "--models="+file, "--state-dir="+testenv.ShortDir(t), "--engines-dir="+engines, "--shutdown-timeout=1h", "--drain-timeout=1h")
	url := job.Await(regexp.MustCompile(`at (http://\S+)/v1`))[1]
	kit.Becomes(t, "health", http.StatusOK, func() int { return calls.Get(t.Context(), http.DefaultClient, url+"/health").Status })
	s := calls.Open(t, calls.Client(t, 1), url, "a", 100000)
	family := testenv.Descendants(job.PID())
	job.Signal(syscall.SIGINT)
	job.Await(regexp.MustCompile(`gateway drains" open_requests=1 at_most=1h0m0s hint="a second Ctrl-C`))
	if _, err := s.Next(); err != nil {
		t.Errorf("the first SIGINT cut an open stream: %v", err)
	}
	job.Signal(syscall.SIGINT)
	select {
	case <-job.Exited():
	case <-time.After(kit.Patience):
		t.Fatal("it goes on after the second SIGINT")
	}
	for _, p := range family {
		kit.Becomes(t, "process "+p.String(), false, p.Alive)
	}
}

// A gateway that is killed takes its runner's engines with it, and its successor on the same Redis is not held
// up by what it left there.
func TestGatewayKilled(t *testing.T) {
	t.Parallel()
	server := testenv.StartRedis(t)
	models := calls.Catalogue{"a": "llm, " + calls.Options(worlds.Slow), "b": "llm", "e": "embedding, " + calls.Options("--load-time 5s"), "i": "image"}
	first := testenv.Start(t, testenv.Spec{Models: models.YAML(calls.LocalHost), Redis: server})
	w := &world{worlds.Of(t, models, first)}
	w.Use("i")
	w.Chat("a", 100000)
	w.Later("b")
	w.Later("e")
	kit.Becomes(t, "state of e", "loading", func() string { return w.Field("e", "state") })
	kit.Becomes(t, "number of processes, the engines of i, a and e", 3, func() int { return len(w.Processes()) })
	first.Kill()

	second := testenv.Start(t, testenv.Spec{Models: models.YAML(calls.LocalHost), Redis: server})
	w = &world{worlds.Of(t, models, second)}
	w.Use("i")
	w.Use("b")
}

// SIGHUP and a change on disk reload the models file without touching unchanged models.
func TestReloadOfTheModelsFile(t *testing.T) {
	t.Parallel()
	w := start(t, calls.Catalogue{"a": "llm, " + calls.Options(worlds.Slow), "e": "embedding"})
	w.Use("e")
	s := w.Chat("a", 100000)
	pid := w.Engine("a")
	changed := calls.Catalogue{"a": "llm, " + calls.Options(worlds.Slow), "e": "embedding, " + calls.Options("--call-cost 1ms"), "new": "reranking"}
	w.Models = changed
	w.SetModels(changed.YAML(calls.LocalHost))
	if err := syscall.Kill(w.PID(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	kit.Becomes(t, "a request to the new model", http.StatusOK, func() int { return w.Ask("new").Status })
	kit.Becomes(t, "record of the changed model", "", func() string { return w.Field("e", "state") })
	w.Use("e")
	if w.Engine("a") != pid {
		t.Error("the unchanged model's process was replaced")
	}
	w.SetModels("models: [this is\n  no catalogue\n")
	if err := syscall.Kill(w.PID(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	w.Use("new")
	if _, err := s.Next(); err != nil {
		t.Errorf("the open stream ended: %v", err)
	}
	s.Leave()
}
