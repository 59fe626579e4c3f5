package engine

import (
	"bytes"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// procStat is the part of /proc/<pid>/stat that distinguishes processes.
type procStat struct {
	state byte   // 'Z' and 'X' are dead
	pgrp  int    // process group
	start uint64 // start time in clock ticks since boot: with the pid, unique until the next boot
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
// state is field 3, the process group field 5, the start time field 22.
func parseStat(line string) (procStat, bool) {
	f := strings.Fields(line[strings.LastIndexByte(line, ')')+1:])
	if len(f) < 20 || len(f[0]) != 1 {
		return procStat{}, false
	}
	pgrp, err1 := strconv.Atoi(f[2])
	start, err2 := strconv.ParseUint(f[19], 10, 64)
	return procStat{f[0][0], pgrp, start}, err1 == nil && err2 == nil
}

// startTicks returns the start time of a live process, 0 when it is unknown.
func startTicks(pid int) uint64 {
	s, _ := readStat(pid)
	if s.dead() {
		return 0
	}
	return s.start
}

// groupMembers lists the live processes of a group.
func groupMembers(pgid int) []int {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	var out []int
	for _, n := range names {
		pid, err := strconv.Atoi(n)
		if err != nil {
			continue
		}
		if s, ok := readStat(pid); ok && s.pgrp == pgid && !s.dead() {
			out = append(out, pid)
		}
	}
	return out
}

// groupAlive reports whether a live process is in the group. The signal 0 answers nearly always; it also counts
// zombies, which a container's init may never reap, so a yes is looked at again.
func groupAlive(pgid int) bool {
	if syscall.Kill(-pgid, 0) == syscall.ESRCH {
		return false
	}
	return len(groupMembers(pgid)) > 0
}

// hasEnv reports whether a process was started with the variable text kv.
func hasEnv(pid int, kv string) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	return err == nil && bytes.Contains(append([]byte{0}, b...), append(append([]byte{0}, kv...), 0))
}

// statusBytes sums up sizes of /proc/<pid>/status over the processes of a group. What they share counts for each.
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

// bootID names this boot of the machine; start times of another one mean nothing.
func bootID() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b))
}

// await blocks until the child has ended and leaves it unreaped, so that its pid and its group's number stay its own
// until reap.
func await(cmd *exec.Cmd) {
	for unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
}

// reap collects the ended child's status.
func reap(cmd *exec.Cmd) *os.ProcessState {
	_ = cmd.Wait()
	return cmd.ProcessState
}

func signalName(s syscall.Signal) string {
	if n := unix.SignalName(s); n != "" {
		return n
	}
	return s.String()
}
