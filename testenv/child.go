package testenv

import (
	"os/exec"
	"runtime"
	"syscall"
)

// StartChild starts cmd so that the kernel kills it when this process ends, however
// that happens; a test binary that is killed then leaves nothing behind. A Pdeathsig that
// the caller has set is kept, for a program that must end its own children. The returned
// channel is closed when the child has ended and was reaped.
func StartChild(cmd *exec.Cmd) (<-chan struct{}, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	if cmd.SysProcAttr.Pdeathsig == 0 {
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	started, exited := make(chan error), make(chan struct{})
	go func() {
		// The death signal follows the thread that forked, not the process, and Go
		// may end idle threads: this one is kept until the child is gone.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // how it ended is in cmd.ProcessState
			close(exited)
		}
	}()
	return exited, <-started
}
