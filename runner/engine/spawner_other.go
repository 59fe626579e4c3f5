//go:build unix && !linux

package engine

import (
	"os/exec"
	"sync/atomic"
	"syscall"
)

// A Spawner starts engines in process groups of their own. Only Linux can tie a child's life to its parent's: elsewhere
// an engine of a killed runner lives until [Ledger.KillLeftovers] at the next start. Safe for concurrent use.
type Spawner struct{ closed atomic.Bool }

// NewSpawner returns a Spawner that must be closed.
func NewSpawner() *Spawner { return &Spawner{} }

func (s *Spawner) start(cmd *exec.Cmd) error {
	if s.closed.Load() {
		return ErrClosed
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd.Start()
}

// Close refuses further starts.
func (s *Spawner) Close() { s.closed.Store(true) }
