package engine

import (
	"log/slog"
	"os/exec"
	"sync"

	"reveille/runner/sandbox"
)

// A Spawner starts engines, each in its own process group and sandboxed as far as the machine supports it. On Linux an
// engine is killed when this process exits. On other systems the engine of a killed runner lives until
// [Marker.KillLeftovers] at the next start. A Spawner is safe for concurrent use.
type Spawner struct {
	box  *sandbox.Sandbox
	once sync.Once
	quit chan struct{} // closed by Close
}

// NewSpawner returns a Spawner that must be closed. Without a sandbox engines have all rights of the runner.
func NewSpawner(box *sandbox.Sandbox) *Spawner {
	if box == nil {
		box, _ = sandbox.New(sandbox.Config{Mode: sandbox.Off, Log: slog.New(slog.DiscardHandler)}) // fails only for a user
	}
	return &Spawner{box: box, quit: make(chan struct{})}
}

// start starts cmd in a jail. release must be called when the process has exited.
func (s *Spawner) start(cmd *exec.Cmd, j sandbox.Jail) (release func(), err error) {
	select {
	case <-s.quit:
		return func() {}, ErrClosed
	default:
		return s.box.Start(cmd, j, s.quit)
	}
}

// Close refuses further starts. It should be called after the processes are stopped: on Linux the kernel kills those
// that still run.
func (s *Spawner) Close() { s.once.Do(func() { close(s.quit) }) }
