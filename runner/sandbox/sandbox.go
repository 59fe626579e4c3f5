// Package sandbox confines engine processes. On Linux each engine is forked by a thread of its own that has given up,
// for itself and all that it forks, what engines do not need: new privileges, capabilities, files other than the
// model's, the network, system calls that only attacks use. There is no launcher program, so the engine's process is the
// runner's own child from the start. Limits of memory and processes are set by control groups where the runner may make
// some. Elsewhere [New] reports every measure as missing.
//
// infra/adr/0018-engines-in-a-sandbox.md lists what each measure needs and what is not covered.
package sandbox

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
)

// Modes.
const (
	Auto   = "auto"   // what the machine can do
	Off    = "off"    // no_new_privs alone
	Strict = "strict" // no engine starts where a measure is missing
)

// Measures, in the order of reports.
const (
	NoNewPrivs   = "no_new_privs"
	User         = "user"         // a user of their own, where the runner is root
	Capabilities = "capabilities" // none
	Files        = "files"        // the model's, the program's and the system's
	Network      = "network"      // none but the port that the engine listens on
	Signals      = "signals"      // only to itself
	Syscalls     = "syscalls"     // not those that only attacks use
	Memory       = "memory"       // limit by control group
	Pids         = "pids"         // limit by control group
	CoreDumps    = "core_dumps"   // off
)

var measures = []string{NoNewPrivs, User, Capabilities, Files, Network, Signals, Syscalls, Memory, Pids, CoreDumps}

// ErrMissing refuses an engine in strict mode.
var ErrMissing = errors.New("this machine cannot sandbox engines as --sandbox strict demands")

// Config configures a [Sandbox].
type Config struct {
	Mode string // Auto, Off or Strict
	// User is an account name, or UID or UID:GID, for all engines of a runner that is root. When empty, engines whose
	// files a user of their own can read get one: the account "reveille-engine", else user and group 60978.
	User    string
	Memory  int64        // most bytes one engine may use; 0 is no limit
	Private []string     // folders whose content no engine may see, such as the runner's state folder
	Log     *slog.Logger // hears of engines that get less than the report says; required
}

// A Jail is what one engine may do beyond what all may. The zero value allows the least.
type Jail struct {
	Program   string   // absolute path
	Read      []string // files and folders to read
	Write     []string // files and folders to change; missing ones are left out
	Libraries []string // folders of shared libraries
	Sockets   []string // unix sockets to connect to; they are given to the engine's user
	Dir       string   // private folder, given to the engine's user
	Port      int      // TCP port to listen on, 0 for none
	OpenFiles bool     // no restriction of files, and no user of its own unless Config.User names one
	OpenNet   bool     // no restriction of the network
	Memory    int64    // most bytes where that is less than Config.Memory, 0 for that alone
	Pids      int      // most processes and threads; DefaultPids when 0
}

// DefaultPids is the most processes and threads of an engine: room for the thread pools of large machines.
const DefaultPids = 4096

// A Report says which measures hold on this machine.
type Report struct {
	Mode    string            `json:"mode"`
	On      []string          `json:"on"`
	Missing map[string]string `json:"missing,omitempty"` // measure to reason
}

// newReport divides the measures; those not in missing are on.
func newReport(mode string, missing map[string]string) Report {
	r := Report{Mode: mode, On: []string{}, Missing: missing}
	for _, m := range measures {
		if _, no := missing[m]; !no {
			r.On = append(r.On, m)
		}
	}
	return r
}

// allMissing reports every measure but those named as missing for one reason.
func allMissing(reason string, but ...string) map[string]string {
	out := map[string]string{}
	for _, m := range measures {
		if !slices.Contains(but, m) {
			out[m] = reason
		}
	}
	return out
}

// Check returns an error that wraps [ErrMissing] when the mode is strict and a measure is missing.
func (r Report) Check() error {
	if r.Mode != Strict || len(r.Missing) == 0 {
		return nil
	}
	var list []string
	for _, m := range slices.Sorted(maps.Keys(r.Missing)) {
		list = append(list, m+" ("+r.Missing[m]+")")
	}
	return fmt.Errorf("%w: missing: %s", ErrMissing, strings.Join(list, ", "))
}
