package testenv

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Process is one process of this machine. Its number alone does not name it, as numbers come round again.
type Process struct {
	PID   int
	Start string // when it began, in the kernel's ticks since the machine's start
	Args  string // command line for people
}

// String names the process for a failure.
func (p Process) String() string { return fmt.Sprintf("%d (%s)", p.PID, p.Args) }

// Alive reports whether the process is still there. One that has ended and was not reaped yet is not.
func (p Process) Alive() bool {
	_, start, ok := stat(p.PID)
	return ok && start == p.Start
}

// Descendants returns the children of a process, theirs, and so on, as they are at this moment.
func Descendants(pid int) []Process {
	entries, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil
	}
	children := map[int][]Process{}
	for _, e := range entries {
		id, err := strconv.Atoi(filepath.Base(filepath.Dir(e)))
		if err != nil {
			continue
		}
		if parent, start, ok := stat(id); ok {
			children[parent] = append(children[parent], Process{PID: id, Start: start, Args: arguments(id)})
		}
	}
	var all []Process
	for next := []int{pid}; len(next) > 0; next = next[1:] {
		for _, c := range children[next[0]] {
			all = append(all, c)
			next = append(next, c.PID)
		}
	}
	return all
}

// stat reads a living process's parent and start time.
func stat(pid int) (parent int, start string, ok bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, "", false
	}
	// The command in the second field may hold anything; what follows its last bracket is plain.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return 0, "", false
	}
	parent, err = strconv.Atoi(fields[1])
	return parent, fields[19], err == nil
}

func arguments(pid int) string {
	raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // gone: nothing to tell
	return strings.TrimSpace(strings.ReplaceAll(string(raw), "\x00", " "))
}
