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
)

// Ctrl-C in the middle of everything: a stream, a load, a request in the queue. System.Stop checks what is left: nothing.
func TestStopInTheMiddle(t *testing.T) {
	t.Parallel()
	w := start(t, catalogue{
		"a": "llm, " + calls.Options(slow), "b": "llm", "e": "embedding, " + calls.Options("--load-time 30s"), "stubborn": "reranking, " + calls.Options("--ignore-sigterm"),
	}, "--shutdown-timeout=2s", "--drain-timeout=1s")
	w.use("stubborn")
	s := w.chat("a", 100000)
	queued, _ := w.later("b")
	kit.Becomes(t, "queue", []string{"b"}, w.queued)
	loading, _ := w.later("e")
	kit.Becomes(t, "state of e", "loading", func() string { return w.field("e", "state") })
	done := s.drain()
	w.Stop()
	for what, c := range map[string]<-chan answer{"queued": queued, "loading": loading} {
		select {
		case a := <-c:
			if a.status != http.StatusServiceUnavailable || a.code() != "draining" || a.header.Get("Retry-After") == "" {
				t.Errorf("%s: %v", what, a)
			}
		case <-time.After(kit.Patience):
			t.Errorf("%s: no answer", what)
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
	err := errors.Join(os.WriteFile(file, []byte(catalogue{"a": "llm, " + calls.Options(slow)}.yaml()), 0o600), os.Symlink(testenv.Standin(t), filepath.Join(engines, "standin")))
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
	models := catalogue{"a": "llm, " + calls.Options(slow), "b": "llm", "e": "embedding, " + calls.Options("--load-time 5s"), "i": "image"}
	first := testenv.Start(t, testenv.Spec{Models: models.yaml(), Redis: server})
	w := &world{System: first, t: t, rdb: first.Redis(), types: models.types()}
	w.use("i")
	w.chat("a", 100000)
	w.later("b")
	w.later("e")
	kit.Becomes(t, "state of e", "loading", func() string { return w.field("e", "state") })
	kit.Becomes(t, "number of processes, the engines of i, a and e", 3, func() int { return len(w.Processes()) })
	first.Kill()

	second := testenv.Start(t, testenv.Spec{Models: models.yaml(), Redis: server})
	w = &world{System: second, t: t, rdb: second.Redis(), types: models.types()}
	w.use("i")
	w.use("b")
}

// SIGHUP and a change on disk reload the models file without touching unchanged models.
func TestReloadOfTheModelsFile(t *testing.T) {
	t.Parallel()
	w := start(t, catalogue{"a": "llm, " + calls.Options(slow), "e": "embedding"})
	w.use("e")
	s := w.chat("a", 100000)
	pid := w.pid("a")
	changed := catalogue{"a": "llm, " + calls.Options(slow), "e": "embedding, " + calls.Options("--call-cost 1ms"), "new": "reranking"}
	w.types = changed.types()
	w.SetModels(changed.yaml())
	if err := syscall.Kill(w.PID(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	kit.Becomes(t, "a request to the new model", http.StatusOK, func() int { return w.ask("new").status })
	kit.Becomes(t, "record of the changed model", "", func() string { return w.field("e", "state") })
	w.use("e")
	if w.pid("a") != pid {
		t.Error("the unchanged model's process was replaced")
	}
	w.SetModels("models: [this is\n  no catalogue\n")
	if err := syscall.Kill(w.PID(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	w.use("new")
	if _, err := s.next(); err != nil {
		t.Errorf("the open stream ended: %v", err)
	}
	s.leave()
}
