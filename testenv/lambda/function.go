package lambda

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"reveille/testenv"
)

const (
	maxPayload = 6 << 20          // bytes of an event, and of a response
	initLimit  = 60 * time.Second // longest until a new process asks for its first event
)

// Spec is what a function runs.
type Spec struct {
	Name    string        // of the function
	Binary  string        // the program; it gets no arguments
	Env     []string      // NAME=VALUE, over the test's environment
	Timeout time.Duration // of one invocation; default a minute
}

// Result is the response to an event.
type Result struct {
	Payload []byte
	Failed  bool // the payload is the function's error
}

// Function is a function with one environment. Its methods must not be called at the same time.
type Function struct {
	spec    Spec
	program *testenv.Program
	started chan struct{}
	events  chan []byte // taken by the process when it asks for the next
	answers chan Result
	id      atomic.Int64 // of the invocation that was handed out last
}

// Start starts the function's process. It ends with the test.
func Start(t testing.TB, spec Spec) *Function {
	t.Helper()
	if spec.Timeout <= 0 {
		spec.Timeout = time.Minute
	}
	f := &Function{
		spec: spec, started: make(chan struct{}), events: make(chan []byte), answers: make(chan Result, 1),
	}
	mux := http.NewServeMux()
	const api = "/2018-06-01/runtime/"
	mux.HandleFunc("GET "+api+"invocation/next", f.serveNext)
	mux.HandleFunc("POST "+api+"invocation/{id}/response", func(w http.ResponseWriter, r *http.Request) { f.serveAnswer(w, r, false) })
	mux.HandleFunc("POST "+api+"invocation/{id}/error", func(w http.ResponseWriter, r *http.Request) { f.serveAnswer(w, r, true) })
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close) // after the program's end, which is registered later
	f.program = testenv.StartProgramEnv(t, append([]string{
		"AWS_LAMBDA_RUNTIME_API=" + strings.TrimPrefix(server.URL, "http://"), "AWS_LAMBDA_FUNCTION_NAME=" + spec.Name,
		"AWS_LAMBDA_FUNCTION_VERSION=$LATEST", "AWS_LAMBDA_FUNCTION_MEMORY_SIZE=512", "_HANDLER=bootstrap", "LAMBDA_TASK_ROOT=" + os.TempDir(),
	}, spec.Env...), "lambda-"+spec.Name, spec.Binary)
	close(f.started)
	return f
}

// Log is what the process has written.
func (f *Function) Log() string { return f.program.Log() }

// get or did not answer in time; its process is killed then.
func (f *Function) Invoke(event []byte) (Result, error) {
	if len(event) > maxPayload {
		return Result{}, fmt.Errorf("lambda: an event of %d bytes", len(event))
	}
	late := time.After(initLimit)
	for handed := false; ; {
		events := f.events
		if handed {
			events = nil
		}
		select {
		case events <- event:
			handed, late = true, time.After(f.spec.Timeout)
		case a := <-f.answers:
			if len(a.Payload) > maxPayload {
				return Result{}, fmt.Errorf("lambda: an answer of more than %d bytes", maxPayload)
			}
			return a, nil
		case <-f.program.Exited():
			return Result{}, fmt.Errorf("lambda: the process ended: %v", f.program.State())
		case <-late:
			f.program.Kill()
			return Result{}, fmt.Errorf("lambda: timed out (event handed out: %v)", handed)
		}
	}
}

// serveNext answers GET next: the process sleeps until there is an event for it.
func (f *Function) serveNext(w http.ResponseWriter, r *http.Request) {
	<-f.started
	f.program.Signal(syscall.SIGSTOP)
	var event []byte
	select {
	case event = <-f.events:
	case <-r.Context().Done():
		return
	}
	id := f.id.Add(1)
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Lambda-Runtime-Aws-Request-Id", fmt.Sprint(id))
	h.Set("Lambda-Runtime-Deadline-Ms", fmt.Sprint(time.Now().Add(f.spec.Timeout).UnixMilli()))
	h.Set("Lambda-Runtime-Invoked-Function-Arn", "arn:aws:lambda:us-east-1:123456789012:function:"+f.spec.Name)
	h.Set("Lambda-Runtime-Trace-Id", "Root=1-00000000-000000000000000000000000;Sampled=0")
	f.program.Signal(syscall.SIGCONT)
	_, _ = w.Write(event)
}

// serveAnswer takes the response to the event that was handed out last.
func (f *Function) serveAnswer(w http.ResponseWriter, r *http.Request, failed bool) {
	payload, err := io.ReadAll(io.LimitReader(r.Body, maxPayload+1))
	if err != nil || r.PathValue("id") != fmt.Sprint(f.id.Load()) || !json.Valid(payload) {
		http.Error(w, `{"errorType":"InvalidRequestID"}`, http.StatusBadRequest)
		return
	}
	select {
	case f.answers <- Result{Payload: payload, Failed: failed}:
		w.WriteHeader(http.StatusAccepted)
	default:
		http.Error(w, `{"errorType":"InvalidRequestID"}`, http.StatusForbidden)
	}
}
