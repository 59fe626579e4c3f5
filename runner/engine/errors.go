package engine

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"syscall"

	"reveille/infra/logring"
)

// Errors of a load. They are wrapped in a [*LoadError].
var (
	// ErrFileNotFound: a model file does not exist on this host. A retry cannot help.
	ErrFileNotFound = errors.New("model file not found")
	// ErrCorrupt: a model file is damaged or truncated. No engine was started for it.
	ErrCorrupt = errors.New("model file is corrupt")
	// ErrOutOfMemory: the engine reported that memory ran out, and exited.
	ErrOutOfMemory = errors.New("engine out of memory")
	// ErrUnsupported: the engine reported that it cannot run this model or these options; with more memory or another
	// device it might.
	ErrUnsupported = errors.New("not supported by the engine")
	// ErrRefused: the engine rejects its arguments or this kind of model, whatever memory is free.
	ErrRefused = errors.New("refused by the engine")
	// ErrNoGPU: the engine runs, but none of the model is on the GPU that it was to use.
	ErrNoGPU = errors.New("the engine uses no GPU")
	// ErrPortTaken: another program listens on the engine's port.
	ErrPortTaken = errors.New("the engine's port is taken by another program")
	// ErrLoadTimeout: the engine made no progress, or was not ready within the load timeout, and was stopped.
	ErrLoadTimeout = errors.New("engine load timed out")
)

// Other errors of this package.
var (
	// ErrNoProgram: the recipe's program is not installed on this host.
	ErrNoProgram = errors.New("engine program not found")
	// ErrStopped: the process was stopped on request before it was ready.
	ErrStopped = errors.New("engine was stopped")
	// ErrStuck: the process did not exit although it was killed, for example because a device driver blocks it. Its
	// owner keeps waiting: [Process.Done] stays open until the process is gone.
	ErrStuck = errors.New("engine does not exit")
	// ErrClosed: the [Spawner] was closed.
	ErrClosed = errors.New("engine spawner is closed")
)

// A LoadError is a failed load. Its text contains a path or a line of the log only if it is an ErrLoadTimeout; other
// lines are in Exit.
type LoadError struct {
	Kind   error // one of the errors of a load above
	Detail string
	Exit   *ExitError // how the process exited; nil if it was never started
}

// Error returns the kind of the error and its detail.
func (e *LoadError) Error() string {
	if e.Detail == "" {
		return e.Kind.Error()
	}
	return e.Kind.Error() + ": " + e.Detail
}

// Unwrap returns the kind and the exit.
func (e *LoadError) Unwrap() []error {
	if e.Exit == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Exit}
}

// An ExitError is the exit of an engine that nobody asked to stop, or that was stopped because its load timed out.
type ExitError struct {
	Code      int            // exit status; -1 if a signal ended it
	Signal    syscall.Signal // 0 unless a signal ended it
	Tail      []string       // the last lines of its log, oldest first
	Early     bool           // it exited, not by a signal, in less than a second, too soon to have read its weights
	CauseLine string         // the last line about an error in its log; "" if it had served, or the runner stopped it
}

// Error returns the exit status or the signal, and the cause or the last log line.
func (e *ExitError) Error() string {
	s := fmt.Sprintf("engine exited with status %d", e.Code)
	if e.Signal != 0 {
		s = "engine was ended by " + signalName(e.Signal)
	}
	if n := len(e.Tail); n > 0 {
		s += ": " + cmp.Or(e.CauseLine, strings.TrimSpace(e.Tail[n-1]))
	}
	return s
}

var (
	urls = regexp.MustCompile(`\S+://\S+`)
	// errorLine matches lines about errors. The second alternative matches llama-server's error level.
	errorLine = regexp.MustCompile(`(?i:error|exception|fail|fatal|panic|abort|assert|cannot|can't|could not|unable|what\(\):)|^[\d.]+ E `)
	// vagueLine matches lines that only point to an error: Python's stack frames, with and without a logger's prefix,
	// and what vLLM and llama-server print last.
	vagueLine = regexp.MustCompile(`(?:^|[\])] )(?: {4}|Traceback)|\bFile ".*", line \d|` +
		`(?i:see root cause above|see stack trace for|enginecore failed to start|exiting due to)`)
)

// lastErrorLine returns the last line about an error, or "".
func lastErrorLine(lines []logring.Line) string {
	var vague, exact string
	for _, l := range lines {
		switch {
		case !errorLine.MatchString(urls.ReplaceAllString(l.Text, "")):
		case vagueLine.MatchString(l.Text):
			vague = l.Text
		default:
			exact = l.Text
		}
	}
	return strings.TrimSpace(cmp.Or(exact, vague))
}
