package lambda

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"reveille/testenv"
)

// environment is one process and the Runtime API that it alone sees.
type environment struct {
	f       *Function
	program *testenv.Program // set when started is closed
	started chan struct{}
	next    chan *invocation
	free    chan struct{} // capacity 1: it waits for an event
	busy    bool          // an invocation has it; guarded by Function.mu

	mu      sync.Mutex
	current *invocation // handed out, and not answered yet
}

// invocation is one event on its way.
type invocation struct {
	id     string
	event  []byte
	answer chan *answer // capacity 1
}

// answer is what a process posts for an event, while it posts it.
type answer struct {
	header  http.Header
	body    io.Reader
	trailer func() http.Header // after the body's end
	failed  bool               // posted as an error
	by      *environment
	taken   chan struct{}   // closed by release
	ended   context.Context // ends with the post
}

// release tells that the body was read, so that the environment may go on.
func (a *answer) release() {
	f := a.by.f
	f.mu.Lock()
	a.by.busy = false
	f.mu.Unlock()
	close(a.taken)
}

func startEnvironment(f *Function) *environment {
	e := &environment{f: f, started: make(chan struct{}), next: make(chan *invocation), free: make(chan struct{}, 1), busy: true}
	mux := http.NewServeMux()
	const api = "/2018-06-01/runtime/"
	mux.HandleFunc("GET "+api+"invocation/next", e.serveNext)
	mux.HandleFunc("POST "+api+"invocation/{id}/response", func(w http.ResponseWriter, r *http.Request) { e.serveAnswer(w, r, false) })
	mux.HandleFunc("POST "+api+"invocation/{id}/error", func(w http.ResponseWriter, r *http.Request) { e.serveAnswer(w, r, true) })
	mux.HandleFunc("POST "+api+"init/error", e.serveInitError)
	server := httptest.NewServer(mux)
	f.t.Cleanup(server.Close) // after the program's end, which is registered later
	e.program = testenv.StartProgramEnv(f.t, append([]string{
		"AWS_LAMBDA_RUNTIME_API=" + strings.TrimPrefix(server.URL, "http://"), "AWS_LAMBDA_FUNCTION_NAME=" + f.spec.Name,
		"AWS_LAMBDA_FUNCTION_VERSION=$LATEST", "AWS_LAMBDA_FUNCTION_MEMORY_SIZE=512", "_HANDLER=bootstrap", "LAMBDA_TASK_ROOT=" + os.TempDir(),
	}, f.spec.Env...), "lambda-"+f.spec.Name, f.spec.Binary)
	close(e.started)
	return e
}

// serveNext answers GET next: the process sleeps until there is an event for it.
func (e *environment) serveNext(w http.ResponseWriter, r *http.Request) {
	<-e.started
	e.mu.Lock()
	open := e.current
	e.mu.Unlock()
	if open != nil {
		http.Error(w, "the invocation "+open.id+" has no answer yet", http.StatusForbidden)
		return
	}
	e.program.Signal(syscall.SIGSTOP)
	e.free <- struct{}{}
	var in *invocation
	select {
	case in = <-e.next:
	case <-r.Context().Done():
		return
	}
	e.mu.Lock()
	e.current = in
	e.mu.Unlock()
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Lambda-Runtime-Aws-Request-Id", in.id)
	h.Set("Lambda-Runtime-Deadline-Ms", fmt.Sprint(time.Now().Add(e.f.spec.Timeout).UnixMilli()))
	h.Set("Lambda-Runtime-Invoked-Function-Arn", "arn:aws:lambda:us-east-1:123456789012:function:"+e.f.spec.Name)
	h.Set("Lambda-Runtime-Trace-Id", "Root=1-00000000-000000000000000000000000;Sampled=0")
	e.program.Signal(syscall.SIGCONT)
	_, _ = w.Write(in.event)
}

// serveAnswer takes the answer to the event that was handed out.
func (e *environment) serveAnswer(w http.ResponseWriter, r *http.Request, failed bool) {
	e.mu.Lock()
	in := e.current
	if in == nil || in.id != r.PathValue("id") {
		e.mu.Unlock()
		http.Error(w, `{"errorType":"InvalidRequestID"}`, http.StatusBadRequest)
		return
	}
	e.current = nil
	e.mu.Unlock()
	switch mode := r.Header.Get("Lambda-Runtime-Function-Response-Mode"); mode {
	case "", "streaming": // whoever invokes decides; the header is no more than a word for the service's meters
	default:
		in.answer <- e.refusal(r.Context(), fmt.Sprintf(`{"errorType":"Runtime.InvalidResponseModeHeader","errorMessage":%q}`, mode))
		http.Error(w, `{"errorType":"InvalidFunctionResponseMode"}`, http.StatusBadRequest)
		return
	}
	ended, end := context.WithCancel(context.Background())
	defer end()
	a := &answer{header: r.Header, body: r.Body, trailer: func() http.Header { return r.Trailer }, failed: failed, by: e, taken: make(chan struct{}), ended: ended}
	in.answer <- a
	select {
	case <-a.taken:
		w.WriteHeader(http.StatusAccepted)
	case <-r.Context().Done(): // the process ended; whoever reads the body notices
		<-a.taken
	}
}

func (e *environment) refusal(ctx context.Context, payload string) *answer {
	none := func() http.Header { return nil }
	return &answer{header: http.Header{}, body: strings.NewReader(payload), trailer: none, failed: true, by: e, taken: make(chan struct{}), ended: ctx}
}

// serveInitError notes why a process cannot serve; it ends by itself then.
func (e *environment) serveInitError(w http.ResponseWriter, r *http.Request) {
	payload, _ := io.ReadAll(io.LimitReader(r.Body, maxPayload)) // what can be read of it
	e.f.note(failureOf(payload))
	w.WriteHeader(http.StatusAccepted)
}
