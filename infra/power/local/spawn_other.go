//go:build unix && !linux

package local

import (
	"os/exec"
	"syscall"
)

// spawner starts children. Only Linux can tie a child's life to its parent's.
type spawner struct{}

func newSpawner() *spawner { return &spawner{} }

// start starts cmd in its own process group.
func (*spawner) start(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd.Start()
}

func (*spawner) close() {}

// reap waits for the child's end and ends what is left of its group. Here the PID may belong to another process for a
// moment.
func reap(cmd *exec.Cmd, ended func()) error {
	err := cmd.Wait()
	ended()
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	return err
}
