package engine

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
)

// Errors of a load. They are wrapped in a [*LoadError].
var (
	// ErrFileNotFound: a model file does not exist on this host. Trying again cannot help.
	ErrFileNotFound = errors.New("model file not found")
	// ErrCorrupt: a model file is damaged or cut off. No engine was started for it.
	ErrCorrupt = errors.New("model file is corrupt")
	// ErrOutOfMemory: the engine said that memory ran out, and ended.
	ErrOutOfMemory = errors.New("engine out of memory")
	// ErrUnsupported: the engine said that it cannot run this model or these options, and ended.
	ErrUnsupported = errors.New("not supported by the engine")
	// ErrRefused: the engine does not accept its arguments or the kind of its model. Trying again cannot help.
	ErrRefused = errors.New("refused by the engine")
	// ErrLoadTimeout: the engine made no progress, or was not ready in the whole time allowed, and was stopped.
	ErrLoadTimeout = errors.New("engine load timed out")
)

// Other errors of this package.
var (
	// ErrNoProgram: the recipe's program is not installed on this host.
	ErrNoProgram = errors.New("engine program not found")
	// ErrStopped: the process was stopped on request before it was ready.
	ErrStopped = errors.New("engine was stopped")
	// ErrStuck: the process did not end although it was killed, for example because a device driver blocks it. Its owner
	// keeps waiting: [Process.Done] stays open until the process is gone.
	ErrStuck = errors.New("engine does not end")
	// ErrClosed: the [Spawner] was closed.
	ErrClosed = errors.New("engine spawner is closed")
)

// A LoadError is a load that failed. Its text is fit for clients: it holds no path and no log line; those are in Exit.
type LoadError struct {
	Kind   error // one of the errors of a load above
	Detail string
	Exit   *ExitError // how the process ended; nil when it was never started
}

func (e *LoadError) Error() string {
	if e.Detail == "" {
		return e.Kind.Error()
	}
	return e.Kind.Error() + ": " + e.Detail
}

// Unwrap gives errors.Is and errors.As the kind and the exit.
func (e *LoadError) Unwrap() []error {
	if e.Exit == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Exit}
}

// An ExitError is an engine that ended by itself, while it loaded or served.
type ExitError struct {
	Code   int            // exit status; -1 when a signal ended it
	Signal syscall.Signal // 0 unless a signal ended it
	Tail   []string       // the last lines of its log, oldest first
}

// Error gives the status or the signal and the last log line.
func (e *ExitError) Error() string {
	s := fmt.Sprintf("engine exited with status %d", e.Code)
	if e.Signal != 0 {
		s = "engine was ended by " + signalName(e.Signal)
	}
	if n := len(e.Tail); n > 0 {
		s += ": " + strings.TrimSpace(e.Tail[n-1])
	}
	return s
}
