package app

import (
	"fmt"
	"net"
	"os"
	"regexp"
	"strconv"

	"golang.org/x/sys/unix"
)

var seccompFilters = regexp.MustCompile(`(?m)^Seccomp_filters:\s+(\d+)$`)

// confined reports whether the process at the other end has more seccomp filters than this one: it is an engine, or
// comes from one. Engines may run as this user, and Landlock keeps them from sockets only on Linux 7 and later.
func confined(c *net.UnixConn) bool {
	peer, err := 0, error(nil)
	if raw, rawErr := c.SyscallConn(); rawErr == nil {
		err = raw.Control(func(fd uintptr) {
			if cred, credErr := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); credErr == nil {
				peer = int(cred.Pid)
			}
		})
	}
	if err != nil || peer == 0 {
		return true
	}
	return peer != os.Getpid() && filters(peer) > filters(os.Getpid())
}

// filters counts the seccomp filters of a process, which it passes on to its children and cannot drop.
func filters(pid int) int {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 1 << 30 // it has ended
	}
	n := 0
	if m := seccompFilters.FindSubmatch(status); m != nil { // none before Linux 5.9
		n, _ = strconv.Atoi(string(m[1]))
	}
	return n
}
