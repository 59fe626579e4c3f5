package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"reveille/infra/catalog"
	"reveille/infra/logring"
	"reveille/infra/modelfile"
	"reveille/infra/recipe"
)

// Timeouts and limits that do not depend on the recipe.
const (
	killWait    = 10 * time.Second       // from SIGKILL until a process counts as stuck
	leaveWait   = 3 * time.Second        // for the rest of the group to clean up after its leader has exited
	groupWait   = 5 * time.Second        // for the rest of the group to exit after SIGKILL
	pipeWait    = 500 * time.Millisecond // for the last output; a process that left the group can hold the pipe open
	minLoad     = time.Second            // an engine that exits sooner has not read its weights
	tailInError = 20                     // log lines in an ExitError
)

// Config configures processes in addition to their [Spec]. Logger and Spawner are required.
type Config struct {
	Logger  *slog.Logger // gets an engine's lines at debug level
	Spawner *Spawner
	Marker  *Marker            // marks processes for the next start; may be nil
	Environ []string           // the runner's environment, NAME=value
	Files   *modelfile.Checker // caches which model files are intact; if nil each start reads their headers
	// SocketDir is the folder in which each engine gets its private folder, which contains the engine's socket if it
	// listens on one; os.TempDir if empty. Only the runner's user should be able to list it.
	SocketDir string
}

// A Process is one engine process. One goroutine owns it: it alone signals and reaps, all others send it a request or
// wait for it. All methods are safe for concurrent use.
type Process struct {
	// Constant after Start.
	spec    Spec
	argv    []string
	cfg     Config
	cmd     *exec.Cmd
	pid     int
	started time.Time
	log     *logring.Ring
	buffers buffers // from its log, while it loads
	dir     string  // private folder
	release func()  // releases the sandbox; called by the owner at the end

	// Requests to the owner; each channel is closed at most once, by its Once.
	stop, kill         chan struct{}
	stopOnce, killOnce sync.Once

	wasReady bool  // only the owner uses it
	err      error // written by the owner before it closes done, read after that

	ready chan struct{} // closed by the owner when the load is complete
	stuck chan struct{} // closed by the owner when SIGKILL had no effect in killWait
	done  chan struct{} // closed by the owner at the very end: the process is gone, and its group too or groupWait has passed

	loadOver atomic.Bool  // the load is complete, or the engine is being ended
	progress atomic.Int64 // time of the last progress while loading, in ns since started
}

// Start starts the engine described by spec and returns while it loads: [Process.EnsureReady] waits for the load. ctx
// bounds only the start. An empty Host, Port, Socket or APIKey of spec is filled in: loopback, a free port, a socket in
// Config.SocketDir, a new random key. spec.Program should come from [Finder.Find].
//
// A missing model file is a [*LoadError] with [ErrFileNotFound], a damaged one [ErrCorrupt], before a process is
// started; a missing program is [ErrNoProgram]. [fs.ErrPermission] means that the program may not run, or that its user
// may not read its files.
func Start(ctx context.Context, spec Spec, cfg Config) (_ *Process, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := CheckFiles(spec, cfg.Files); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(cfg.SocketDir, "engine-")
	if err != nil {
		return nil, fmt.Errorf("private folder of the engine: %w", err)
	}
	defer func() {
		if err != nil {
			releasePort(spec.Port)
			_ = os.RemoveAll(dir)
		}
	}()
	spec.dir = dir
	closeListener, err := assignAddress(&spec, dir)
	if err != nil {
		return nil, err
	}
	defer closeListener()
	if spec.Recipe.Uses("api_key") && spec.APIKey == "" {
		spec.APIKey = randomHex(32)
	}
	argv, err := Argv(spec)
	if err != nil {
		return nil, err
	}
	env, err := Environ(spec, cfg.Environ)
	if err != nil {
		return nil, err
	}
	env = withLibraryPath(env, argv[0])
	if cfg.Marker != nil {
		env = append(env, cfg.Marker.mark)
	}
	perms := permissionsOf(spec, argv, env, dir)
	if !perms.OpenFiles {
		env = append(slices.DeleteFunc(env, func(kv string) bool { return strings.HasPrefix(kv, "TMPDIR=") }), "TMPDIR="+dir)
	}

	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start engine: %w", err)
	}
	cmd := exec.Command(argv[0])
	cmd.Args, cmd.Env, cmd.Stdout, cmd.Stderr = argv, env, w, w

	p := &Process{
		spec: spec, argv: argv, cfg: cfg, cmd: cmd, log: logring.New(logring.DefaultLines), dir: dir, started: time.Now(),
		stop: make(chan struct{}), kill: make(chan struct{}),
		ready: make(chan struct{}), stuck: make(chan struct{}), done: make(chan struct{}),
	}
	closeListener() // as late as possible: from here on the engine can take the port
	p.release, err = cfg.Spawner.start(cmd, perms)
	_ = w.Close()
	if err != nil {
		_ = r.Close()
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, exec.ErrNotFound) {
			return nil, fmt.Errorf("%w: %s", ErrNoProgram, filepath.Base(argv[0]))
		}
		return nil, fmt.Errorf("start engine: %w", err)
	}
	p.pid = cmd.Process.Pid
	cfg.Logger.Info("engine started", "model", spec.Model, "recipe", spec.Recipe.Name, "pid", p.pid, "addr", spec.BaseURL())
	go p.runOwner(r)
	return p, nil
}

