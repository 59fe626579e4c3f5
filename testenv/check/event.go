package check

import (
	"fmt"
	"strings"
	"time"

	"reveille/infra/policy"
	"reveille/infra/power"
)

// Kind is what happened.
type Kind string

// The kinds of event, with the fields that count besides Step and At.
const (
	HostUp     Kind = "host-up"     // Host: its runner started
	HostStops  Kind = "host-stops"  // Host: its runner begins to stop in order
	HostDown   Kind = "host-down"   // Host: its runner ended, its engines are dead or about to die
	Registered Kind = "registered"  // Host, Value: the generation it got
	Spawn      Kind = "spawn"       // Host, Model, PID, Ticket ("" unknown), View with Queue: a process starts; Text "explicit": for a ticket of its own
	Ready      Kind = "ready"       // PID: it serves
	Failed     Kind = "load-failed" // PID, Text: the start failed, the process is gone; "file" for a file not found
	StopBegin  Kind = "stop-begin"  // PID, View with Residents: its runner begins to stop it
	Exit       Kind = "exit"        // PID: the process is gone, however
	Died       Kind = "died"        // PID: it ended by itself; an Exit follows
	Ask        Kind = "ask"         // Request, Gateway, Model, For (longest wait): a request comes; Value: its priority, 0 the highest; Text "loaded" only takes a loaded model, "background" waits not, "explicit" has a ticket of its own and an outcome "ok" once it was loaded
	Granted    Kind = "granted"     // Request, Host, Ticket: its gateway sends it there
	Refused    Kind = "refused"     // Request, Host, Text: the runner did not take it
	Enter      Kind = "enter"       // Request, PID, View with Loading: the runner let it to an engine
	Turn       Kind = "turn"        // Request: the engine computes it
	SentBack   Kind = "sent-back"   // Request: it waited for its turn at an engine, and its gateway is to send it elsewhere
	Cut        Kind = "cut"         // Request: the runner ends it early
	End        Kind = "end"         // Request: it has left the engine
	Repeat     Kind = "repeat"      // Request: its engine died, and it waits again
	Bytes      Kind = "bytes"       // Request: the first byte of its response is on its way to the client
	Outcome    Kind = "outcome"     // Request, Text: what the client got: "ok", "left", "reset" or a code
	Unload     Kind = "unload"      // Host, Model, For (only if idle that long, 0 in any case): somebody asked for it
	Edited     Kind = "edited"      // Model: its catalog entry changed
	GatewayEnd Kind = "gateway-end" // Gateway: it died
	PowerOff   Kind = "power-off"   // Host: its machine is told to go off
	WakeFailed Kind = "wake-failed" // Host: its machine is not turned on, or its runner does not come
	Forgotten  Kind = "forgotten"   // Host: the pool forgets it
	Disturbed  Kind = "disturbed"   // For, Text: until then promises for quiet times are suspended; "gate-…": leases end all the same
	Mended     Kind = "mended"      // For: all that was wrong is over, and promises for quiet times hold again after so long
	Restored   Kind = "restored"    // older or no state in Redis: what was over may come again
	Sample     Kind = "sample"      // Host, View: all of it
	Keys       Kind = "keys"        // Text: what is wrong with what Redis holds, "" for nothing
	Declined   Kind = "declined"    // Text, Value: a script answered with a refusal, having changed so much
)

// Event is one line of a history.
type Event struct {
	Step    int           // of the scenario, for people
	At      time.Duration // since the beginning
	Kind    Kind
	Host    string
	Model   string
	Gateway string
	Request string
	Ticket  string
	PID     int
	Cards   policy.GPUMemory // bytes on GPUs
	Value   uint64
	For     time.Duration
	Text    string
	View    *View
}

// String is the event on one line, without its view.
func (e Event) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%3d %9.3fs %-11s", e.Step, e.At.Seconds(), e.Kind)
	for _, f := range [...]struct{ name, value string }{
		{"host", e.Host}, {"model", e.Model}, {"gateway", e.Gateway}, {"request", e.Request}, {"ticket", e.Ticket}, {"text", e.Text},
	} {
		if f.value != "" {
			fmt.Fprintf(&b, " %s=%s", f.name, f.value)
		}
	}
	if e.PID != 0 {
		fmt.Fprintf(&b, " pid=%d", e.PID)
	}
	if e.Value != 0 {
		fmt.Fprintf(&b, " value=%d", e.Value)
	}
	if e.For != 0 {
		fmt.Fprintf(&b, " for=%v", e.For)
	}
	return b.String()
}

// View is a host at one moment.
type View struct {
	Ready     bool             // its runner runs and Redis holds it ready
	State     policy.HostState // as Redis holds it, "" for a host that it does not know
	Power     power.Power      // of its machine
	Loading   string           // model whose load is under way, by the runner's account
	Residents []Resident       // by the runner's account
	Queue     []Ticket         // what has not begun, in order, as Redis holds it
	Records   []Record         // as Redis holds them
}

// Resident is a model by its runner's account.
type Resident struct {
	Model    string
	PID      int
	State    policy.ModelState
	InFlight int
	Reserved bool
	Closed   bool
	Used     time.Duration // since the beginning
}

// Ticket is a queued load or unload.
type Ticket struct {
	ID     string
	Model  string
	Load   bool
	Wanted bool // somebody waits for it, or it is a background load
	Passed int  // loads of a higher priority that were queued before it
}

// Record is a model's record in Redis.
type Record struct {
	Model string
	State string
	PID   int
}

// Model is what the checker needs to know of a catalog entry.
type Model struct {
	Type   policy.Type
	NPU    bool
	Pinned bool
	Copies int   // that there may be, 0 counts as 1
	Memory int64 // bytes it needs, 0 none; NPU models need none
}

// World is what does not change in a history.
type World struct {
	Models    map[string]Model
	Limits    map[string]policy.Limits    // by host
	Budgets   map[string]int64            // bytes for models by host, 0 no limit
	Cards     map[string]policy.GPUMemory // bytes of its GPUs by host, which are together its budget; none where GPUs are not chosen
	Reserve   time.Duration               // how long a model waits for the requests it was loaded for
	FairAfter time.Duration
	Clear     time.Duration // how long a failed load waits for busy models before it is given up
	Lease     time.Duration // of a waiting gateway

	Catalogue   map[string]bool // hosts that it names, which can be turned on and off
	Sweep       time.Duration   // between two sweeps, 0 for none
	WakeLimit   time.Duration   // after which a wake has failed, and a lost host is turned off
	ForgetAfter time.Duration   // after which a host outside the catalog is forgotten
}

// Violation is a broken promise.
type Violation struct {
	Invariant int
	Step      int
	At        time.Duration
	Message   string
}

// Error is the violation in words.
func (v Violation) Error() string {
	return fmt.Sprintf("invariant %d broken at step %d (%.3fs): %s", v.Invariant, v.Step, v.At.Seconds(), v.Message)
}
