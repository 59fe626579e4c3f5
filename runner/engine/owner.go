package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"reveille/infra/logring"
	"reveille/infra/recipe"
)

// runOwner is the goroutine that owns the process from spawn to end.
func (p *Process) runOwner(output *os.File) {
	ended := make(chan struct{}) // closed when the leader is dead but not reaped
	go func() {
		defer close(ended)
		awaitExit(p.cmd)
	}()
	reader := newReader(p)
	go reader.run(output)

	failure := p.awaitReady(ended, reader)
	if failure == nil { // ready
		select {
		case <-ended:
		case <-p.stop:
			failure = errStopRequested
		case <-p.kill:
			failure = errStopRequested
		}
	}
	p.terminate(ended)
	early := time.Since(p.started) < minLoad

	// Python's resource tracker removes the shared memory of the others once they are gone, however they ended.
	p.signal(syscall.SIGTERM)
	p.awaitGroup(leaveWait)

	// The leader is a zombie, so its pid still names the group, and the signal cannot reach another group. One signal
	// is enough: no fork escapes it.
	p.signal(syscall.SIGKILL)
	state := reap(p.cmd)
	if !p.awaitGroup(groupWait) {
		p.cfg.Logger.Error("processes of an engine do not exit", "model", p.spec.Model, "pgid", p.pid)
	}
	_ = output.SetReadDeadline(time.Now().Add(pipeWait))
	<-reader.done
	_ = output.Close()
	p.release()
	releasePort(p.spec.Port)
	_ = os.RemoveAll(p.dir)

	p.err = p.outcome(failure, state, reader.cause)
	if exit, ok := errors.AsType[*ExitError](p.err); ok {
		exit.Early = early && exit.Signal == 0
	}
	p.cfg.Logger.Info("engine exited", "model", p.spec.Model, "pid", p.pid, "error", p.err)
	p.log.Close()
	close(p.done)
}

// Why a process ended. These errors stay inside the package.
var (
	errStopRequested = errors.New("stop requested")
	errExited        = errors.New("exited")
)

// awaitReady waits until the engine is ready and returns nil, or returns why the load failed.
func (p *Process) awaitReady(ended <-chan struct{}, reader *reader) error {
	ctx, cancel := context.WithCancel(context.Background())
	probed := make(chan struct{})
	healthy := make(chan error, 1)
	if p.spec.HealthURL() == "" {
		close(probed)
	} else {
		prober := p.newProber()
		go func() {
			defer close(probed)
			if err := prober.run(ctx); ctx.Err() == nil {
				healthy <- err
			}
		}()
	}
	defer func() { cancel(); <-probed }()

	loadTimeout, stall, _ := p.spec.Recipe.Times()
	total := time.NewTimer(loadTimeout)
	defer total.Stop()
	idle := time.NewTimer(stall)
	defer idle.Stop()
	for {
		select {
		case <-ended:
			return errExited
		case err := <-healthy:
			if err != nil {
				return err
			}
			return p.markReady(ended)
		case <-reader.ready:
			return p.markReady(ended)
		case <-p.stop:
			return errStopRequested
		case <-p.kill:
			return errStopRequested
		case <-total.C:
			return p.loadTimeout("not ready after %v", loadTimeout)
		case <-idle.C:
			still := time.Since(p.started) - time.Duration(p.progress.Load())
			if still >= stall {
				return p.loadTimeout("no progress for %v", stall)
			}
			idle.Reset(stall - still)
		}
	}
}

// loadTimeout describes a load that took too long. An engine whose load has failed may go on without serving, so the
// last error in its log is included, and nothing that the engine logs while it is stopped.
func (p *Process) loadTimeout(format string, limit time.Duration) error {
	detail := fmt.Sprintf(format, limit)
	if line := lastErrorLine(p.log.Tail(-1)); line != "" {
		detail += "; the last error in its log: " + line
	}
	return &LoadError{Kind: ErrLoadTimeout, Detail: detail}
}

// awaitBuffers waits until the log has reported the buffers of an engine that reports them, for 2 s at most. Engines
// write their log in a thread of its own, so it can lag behind the health response.
func (p *Process) awaitBuffers() {
	const quiet = 50 * time.Millisecond
	for end := time.Now().Add(2 * time.Second); p.spec.ReportsBuffers && time.Now().Before(end); time.Sleep(quiet / 5) {
		main, device := p.buffers.sum()
		if main+device > 0 && time.Since(p.started)-time.Duration(p.progress.Load()) >= quiet {
			return
		}
	}
}

// markReady marks the load complete, unless the process is already dead: then another process on the same port sent the
// response.
func (p *Process) markReady(ended <-chan struct{}) error {
	p.awaitBuffers()
	select {
	case <-ended:
		return errExited
	default:
	}
	p.wasReady = true
	p.loadOver.Store(true)
	close(p.ready)
	p.cfg.Logger.Info("engine ready", "model", p.spec.Model, "pid", p.pid, "load_ms", time.Since(p.started).Milliseconds())
	return nil
}

// terminate ends the process and returns when its leader is dead. It sends SIGTERM, then SIGKILL after the grace period
// or on request. If that has no effect either, it reports this and keeps waiting, because a living process holds its
// memory.
func (p *Process) terminate(ended <-chan struct{}) {
	select {
	case <-ended:
		return
	default:
	}
	p.loadOver.Store(true)
	_, _, grace := p.spec.Recipe.Times()
	p.signal(syscall.SIGTERM)
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-ended:
		return
	case <-p.kill:
	case <-timer.C:
		p.cfg.Logger.Warn("engine ignores SIGTERM, killing it", "model", p.spec.Model, "pid", p.pid, "grace", grace)
	}
	p.sendTo(p.pid, syscall.SIGKILL) // not the group, which may clean up after it
	timer.Reset(killWait)
	select {
	case <-ended:
		return
	case <-timer.C:
	}
	p.signal(syscall.SIGKILL)
	p.cfg.Logger.Error("engine does not exit", "model", p.spec.Model, "pid", p.pid)
	close(p.stuck)
	<-ended
}

