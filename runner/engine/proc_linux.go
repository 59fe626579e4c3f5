package engine

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// procStat is the part of /proc/<pid>/stat that matters here.
type procStat struct {
	state byte // 'Z' and 'X' are dead
	pgrp  int  // process group
}

func (s procStat) dead() bool { return s.state == 'Z' || s.state == 'X' }

func readStat(pid int) (procStat, bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return procStat{}, false
	}
	return parseStat(string(b))
}

// parseStat reads a stat line. The command, in parentheses, may hold anything, so fields are counted from its end:
// state is field 3, the process group field 5.
func parseStat(line string) (procStat, bool) {
	f := strings.Fields(line[strings.LastIndexByte(line, ')')+1:])
	if len(f) < 3 || len(f[0]) != 1 {
		return procStat{}, false
	}
	pgrp, err := strconv.Atoi(f[2])
	return procStat{f[0][0], pgrp}, err == nil
}

// groupMembers lists the live processes of a process group.
func groupMembers(pgid int) []int {
	return processes(func(_ int, s procStat) bool { return s.pgrp == pgid })
}

// marked lists the live processes whose environment had kv (NAME=value) at their start.
func marked(kv string) []int {
	return processes(func(pid int, _ procStat) bool { return hasMark(pid, kv) })
}

func hasMark(pid int, kv string) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	return err == nil && slices.Contains(strings.Split(string(b), "\x00"), kv)
}

// findListener reports whether a process listens on a TCP port of this machine, and whether the engine owns it: the
// process is in its process group or has the mark. It counts as the engine's if the system does not say.
func findListener(pgid int, mark string, port int) (found, ownedByEngine bool) {
	inodes, err := listeners(port)
	if err != nil {
		return true, true
	}
	if len(inodes) == 0 {
		return false, false
	}
	pids := processes(func(pid int, s procStat) bool { return s.pgrp == pgid || mark != "" && hasMark(pid, mark) })
	for _, pid := range pids {
		dir := "/proc/" + strconv.Itoa(pid) + "/fd/"
		files, err := os.ReadDir(dir)
		if os.IsPermission(err) {
			return true, true
		}
		for _, f := range files {
			target, _ := os.Readlink(dir + f.Name())
			if inode, ok := strings.CutPrefix(target, "socket:["); ok && slices.Contains(inodes, strings.TrimSuffix(inode, "]")) {
				return true, true
			}
		}
	}
	return true, len(pids) == 0
}

// listeners returns the inodes of the sockets that listen on a port (proc_net_tcp(5)).
func listeners(port int) (inodes []string, err error) {
	const listening = "0A"
	for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		b, err := os.ReadFile(file)
		if err != nil && file == "/proc/net/tcp" { // a system without IPv6 has no tcp6
			return nil, err
		}
		for line := range strings.Lines(string(b)) {
			f := strings.Fields(line)
			if len(f) > 9 && f[3] == listening && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) {
				inodes = append(inodes, f[9])
			}
		}
	}
	return inodes, nil
}

// processes lists the live processes for which ok is true.
func processes(ok func(pid int, s procStat) bool) (out []int) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	for _, n := range names {
		pid, err := strconv.Atoi(n)
		if err != nil {
			continue
		}
		if s, known := readStat(pid); known && !s.dead() && ok(pid, s) {
			out = append(out, pid)
		}
	}
	return out
}

// groupAlive reports whether a live process is in the group. Signal 0 nearly always suffices, but it also counts
// zombies, which a container's init may never reap, so a positive result is checked again.
func groupAlive(pgid int) bool {
	if syscall.Kill(-pgid, 0) == syscall.ESRCH {
		return false
	}
	return len(groupMembers(pgid)) > 0
}

// statusBytes sums up sizes in /proc/<pid>/status over a process group. Shared memory counts for each process.
func statusBytes(pgid int, names ...string) (sum int64) {
	for _, pid := range groupMembers(pgid) {
		b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(b)) {
			name, size, _ := strings.Cut(line, ":")
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(size), " kB"), 10, 40)
			if err == nil && slices.Contains(names, name) {
				sum += kib << 10
			}
		}
	}
	return sum
}

// awaitExit blocks until the child has exited and leaves it unreaped, so that its pid and its group's number are not
// reused until reap.
func awaitExit(cmd *exec.Cmd) {
	for unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
}

// reap collects the ended child's status.
func reap(cmd *exec.Cmd) *os.ProcessState {
	_ = cmd.Wait()
	return cmd.ProcessState
}
