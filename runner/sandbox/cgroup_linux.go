package sandbox

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// cgroupPrefix starts the name of every engine's control group.
const cgroupPrefix = "reveille-engine-"

// runnerGroup is the group beside them that the runner moved itself into, see delegate.
const runnerGroup = "reveille-runner"

// cgroups holds the folders in which this runner creates control groups for its engines, or "" where it cannot. In the
// unified hierarchy (version 2) both folders are the same.
type cgroups struct {
	memory, pids string
	unified      bool
}

// findCgroups looks for folders in which this process may create control groups. reason explains any that are missing.
func findCgroups() (c cgroups, reason string) {
	own, err := os.ReadFile("/proc/self/cgroup")
	mounts, err2 := os.ReadFile("/proc/self/mountinfo")
	if err := errors.Join(err, err2); err != nil {
		return c, "no control groups"
	}
	if dir := cgroupDir(string(own), string(mounts), ""); dir != "" && has(dir, "cgroup.controllers", "memory") {
		if reason := delegate(dir); reason != "" {
			return c, reason
		}
		c = cgroups{memory: dir, unified: true}
		if has(dir, "cgroup.subtree_control", "pids") {
			c.pids = dir
		}
	} else {
		c.memory = writable(cgroupDir(string(own), string(mounts), "memory"))
		c.pids = writable(cgroupDir(string(own), string(mounts), "pids"))
	}
	for _, base := range []string{c.memory, c.pids} { // remove groups left by killed runners; those in use stay
		if base == "" {
			continue
		}
		old, _ := filepath.Glob(filepath.Join(globEscape(base), cgroupPrefix+"*"))
		for _, dir := range old {
			_ = os.Remove(dir)
		}
	}
	return c, "the runner may not create control groups"
}

// cgroupDir returns the folder of this process's own group: for a version 1 controller, or for version 2 if controller
// is "". For a process that is in runnerGroup already, it is that group's parent.
func cgroupDir(own, mounts, controller string) string {
	var group string
	for line := range strings.Lines(own) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) == 3 && (controller == "" && f[0] == "0" && f[1] == "" || controller != "" && listed(f[1], ",", controller)) {
			group = f[2]
		}
	}
	for line := range strings.Lines(mounts) {
		f := strings.Fields(line)
		sep := 0
		for i, w := range f {
			if w == "-" {
				sep = i
			}
		}
		if group == "" || sep < 5 || len(f) < sep+4 {
			continue
		}
		if controller == "" && f[sep+1] == "cgroup2" || controller != "" && f[sep+1] == "cgroup" && listed(f[sep+3], ",", controller) {
			rel, err := filepath.Rel(f[3], group) // the mount may show only part of the hierarchy
			if err != nil || strings.HasPrefix(rel, "..") {
				rel = "."
			}
			return strings.TrimSuffix(filepath.Join(f[4], rel), "/"+runnerGroup)
		}
	}
	return ""
}

func listed(list, sep, word string) bool {
	for w := range strings.SplitSeq(strings.TrimSpace(list), sep) {
		if w == word {
			return true
		}
	}
	return false
}

func has(dir, file, controller string) bool {
	b, _ := os.ReadFile(filepath.Join(dir, file))
	return listed(string(b), " ", controller)
}

// delegate enables limits for groups below dir. A group that contains processes cannot do that, so the runner moves
// itself into a child group if it is the only process there.
func delegate(dir string) (reason string) {
	if has(dir, "cgroup.subtree_control", "memory") && writable(dir) != "" {
		return ""
	}
	enable := func() error { return write(dir, "cgroup.subtree_control", "+memory +pids") }
	if err := enable(); err == nil {
		return ""
	} else if errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) {
		return "the runner's control group is not delegated to it (systemd: Delegate=yes)"
	}
	members, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	self := strconv.Itoa(os.Getpid())
	if strings.TrimSpace(string(members)) != self {
		return "other processes share the runner's control group (systemd: use a separate service with Delegate=yes)"
	}
	leaf := filepath.Join(dir, runnerGroup)
	err := os.Mkdir(leaf, 0o755)
	if err == nil || errors.Is(err, fs.ErrExist) {
		err = write(leaf, "cgroup.procs", self)
	}
	if err == nil {
		err = enable()
	}
	if err != nil {
		return "control group: " + cause(err)
	}
	return ""
}

// writable returns dir if groups can be created in it, otherwise "".
func writable(dir string) string {
	if dir == "" {
		return ""
	}
	probe := filepath.Join(dir, cgroupPrefix+"probe-"+rand.Text())
	if os.Mkdir(probe, 0o755) != nil {
		return ""
	}
	_ = os.Remove(probe)
	return dir
}

func write(dir, file, text string) error {
	return os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644)
}

// cause returns the text of an error without its path.
func cause(err error) string {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err.Error()
	}
	return err.Error()
}

// A group is the control group of one engine.
type group struct {
	dirs   []string
	thread bool // version 1: a single thread can join, and its children start inside the group
}

// newGroup creates the control group of one engine. On error it also returns what it could create.
func (c cgroups) newGroup(memory int64, pids int) (*group, error) {
	g := &group{thread: !c.unified}
	name := cgroupPrefix + strconv.Itoa(os.Getpid()) + "-" + rand.Text()[:8]
	var errs []error
	limit := func(base string, files ...[2]string) {
		if base == "" {
			return
		}
		dir := filepath.Join(base, name)
		if err := os.Mkdir(dir, 0o755); err == nil {
			g.dirs = append(g.dirs, dir)
		} else if !errors.Is(err, fs.ErrExist) {
			errs = append(errs, err)
			return
		}
		for _, f := range files {
			errs = append(errs, write(dir, f[0], f[1]))
		}
	}
	if bytes := strconv.FormatInt(memory, 10); memory > 0 && c.unified {
		limit(c.memory, [2]string{"memory.max", bytes}, [2]string{"memory.oom.group", "1"})
	} else if memory > 0 {
		limit(c.memory, [2]string{"memory.limit_in_bytes", bytes})
	}
	limit(c.pids, [2]string{"pids.max", strconv.Itoa(pids)})
	return g, errors.Join(errs...)
}

// enterThread moves the calling thread into the group, if the kernel lets single threads join.
func (g *group) enterThread() error { return g.put(g.thread, "tasks", "0") }

// enter moves a process into the group, if enterThread could not.
func (g *group) enter(pid int) error { return g.put(!g.thread, "cgroup.procs", strconv.Itoa(pid)) }

func (g *group) put(can bool, file, who string) error {
	var errs []error
	for _, dir := range g.dirs {
		if can {
			errs = append(errs, write(dir, file, who))
		}
	}
	return errors.Join(errs...)
}

// remove deletes the group of an engine that has ended. The kernel may keep the group busy for a moment.
func (g *group) remove() {
	for _, dir := range g.dirs {
		for range 50 {
			if err := os.Remove(dir); err == nil || errors.Is(err, fs.ErrNotExist) {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
}
