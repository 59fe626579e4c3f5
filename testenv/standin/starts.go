package main

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// countStart adds one to the number of starts kept in file and returns the new number.
// Processes may call it at the same time: the file is locked meanwhile, and the lock
// goes with the process however it ends.
func countStart(file string) (int, error) {
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return 0, fmt.Errorf("lock %s: %w", file, err)
	}
	old, err := io.ReadAll(f)
	if err != nil {
		return 0, err
	}
	n := 0
	if text := strings.TrimSpace(string(old)); text != "" {
		if n, err = strconv.Atoi(text); err != nil {
			return 0, fmt.Errorf("%s does not hold a count of starts", file)
		}
	}
	n++
	_, err = f.WriteAt([]byte(strconv.Itoa(n)+"\n"), 0)
	return n, errors.Join(err, f.Sync())
}

// defaultStateFile names the count of starts of one alias under one parent process: a
// runner that starts its engine again meets the same count, another runner a new one.
// The parent's start time is part of the name because process ids come round again.
func defaultStateFile(alias string) string {
	parent := os.Getppid()
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %s %s", parent, startTime(parent), alias)
	return filepath.Join(os.TempDir(), fmt.Sprintf("standin-starts-%016x", h.Sum64()))
}

// startTime is when a process began, in the kernel's ticks; empty where /proc is absent.
func startTime(pid int) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	// The command in the second field may hold spaces and brackets; fields are safe
	// to split after its last one. Start time is field 22, so 20th of the rest.
	_, rest, _ := strings.Cut(string(stat[strings.LastIndexByte(string(stat), ')'):]), " ")
	if fields := strings.Fields(rest); len(fields) > 19 {
		return fields[19]
	}
	return ""
}
