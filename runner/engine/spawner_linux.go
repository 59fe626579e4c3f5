package engine

import (
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// engineUmask lets an engine's files be read by its own user alone.
const engineUmask = 0o077

// A Spawner starts engines. The kernel ties a parent-death signal to the thread that forked, not to the process, and
// Go ends threads whenever it likes; so all engines are forked by one thread that this type keeps for as long as it
// lives. What the thread sets for itself (umask, no new privileges) every engine inherits. Safe for concurrent use.
type Spawner struct {
	jobs chan spawnJob // unbuffered
	quit chan struct{} // closed by Close
	done chan struct{} // closed when the thread is given up
}

type spawnJob struct {
	cmd   *exec.Cmd
	reply chan error // buffered: the thread never waits for a caller
}

// NewSpawner returns a Spawner that must be closed. Engines that still run then are killed by the kernel.
func NewSpawner() *Spawner {
	s := &Spawner{jobs: make(chan spawnJob), quit: make(chan struct{}), done: make(chan struct{})}
	go s.run()
	return s
}

func (s *Spawner) run() {
	// Never unlocked: a thread with settings of its own must not go back to the pool, and its end is what kills
	// engines that are left.
	runtime.LockOSThread()
	defer close(s.done)
	// Both may be refused by a sandbox; engines then run with the runner's own settings.
	if unix.Unshare(unix.CLONE_FS) == nil {
		unix.Umask(engineUmask)
	}
	_ = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	for {
		select {
		case j := <-s.jobs:
			j.reply <- j.cmd.Start()
		case <-s.quit:
			return
		}
	}
}

// start starts cmd in a process group of its own, to be killed with this process.
func (s *Spawner) start(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	j := spawnJob{cmd, make(chan error, 1)}
	select {
	case s.jobs <- j:
		return <-j.reply
	case <-s.quit:
		return ErrClosed
	}
}

// Close gives the thread up. It must be called once, after the processes were stopped.
func (s *Spawner) Close() {
	close(s.quit)
	<-s.done
}
