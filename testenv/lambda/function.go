package lambda

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"reveille/testenv"
)

const (
	maxPayload = 6 << 20          // bytes of an event, and of an answer in one piece
	initLimit  = 60 * time.Second // longest until a new process asks for its first event
)

// ErrThrottled: every environment is busy and there may be no more of them.
var ErrThrottled = errors.New("lambda: rate exceeded")

// Spec is what a function runs.
type Spec struct {
	Name        string        // default "function"
	Binary      string        // the program; it gets no arguments
	Env         []string      // NAME=VALUE, over the test's environment
	Timeout     time.Duration // of one invocation; default a minute
	Concurrency int           // most environments at a time; default 10
}

// Function is a function that can be invoked. It is safe for concurrent use.
type Function struct {
	URL string // of the function URL, http://127.0.0.1:PORT

	t    testing.TB
	spec Spec

	mu       sync.Mutex
	all      []*environment // in the order of their start
	failures []Failure
}

// Failure is an invocation that did not succeed, or an environment that ended.
type Failure struct {
	Type    string // as the runtime told it, or as the service calls it: Runtime.ExitError, Sandbox.Timedout
	Message string
}

// Start makes a function. It starts no process before the first event; all end with the test.
func Start(t testing.TB, spec Spec) *Function {
	t.Helper()
	if spec.Name == "" {
		spec.Name = "function"
	}
	if spec.Timeout <= 0 {
		spec.Timeout = time.Minute
	}
	if spec.Concurrency <= 0 {
		spec.Concurrency = 10
	}
	f := &Function{t: t, spec: spec}
	url := httptest.NewServer(front{f})
	t.Cleanup(url.Close)
	f.URL = url.URL
	return f
}

// Environments is how many processes were started so far.
func (f *Function) Environments() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.all)
}

// Busy is how many environments have an event whose answer has not ended.
func (f *Function) Busy() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, e := range f.all {
		if e.busy {
			n++
		}
	}
	return n
}

// Failures are what went wrong so far.
func (f *Function) Failures() []Failure {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.failures)
}

// Log is what all environments have written.
func (f *Function) Log() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var b strings.Builder
	for _, e := range f.all {
		b.WriteString(e.program.Log())
	}
	return b.String()
}

// Result is the answer to an event, in one piece.
type Result struct {
	Payload []byte
	Failed  bool // the payload is the function's error
}

// Invoke hands an event to the function and waits for its answer. The error tells of an event that the function did not
// get or did not answer.
func (f *Function) Invoke(event []byte) (Result, error) {
	a, err := f.invoke(event)
	if err != nil {
		return Result{}, err
	}
	defer a.release()
	payload, err := io.ReadAll(io.LimitReader(a.body, maxPayload+1))
	if err != nil {
		return Result{}, f.failed("Runtime.TruncatedResponse", err.Error())
	}
	if len(payload) > maxPayload {
		return Result{}, f.failed("Function.ResponseSizeTooLarge", "")
	}
	if a.failed {
		f.note(failureOf(payload))
	}
	return Result{Payload: payload, Failed: a.failed}, nil
}

// invoke hands an event to an environment and returns when that begins to answer. The caller reads the answer and
// releases it.
func (f *Function) invoke(event []byte) (*answer, error) {
	if len(event) > maxPayload {
		return nil, f.failed("RequestEntityTooLarge", "")
	}
	e, err := f.take()
	if err != nil {
		return nil, err
	}
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	in := &invocation{id: hex.EncodeToString(id[:]), event: event, answer: make(chan *answer, 1)}
	select {
	case e.next <- in:
	case <-e.program.Exited():
		return nil, f.failed("Runtime.ExitError", fmt.Sprint("the process ended: ", e.program.State()))
	}
	over := time.AfterFunc(f.spec.Timeout, func() {
		_ = f.failed("Sandbox.Timedout", fmt.Sprintf("Task timed out after %v", f.spec.Timeout))
		e.program.Kill()
	})
	select {
	case a := <-in.answer:
		context.AfterFunc(a.ended, func() { over.Stop() })
		return a, nil
	case <-e.program.Exited():
		over.Stop()
		return nil, f.failed("Runtime.ExitError", fmt.Sprint("the process ended: ", e.program.State()))
	}
}

// take returns an environment that waits for an event, a new one if need be. One that has answered will wait for an event
// in a moment: whoever read its answer and comes again finds it.
func (f *Function) take() (*environment, error) {
	for {
		e, fresh, err := f.look()
		if err != nil {
			return nil, err
		}
		select {
		case <-e.free:
			return e, nil
		case <-e.program.Exited():
			if fresh {
				return nil, f.failed("Runtime.ExitError", fmt.Sprint("the process ended: ", e.program.State()))
			}
		case <-time.After(initLimit):
			e.program.Signal(syscall.SIGKILL)
			return nil, f.failed("Sandbox.Timedout", "no call for an event")
		}
	}
}

// look returns an environment that is free or will be, or a fresh one.
func (f *Function) look() (e *environment, fresh bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	alive := 0
	for _, e := range slices.Backward(f.all) {
		select {
		case <-e.program.Exited():
			continue
		default:
		}
		if alive++; !e.busy {
			e.busy = true
			return e, false, nil
		}
	}
	if alive >= f.spec.Concurrency {
		return nil, false, ErrThrottled
	}
	e = startEnvironment(f)
	f.all = append(f.all, e)
	return e, true, nil
}

func (f *Function) note(x Failure) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failures = append(f.failures, x)
}

func (f *Function) failed(kind, message string) error {
	f.note(Failure{kind, message})
	return fmt.Errorf("lambda: %s %s", kind, message)
}

// failureOf reads the error that a runtime reports.
func failureOf(payload []byte) Failure {
	var e struct{ ErrorType, ErrorMessage string }
	_ = json.Unmarshal(payload, &e) // anything else is told without its words
	return Failure{e.ErrorType, e.ErrorMessage}
}

var _ testenv.Program // environments are programs of testenv
