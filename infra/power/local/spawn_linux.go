package local

import (
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// spawner starts children from one thread that it keeps: the kernel sends the parent-death signal when the forking
// thread ends, and Go may end threads at any time.
type spawner struct {
	jobs chan func()   // unbuffered; closed by close
	done chan struct{} // closed when the thread is released
}

func newSpawner() *spawner {
	s := &spawner{jobs: make(chan func()), done: make(chan struct{})}
	go func() {
		defer close(s.done)
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		for job := range s.jobs {
			job()
		}
	}()
	return s
}

// start starts cmd in its own process group. The kernel kills it when this process ends.
func (s *spawner) start(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	result := make(chan error, 1)
	s.jobs <- func() { result <- cmd.Start() }
	return <-result
}

// close releases the thread; the kernel kills any remaining children. No start may follow.
func (s *spawner) close() {
	close(s.jobs)
	<-s.done
}

// reap waits for the child's end, ends what is left of its group and collects its status. ended is called while the PID
// still belongs to the child.
func reap(cmd *exec.Cmd, ended func()) error {
	for unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
	ended()
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	return cmd.Wait()
}
