package sandbox

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// cgroupPrefix starts the name of every engine's control group.
const cgroupPrefix = "reveille-engine-"

// runnerGroup is the group next to them into which the runner moves itself, see delegate.
const runnerGroup = "reveille-runner"

// cgroupRoot is where control groups of version 2 are mounted.
const cgroupRoot = "/sys/fs/cgroup"

// findCgroup returns the folder in which this process can create control groups that limit memory and processes, or "".
func findCgroup() string {
	own, _ := os.ReadFile("/proc/self/cgroup") // missing without control groups
	dir := cgroupDir(string(own))
	if !delegate(dir) {
		return ""
	}
	for _, old := range glob(filepath.Join(globEscape(dir), cgroupPrefix+"*")) {
		_ = os.Remove(old) // left by a killed runner; those in use stay
	}
	return dir
}

// cgroupDir returns the folder of this process's own group by /proc/self/cgroup. For a process that is in runnerGroup
// already, it is that group's parent. In a container the mount can show only that group.
func cgroupDir(own string) string {
	_, path, _ := strings.Cut("\n"+own, "\n0::")
	path, _, _ = strings.Cut(path, "\n")
	dir := strings.TrimSuffix(filepath.Join(cgroupRoot, path), "/"+runnerGroup)
	if _, err := os.Stat(dir); err != nil {
		return cgroupRoot
	}
	return dir
}

// delegate enables limits for groups below dir. A group that contains processes cannot do that, so the runner moves
// itself into a child group if it is the only process there.
func delegate(dir string) bool {
	text, _ := os.ReadFile(filepath.Join(dir, "cgroup.controllers")) // which version 1 does not have
	controllers := strings.Fields(string(text))
	if !slices.Contains(controllers, "memory") || !slices.Contains(controllers, "pids") {
		return false
	}
	enable := func() error { return writeFile(dir, "cgroup.subtree_control", "+memory +pids") }
	if enable() == nil {
		return true
	}
	members, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	self := strconv.Itoa(os.Getpid())
	leaf := filepath.Join(dir, runnerGroup)
	if strings.TrimSpace(string(members)) != self {
		return false
	}
	_ = os.Mkdir(leaf, 0o755) // it may exist; if this fails, the next step fails too
	return writeFile(leaf, "cgroup.procs", self) == nil && enable() == nil
}

func writeFile(dir, file, text string) error {
	return os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644)
}

// newGroup creates the control group of one engine below dir. It can return an error together with a group that lacks a
// limit.
func newGroup(dir string, memory int64, pids int) (group string, err error) {
	group = filepath.Join(dir, cgroupPrefix+strconv.Itoa(os.Getpid())+"-"+rand.Text()[:8])
	if err := os.Mkdir(group, 0o755); err != nil {
		return "", err
	}
	err = writeFile(group, "pids.max", strconv.Itoa(pids))
	if memory > 0 {
		err = errors.Join(err, writeFile(group, "memory.max", strconv.FormatInt(memory, 10)), writeFile(group, "memory.oom.group", "1"))
	}
	return group, err
}

// removeGroup deletes the group of an engine that has exited. The kernel can keep the group busy for a moment.
func removeGroup(group string) {
	for range 50 {
		if err := os.Remove(group); err == nil || errors.Is(err, fs.ErrNotExist) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}
