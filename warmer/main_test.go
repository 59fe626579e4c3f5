package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"reveille/infra/state"
	"reveille/testenv"
)

// pool opens a store on addr and makes a host with an idle model in it.
func pool(t *testing.T, addr string) *state.Store {
	t.Helper()
	s, err := state.Open(state.Options{URL: "redis://" + addr, Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	_, _, err = s.Register(t.Context(), state.HostInfo{
		Name: "box", Boot: "b", Addr: "127.0.0.1:1", Devices: "cpu", Limits: "1",
		Models: []state.ModelPut{{ID: "chat", Fields: map[string]string{"type": "llm", "state": "loaded", "used_ms": "1"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func environment(addr string, more ...string) []string {
	return append(append(os.Environ(), "REVEILLE_REDIS_URL=redis://"+addr, "AWS_EC2_METADATA_DISABLED=true"), more...)
}

func queued(t *testing.T, s *state.Store) int {
	t.Helper()
	snap, err := s.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return len(snap.Hosts["box"].Queue)
}

func TestOnce(t *testing.T) {
	binary, addr := testenv.Build(t, "./warmer"), testenv.Redis(t)
	s := pool(t, addr)
	call := func(args ...string) string {
		t.Helper()
		var out, errs bytes.Buffer
		cmd := exec.Command(binary, args...)
		cmd.Env, cmd.Stdout, cmd.Stderr = environment(addr), &out, &errs
		if err := cmd.Run(); err != nil {
			t.Fatal(err, errs.String())
		}
		return out.String()
	}
	table := call("--once", "--dry-run")
	for _, want := range []string{"ACTION  HOST", "unload  box   chat   planned  model_idle: unused for", "MODEL  HOST"} {
		if !strings.Contains(table, want) {
			t.Errorf("no %q in\n%s", want, table)
		}
	}
	if n := queued(t, s); n != 0 {
		t.Fatal("the dry run queued", n)
	}
	var report struct {
		Actions []map[string]string `json:"actions"`
	}
	if err := json.Unmarshal([]byte(call("--once", "--json")), &report); err != nil {
		t.Fatal(err)
	}
	if len(report.Actions) != 1 || report.Actions[0]["result"] != "queued" || queued(t, s) != 1 {
		t.Error("report:", report.Actions, "queued:", queued(t, s))
	}
}

func TestBadSettings(t *testing.T) {
	binary := testenv.Build(t, "./warmer")
	for _, args := range [][]string{{"--every", "0s"}, {"--idle", "soon"}, {"--redis-url", "nonsense://x", "--once"}} {
		if out, err := exec.Command(binary, args...).CombinedOutput(); err == nil {
			t.Errorf("%v is accepted: %s", args, out)
		}
	}
	out, err := exec.Command(binary, "--once", "--redis-url", "redis://127.0.0.1:1").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "state store unavailable") {
		t.Error("without Redis:", err, string(out))
	}
}

// runtimeAPI is Lambda's runtime API for one environment: it hands out events and takes the answers.
type runtimeAPI struct {
	events  chan string
	answers chan answer
	gone    chan struct{} // closed at the end of the test
	mu      sync.Mutex
	n       int
}

type answer struct {
	id, kind, body string
}

func (a *runtimeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	const root = "/2018-06-01/runtime/"
	path := strings.TrimPrefix(r.URL.Path, root)
	if path == "invocation/next" {
		select {
		case e := <-a.events:
			a.mu.Lock()
			a.n++
			id := fmt.Sprint("request-", a.n)
			a.mu.Unlock()
			w.Header().Set("Lambda-Runtime-Aws-Request-Id", id)
			w.Header().Set("Lambda-Runtime-Deadline-Ms", fmt.Sprint(time.Now().Add(time.Minute).UnixMilli()))
			w.Header().Set("Lambda-Runtime-Invoked-Function-Arn", "arn:aws:lambda:us-east-1:123456789012:function:warmer")
			_, _ = io.WriteString(w, e)
		case <-a.gone:
		case <-r.Context().Done():
		}
		return
	}
	parts := strings.Split(path, "/") // invocation/<id>/response | error
	body, _ := io.ReadAll(r.Body)
	a.answers <- answer{parts[1], parts[len(parts)-1], string(body)}
	w.WriteHeader(http.StatusAccepted)
}

// TestLambda runs the real program as AWS does: an environment that is handed schedule events.
func TestLambda(t *testing.T) {
	binary, addr := testenv.Build(t, "./warmer"), testenv.Redis(t)
	s := pool(t, addr)
	event, err := os.ReadFile("testdata/schedule-event.json")
	if err != nil {
		t.Fatal(err)
	}
	api := &runtimeAPI{events: make(chan string), answers: make(chan answer, 1), gone: make(chan struct{})}
	srv := httptest.NewServer(api)
	defer srv.Close()
	defer close(api.gone)

	var out bytes.Buffer
	cmd := exec.Command(binary)
	cmd.Env = environment(addr, "AWS_LAMBDA_RUNTIME_API="+strings.TrimPrefix(srv.URL, "http://"), "AWS_LAMBDA_FUNCTION_NAME=warmer")
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := sync.OnceFunc(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	defer ended()
	invoke := func(event string) answer {
		t.Helper()
		select {
		case api.events <- event:
		case <-time.After(30 * time.Second):
			t.Fatal("the program asks for no event")
		}
		select {
		case a := <-api.answers:
			return a
		case <-time.After(30 * time.Second):
			t.Fatal("no answer")
		}
		return answer{}
	}
	if a := invoke(string(event)); a.kind != "response" || a.body != `{"actions":1,"failures":0}` {
		t.Fatal("first event:", a)
	}
	if queued(t, s) != 1 {
		t.Error("no unload is queued")
	}
	if a := invoke(string(event)); a.kind != "response" || a.body != `{"actions":0,"failures":0}` {
		t.Fatal("second event, in the same environment:", a)
	}
	if a := invoke(`"not an event"`); a.kind != "error" {
		t.Fatal("an event that is none:", a)
	}
	ended()
	metrics := 0
	for _, line := range strings.Split(out.String(), "\n") {
		if strings.HasPrefix(line, `{`) && strings.Contains(line, `"CloudWatchMetrics"`) {
			metrics++
		}
	}
	if metrics != 6 { // pool, host and model, twice
		t.Errorf("%d lines of metrics in\n%s", metrics, out.String())
	}
}
