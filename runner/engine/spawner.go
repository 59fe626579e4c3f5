package engine

import (
	"log/slog"
	"os/exec"
	"sync"

	"reveille/runner/sandbox"
)

// A Spawner starts engines, each in its own process group and sandboxed as far as the machine supports it. On Linux an
// engine is killed when this process exits. On other systems the engine of a killed runner keeps running, and nothing
// finds it. A Spawner is safe for concurrent use.
type Spawner struct {
	sb   *sandbox.Sandbox
	once sync.Once
	quit chan struct{} // closed by Close
}

// NewSpawner returns a Spawner that must be closed. Without a sandbox engines have all rights of the runner.
func NewSpawner(sb *sandbox.Sandbox) *Spawner {
	if sb == nil {
		sb, _ = sandbox.New(sandbox.Config{Mode: sandbox.Off, Log: slog.New(slog.DiscardHandler)}) // fails only if Config names a user
	}
	return &Spawner{sb: sb, quit: make(chan struct{})}
}

// start starts cmd in the sandbox. release must be called when the process has exited.
func (s *Spawner) start(cmd *exec.Cmd, perms sandbox.Permissions) (release func(), err error) {
	select {
	case <-s.quit:
		return func() {}, ErrClosed
	default:
		return s.sb.Start(cmd, perms, s.quit)
	}
}

// Close refuses further starts. It should be called after the processes are stopped: on Linux the kernel kills those
// that still run.
func (s *Spawner) Close() { s.once.Do(func() { close(s.quit) }) }