// awaitGroup waits until the other processes of the group are gone, and reports whether they are.
func (p *Process) awaitGroup(limit time.Duration) bool {
	for deadline := time.Now().Add(limit); groupAlive(p.pid); time.Sleep(firstPoll) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// outcome turns the end of a process into the error that callers see.
func (p *Process) outcome(failure error, state *os.ProcessState, cause recipe.Cause) error {
	if failure == errStopRequested {
		if p.wasReady {
			return nil
		}
		return ErrStopped
	}
	exit := &ExitError{Code: state.ExitCode()}
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		exit.Signal = ws.Signal()
	}
	for _, l := range p.log.Tail(tailInError) {
		exit.Tail = append(exit.Tail, l.Text)
	}
	if loadErr, ok := errors.AsType[*LoadError](failure); ok {
		loadErr.Exit = exit
		return loadErr
	}
	if p.wasReady {
		return exit
	}
	exit.CauseLine = lastErrorLine(p.log.Tail(-1))
	// An engine can crash when memory runs out or when it refuses its arguments. Other causes count only if no signal
	// ended it.
	switch {
	case cause == recipe.CauseOutOfMemory:
		return &LoadError{Kind: ErrOutOfMemory, Exit: exit}
	case cause == recipe.CauseRefused && exit.Signal != syscall.SIGKILL:
		return &LoadError{Kind: ErrRefused, Detail: refusedArgument(exit.Tail), Exit: exit}
	case exit.Signal != 0:
		return exit
	case cause == recipe.CauseFileNotFound:
		return &LoadError{Kind: ErrFileNotFound, Detail: filepath.Base(p.spec.Checkpoint), Exit: exit}
	case cause == recipe.CauseUnsupported:
		return &LoadError{Kind: ErrUnsupported, Detail: refusedArgument(exit.Tail), Exit: exit}
	}
	return exit
}

// unknownArgument matches what engines log about an argument that they do not know.
var unknownArgument = regexp.MustCompile(`(?i)(?:invalid|unknown|unrecognized) (?:argument|option)s?:? *(--?[a-z][a-z0-9-]*)`)

// UnknownArgument describes an argument that an engine does not know.
func UnknownArgument(name string) string {
	return "it does not know the argument " + name + "; change the model's arguments or update the engine"
}

// refusedArgument describes the argument that an engine did not know, or points to the log. It repeats no value.
func refusedArgument(tail []string) string {
	for _, line := range tail {
		if m := unknownArgument.FindStringSubmatch(line); m != nil {
			return UnknownArgument(m[1])
		}
	}
	return "see its log"
}

// A reader copies an engine's output into the log for as long as the engine lives, and matches the recipe's patterns.
// Its other fields can be read after done is closed.
type reader struct {
	p        *Process
	ready    chan struct{} // closed when a line matched Ready.Log
	done     chan struct{}
	cause    recipe.Cause // the strongest seen
	isReady  bool         // ready is closed
	redactor recipe.Redactor
}

func newReader(p *Process) *reader {
	return &reader{p: p, ready: make(chan struct{}), done: make(chan struct{}), redactor: recipe.Redactor{Recipe: &p.spec.Recipe}}
}

func (r *reader) run(output *os.File) {
	defer close(r.done)
	lines := logring.Splitter{Emit: r.handleLine}
	buf := make([]byte, 8<<10)
	for {
		n, err := output.Read(buf)
		if n > 0 {
			if r.isProgress(buf[:n]) {
				r.p.touch()
			}
			lines.Add(buf[:n])
		}
		if err != nil {
			lines.Flush()
			return
		}
	}
}

// isProgress reports whether output shows progress. Bytes count, not lines: progress dots come without an end of line.
// Lines about the health path do not count, because the runner itself polls it during a load.
func (r *reader) isProgress(output []byte) bool {
	path := []byte(r.p.spec.Recipe.HealthPath)
	for line := range bytes.FieldsFuncSeq(output, func(c rune) bool { return c == '\n' || c == '\r' }) {
		if len(path) == 0 || !bytes.Contains(line, path) {
			return true
		}
	}
	return false
}

// causeRank orders causes: an engine that runs out of memory often reports other causes as well.
var causeRank = map[recipe.Cause]int{
	recipe.CauseUnsupported: 1, recipe.CauseFileNotFound: 2, recipe.CauseRefused: 3, recipe.CauseOutOfMemory: 4,
}

// handleLine logs a line of output, and while the engine loads, evaluates it.
func (r *reader) handleLine(text string) {
	p := r.p
	if key := p.spec.APIKey; key != "" {
		text = strings.ReplaceAll(text, key, "[key]")
	}
	loading := !p.loadOver.Load()
	if redacted := r.redactor.Line(text); !loading { // while it loads, there is no request to hide, but the Redactor must see every line
		text = redacted
	}
	p.log.Append(text, time.Now())
	if p.cfg.Logger.Enabled(context.Background(), slog.LevelDebug) {
		p.cfg.Logger.Debug("engine output", "model", p.spec.Model, "pid", p.pid, "line", text)
	}
	if !loading {
		return
	}
	p.buffers.addLine(text)
	if c := p.spec.Recipe.Errors.Cause(text); causeRank[c] > causeRank[r.cause] {
		r.cause = c
	}
	if re := p.spec.Recipe.Ready.Log; re != nil && !r.isReady && re.MatchString(text) {
		r.isReady = true
		close(r.ready)
	}
}
