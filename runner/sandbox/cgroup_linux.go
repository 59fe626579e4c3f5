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

// runnerGroup is the group beside them that the runner moved itself into, see delegate.
const runnerGroup = "reveille-runner"

// cgroups holds the folders in which this runner creates control groups for its engines, or "" where it cannot. In the
// unified hierarchy (version 2) both folders are the same.
type cgroups struct {
	memory, pids string
	unified      bool
}

// findCgroups looks for folders in which this process may create control groups.
func findCgroups() (c cgroups) {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return c
	}
	dir := cgroupDir(string(own), "")
	if hasWord(dir, "cgroup.controllers", "memory") {
		if delegate(dir) {
			c = cgroups{memory: dir, unified: true}
		}
		if c.unified && hasWord(dir, "cgroup.subtree_control", "pids") {
			c.pids = dir
		}
	} else {
		c = cgroups{memory: writable(cgroupDir(string(own), "memory")), pids: writable(cgroupDir(string(own), "pids"))}
	}
	for _, base := range []string{c.memory, c.pids} { // remove groups left by killed runners; those in use stay
		if base == "" {
			continue
		}
		for _, old := range glob(filepath.Join(globEscape(base), cgroupPrefix+"*")) {
			_ = os.Remove(old)
		}
	}
	return c
}

// root is where the hierarchies are mounted; by controller in version 1.
const root = "/sys/fs/cgroup"

// cgroupDir returns the folder of this process's own group by /proc/self/cgroup: for a version 1 controller, or for
// version 2 if controller is "". For a process that is in runnerGroup already, it is that group's parent. In a
// container the mount may show that group alone.
func cgroupDir(own, controller string) string {
	for line := range strings.Lines(own) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 || !slices.Contains(strings.Split(f[1], ","), controller) {
			continue
		}
		base := filepath.Join(root, f[1])
		dir := strings.TrimSuffix(filepath.Join(base, f[2]), "/"+runnerGroup)
		if _, err := os.Stat(dir); err != nil {
			return base
		}
		return dir
	}
	return ""
}

// hasWord reports whether a file of a group lists a controller.
func hasWord(dir, file, controller string) bool {
	text, _ := os.ReadFile(filepath.Join(dir, file))
	return slices.Contains(strings.Fields(string(text)), controller)
}

// delegate enables limits for groups below dir. A group that contains processes cannot do that, so the runner moves
// itself into a child group if it is the only process there.
func delegate(dir string) bool {
	if hasWord(dir, "cgroup.subtree_control", "memory") && writable(dir) != "" {
		return true
	}
	enable := func() error { return write(dir, "cgroup.subtree_control", "+memory +pids") }
	if enable() == nil {
		return true
	}
	members, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	self := strconv.Itoa(os.Getpid())
	leaf := filepath.Join(dir, runnerGroup)
	if strings.TrimSpace(string(members)) != self {
		return false
	}
	_ = os.Mkdir(leaf, 0o755) // it may be there; otherwise the next step fails
	return write(leaf, "cgroup.procs", self) == nil && enable() == nil
}

// writable returns dir if groups can be created in it, otherwise "".
func writable(dir string) string {
	probe := filepath.Join(dir, cgroupPrefix+"probe-"+rand.Text())
	if dir == "" || os.Mkdir(probe, 0o755) != nil {
		return ""
	}
	_ = os.Remove(probe)
	return dir
}

func write(dir, file, text string) error {
	return os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644)
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
