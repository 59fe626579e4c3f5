// Package sandbox confines engine processes. On Linux each engine is forked by a dedicated thread. Before the fork that
// thread drops, for itself and its children, everything that engines do not need: new privileges, capabilities, files
// other than the model's, the network, and system calls that only attacks use. There is no launcher program, so the
// engine is the runner's own child from the start. Control groups of version 2 limit memory and processes if the runner
// can create them. On other systems [New] reports every measure as missing.
//
// infra/adr/0018-engines-in-a-sandbox.md lists what each measure needs and what is not covered.
package sandbox

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
)

// Sandbox modes.
const (
	Auto   = "auto"   // every measure that the machine supports
	Off    = "off"    // only no_new_privs
	Strict = "strict" // refuse to start engines if a measure is missing
)

// Measures, in the order in which they are reported.
const (
	NoNewPrivs   = "no_new_privs"
	User         = "user"         // a separate user, if the runner is root
	Capabilities = "capabilities" // none
	Files        = "files"        // the model's, the program's and the system's
	Network      = "network"      // only the port that the engine listens on
	Signals      = "signals"      // only to the engine itself
	Syscalls     = "syscalls"     // no system calls that only attacks use
	Memory       = "memory"       // limited by a control group
	Pids         = "pids"         // limited by a control group
	CoreDumps    = "core_dumps"   // off
)

var measures = []string{NoNewPrivs, User, Capabilities, Files, Network, Signals, Syscalls, Memory, Pids, CoreDumps}

// ErrMissing means that strict mode refuses to start an engine because a measure is missing.
var ErrMissing = errors.New("this machine lacks measures that --sandbox strict requires")

// Config configures a [Sandbox].
type Config struct {
	Mode string // Auto, Off or Strict; "" is the default of the system
	// User is the account name, UID or UID:GID of all engines; it requires that the runner is root. If empty, an engine
	// whose files are readable to another user runs as account "reveille-engine" or, without that account, as user and
	// group 60978.
	User    string
	Memory  int64        // memory limit of one engine in bytes; 0: no limit
	Private []string     // folders that engines must not read, such as the runner's state folder
	Log     *slog.Logger // receives a warning for each engine with fewer measures than the report lists; required
}

// Permissions are what one engine may do in addition to what all engines may do. The zero value allows the minimum.
type Permissions struct {
	Program   string   // absolute path
	Read      []string // files and folders to read
	Exec      []string // files and folders to read and to run programs from; missing ones are skipped
	Write     []string // files and folders to change; missing ones are skipped
	Libraries []string // folders of shared libraries
	Sockets   []string // unix sockets to connect to; the engine's user becomes their owner
	Dir       string   // private folder; the engine's user becomes its owner
	Port      int      // TCP port to listen on, 0 for none
	OpenFiles bool     // no file restrictions, and no separate user unless Config.User names one
	OpenNet   bool     // no network restrictions
	Pids      int      // maximum number of processes and threads; 0: defaultPids
}

// defaultPids is the default limit on an engine's processes and threads. It leaves room for thread pools on large
// machines.
const defaultPids = 4096

// A Report lists the measures that are active on this machine.
type Report struct {
	Mode    string   `json:"mode"`
	On      []string `json:"on"`
	Missing []string `json:"missing,omitempty"`
}

// newReport lists every measure that is not in missing as active.
func newReport(mode string, missing []string) Report {
	r := Report{Mode: mode, On: []string{}, Missing: missing}
	for _, m := range measures {
		if !slices.Contains(missing, m) {
			r.On = append(r.On, m)
		}
	}
	return r
}

// Check returns an error that wraps [ErrMissing] if the mode is strict and a measure is missing.
func (r Report) Check() error {
	if r.Mode != Strict || len(r.Missing) == 0 {
		return nil
	}
	return fmt.Errorf("%w: missing: %s", ErrMissing, strings.Join(r.Missing, ", "))
}
