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

// cgroupPrefix begins the names of engines' control groups.
const cgroupPrefix = "reveille-engine-"

// cgroups are the folders in which this runner makes control groups for its engines; "" for none. In the unified
// hierarchy (version 2) both are the same.
type cgroups struct {
	memory, pids string
	unified      bool
}

// findCgroups looks for a place where this process may make groups. reason says why there is none.
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
	for _, base := range []string{c.memory, c.pids} { // of runners that were killed; a group in use stays
		if base == "" {
			continue
		}
		old, _ := filepath.Glob(filepath.Join(globEscape(base), cgroupPrefix+"*"))
		for _, dir := range old {
			_ = os.Remove(dir)
		}
	}
	return c, "the runner may make no control groups"
}

// cgroupDir is the folder of the process's own group: of a controller of version 1, or of version 2 for "".
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
			rel, err := filepath.Rel(f[3], group) // the mount may show a part of the hierarchy
			if err != nil || strings.HasPrefix(rel, "..") {
				rel = "."
			}
			return filepath.Join(f[4], rel)
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

// delegate lets groups below dir have limits. A group with processes of its own cannot: the runner moves to one below,
// if it is alone there.
func delegate(dir string) (reason string) {
	if has(dir, "cgroup.subtree_control", "memory") && writable(dir) != "" {
		return ""
	}
	enable := func() error { return write(dir, "cgroup.subtree_control", "+memory +pids") }
	if err := enable(); err == nil {
		return ""
	} else if errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) {
		return "the runner's control group is not its own (systemd: Delegate=yes)"
	}
	members, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	self := strconv.Itoa(os.Getpid())
	if strings.TrimSpace(string(members)) != self {
		return "other processes share the runner's control group (systemd: a service of its own with Delegate=yes)"
	}
	leaf := filepath.Join(dir, "reveille-runner")
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

// writable is dir if groups can be made there, else "".
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

// cause is an error without the path in it.
func cause(err error) string {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err.Error()
	}
	return err.Error()
}

// A group holds one engine.
type group struct {
	dirs   []string
	thread bool // version 1: a thread can enter by itself, and what it forks is born inside
}

// newGroup makes the control group of one engine. On error the group has what could be made.
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

// enterThread puts the calling thread into the group, where the kernel lets threads enter alone.
func (g *group) enterThread() error { return g.put(g.thread, "tasks", "0") }

// enter puts a process into the group that its thread could not enter before.
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

// remove removes the group of an engine that is gone. The kernel may hold it for a moment.
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
