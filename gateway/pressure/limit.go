package pressure

import (
	"io/fs"
	"math"
	"os"
	"path"
	"runtime/debug"
	"strconv"
	"strings"
)

// Limit is how many bytes this process may use, 0 for no limit: GOMEMLIMIT where it is set, else what its control group
// allows.
func Limit() int64 {
	if soft := debug.SetMemoryLimit(-1); told() && soft < math.MaxInt64 {
		return soft
	}
	return groupLimit(os.DirFS("/"))
}

// Adopt makes the collector work harder before a limit is reached than StepAt gives anything up, unless GOMEMLIMIT has
// told it a limit already. It changes the whole process.
func Adopt(limit int64) {
	if limit > 0 && !told() {
		debug.SetMemoryLimit(limit / 100 * collectAt)
	}
}

// told reports whether the collector knows its limit from the environment.
func told() bool { return os.Getenv("GOMEMLIMIT") != "" }

// collectAt is the share of the limit, in per cent, that the collector keeps the process below if it can.
const collectAt = 90

// groupLimit is the least memory limit of the process's control group and those above it, 0 for none. root is the root
// of the file system.
func groupLimit(root fs.FS) int64 {
	text, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return 0 // a system without control groups
	}
	least := int64(0)
	for line := range strings.Lines(string(text)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 {
			continue
		}
		tree, file := "sys/fs/cgroup", "memory.max" // version 2, which has no controllers here
		switch fields[1] {
		case "":
		case "memory":
			tree, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		default:
			continue
		}
		for at := path.Clean("/" + fields[2]); ; at = path.Dir(at) {
			if n := readLimit(root, path.Join(tree, at, file)); n > 0 && (least == 0 || n < least) {
				least = n
			}
			if at == "/" {
				break
			}
		}
	}
	return least
}

// unlimited is what version 1 says for no limit, or more.
const unlimited = 1 << 60

// readLimit reads a limit, 0 for none.
func readLimit(root fs.FS, file string) int64 {
	text, err := fs.ReadFile(root, file)
	if err != nil {
		return 0
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil || n >= unlimited { // the word max
		return 0
	}
	return n
}
