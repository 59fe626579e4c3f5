package upstream

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// If its runner is killed, this process still turns the server off: it gets SIGTERM in place of the SIGKILL that
// runners ask for. The kernel keeps this signal by thread, and only init surely runs on the main one.
func init() {
	if len(os.Args) > 1 && os.Args[1] == "upstream" {
		_ = unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(syscall.SIGTERM), 0, 0, 0)
	}
}