// CheckFiles checks that the model's files, including all parts of a split one, exist and have the format that their
// names indicate. files can be nil. Errors contain only base names.
func CheckFiles(s Spec, files *modelfile.Checker) error {
	if files == nil {
		files = new(modelfile.Checker)
	}
	var paths []string
	if s.Recipe.NeedsFile() {
		paths = catalog.Shards(s.Checkpoint)
	}
	if s.MMProj != "" {
		paths = append(paths, s.MMProj)
	}
	for _, path := range paths {
		folderAllowed := path != s.MMProj && s.Recipe.Checkpoint == recipe.CheckpointPath
		info, err := os.Stat(path)
		var cause syscall.Errno
		switch {
		case err == nil && (folderAllowed || info.Mode().IsRegular()):
		case err == nil, errors.Is(err, fs.ErrNotExist), !errors.As(err, &cause):
			return &LoadError{Kind: ErrFileNotFound, Detail: filepath.Base(path)}
		default:
			return fmt.Errorf("model file %s: %w", filepath.Base(path), cause)
		}
	}
	for _, path := range paths {
		if err := describeFileError(files.Check(path), path); err != nil {
			return err
		}
	}
	return nil
}

// describeFileError turns a file's error into one for clients.
func describeFileError(err error, path string) error {
	if bad, ok := errors.AsType[*modelfile.Error](err); ok {
		return &LoadError{Kind: ErrCorrupt, Detail: filepath.Base(path) + ": " + bad.Reason}
	}
	if cause, ok := errors.AsType[syscall.Errno](err); ok {
		return fmt.Errorf("model file %s: %w", filepath.Base(path), cause)
	}
	return err
}

// PID returns the engine's process id; it is also its process group's.
func (p *Process) PID() int { return p.pid }

// Spec returns the spec of the process, with address and key filled in.
func (p *Process) Spec() Spec { return p.spec }

// Dir returns the engine's private folder. It is removed when the process has exited.
func (p *Process) Dir() string { return p.dir }

// Argv returns the argument vector. It must not be changed.
func (p *Process) Argv() []string { return p.argv }

// BaseURL returns the root of the engine's HTTP interface, as [Spec.BaseURL].
func (p *Process) BaseURL() string { return p.spec.BaseURL() }

// APIKey returns the key the engine wants as a bearer token, "" for none.
func (p *Process) APIKey() string { return p.spec.APIKey }

// Log returns the engine's output.
func (p *Process) Log() *logring.Ring { return p.log }

// Done is closed when the process has been reaped and its process group is empty, or groupWait has passed.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err returns why the process exited: nil while it runs and after a ready engine was stopped; an [*ExitError] if a
// ready engine exited on its own; a [*LoadError], an [*ExitError] or [ErrStopped] if it never was ready.
func (p *Process) Err() error {
	select {
	case <-p.done:
		return p.err
	default:
		return nil
	}
}

// EnsureReady waits until the engine serves. If the load fails it returns after the process is gone, with the error of
// [Process.Err], or with [ErrStuck] if the process does not exit. The end of ctx ends the wait, never the load.
func (p *Process) EnsureReady(ctx context.Context) error {
	select {
	case <-p.ready:
	case <-p.done:
	case <-p.stuck:
		return ErrStuck
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case <-p.done: // also when it was ready once
		if p.err == nil {
			return ErrStopped
		}
		return p.err
	default:
		return nil
	}
}

// Stop asks the engine to exit, kills it and its process group after the recipe's grace period, and returns nil when
// [Process.Done] is closed. It can be called any number of times, at any moment. The end of ctx ends the wait, not the
// stop. Stop returns [ErrStuck] if the process has not exited although it was killed.
func (p *Process) Stop(ctx context.Context) error {
	p.stopOnce.Do(func() { close(p.stop) })
	return p.awaitDone(ctx)
}

// Kill is Stop without the grace period.
func (p *Process) Kill(ctx context.Context) error {
	p.killOnce.Do(func() { close(p.kill) })
	return p.awaitDone(ctx)
}

func (p *Process) awaitDone(ctx context.Context) error {
	select {
	case <-p.done:
		return nil
	case <-p.stuck:
		select {
		case <-p.done:
			return nil
		default:
			return ErrStuck
		}
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// signal sends sig to the whole group. Only the owner calls it, and only before it reaps the leader: until then the
// group's number cannot be reused.
func (p *Process) signal(sig syscall.Signal) { p.sendTo(-p.pid, sig) }

func (p *Process) sendTo(pid int, sig syscall.Signal) {
	if err := syscall.Kill(pid, sig); err != nil && err != syscall.ESRCH {
		p.cfg.Logger.Warn("signal to engine failed", "model", p.spec.Model, "pid", p.pid, "signal", signalName(sig), "error", err)
	}
}

func signalName(s syscall.Signal) string {
	if n := unix.SignalName(s); n != "" {
		return n
	}
	return s.String()
}

// touch records progress of the load.
func (p *Process) touch() { p.progress.Store(int64(time.Since(p.started))) }
