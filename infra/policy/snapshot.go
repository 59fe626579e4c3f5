package policy

import "time"

// HostState is where a host is in its life.
type HostState string

// The states of a host. A host whose heartbeat is missing is Lost, whatever was written last.
const (
	Asleep   HostState = "asleep"
	Waking   HostState = "waking"
	Ready    HostState = "ready"
	Draining HostState = "draining"
	Lost     HostState = "lost"
)

// ModelState is where a model is on one host. A model without a record is unloaded.
type ModelState string

// The states of a model on a host.
const (
	ModelLoading  ModelState = "loading"
	ModelLoaded   ModelState = "loaded"
	ModelDraining ModelState = "draining"
)

// Model is what a decision needs to know of a catalogue entry.
type Model struct {
	ID      string
	Type    Type
	Devices Devices
	Pinned  bool
	Memory  int64         // bytes it needs on its device, 0 when unknown (then it counts as nothing)
	GPUs    GPUs          // which GPUs of a host with Cards it may use
	Hosts   []string      // names or labels in the order to try; empty: any host that has the devices
	Max     int           // most copies in the pool; values under 1 count as 1
	Idle    time.Duration // time without traffic after which it goes; under 0 never, 0 the sweep's default

	// On says by host what the model takes there, where that differs from Devices, Memory and GPUs: its options may select
	// another device, and its runner may know what it needs.
	On map[string]Need
	// Refused holds by host the refusals that runners gave of this very load: those hosts are not asked again.
	Refused map[string]*Refusal
}

// Need is what a model takes of a host.
type Need struct {
	Devices Devices
	Memory  int64 // bytes on each of the devices, 0 when unknown
	GPUs    GPUs
}

// on is the model as it would be on a host.
func (m Model) on(host string) Model {
	if n, ok := m.On[host]; ok {
		m.Devices, m.Memory, m.GPUs = n.Devices, n.Memory, n.GPUs
	}
	return m
}

// Resident is a model that holds a slot on a host: it is loading, loaded or draining.
type Resident struct {
	ID       string
	Type     Type
	Devices  Devices
	State    ModelState
	Pinned   bool
	InFlight int       // requests the runner counts as open
	Reserved bool      // loaded for a request that has not been served yet (rule 7)
	Closed   bool      // takes no new request: a load waits for its slot (rule 4)
	Used     time.Time // last use: start or end of a load or an inference
	Memory   int64     // bytes
	Cards    Cards     // of Memory on each GPU; nil: on all of the host's by their size
	Idle     time.Duration
	Value    float64 // what sparing it is worth, see Eviction.Value; 0 for all under LRU
}

// Busy reports whether r must not be stopped now: it serves, is owed to a request, or is in the middle of a load.
func (r Resident) Busy() bool {
	return r.InFlight > 0 || r.Reserved || r.State == ModelLoading
}

// Ticket is a queued load as a decision sees it.
type Ticket struct {
	ID        string
	Model     Model
	Since     time.Time // when it came to the head of what it waits for; zero when it never waited
	Overtaken int       // later loads that went before it
}

// Host is one host of the pool.
type Host struct {
	Name      string
	Labels    []string
	State     HostState
	Devices   Devices           // 0 when nobody knows yet: then it may have any
	Limits    Limits            // zero when the host never registered
	Budget    map[Devices]int64 // bytes per single device; a device without an entry, or with one under 1, has no limit
	Cards     Cards             // bytes of each GPU, whose sum is the GPU's Budget; nil: its GPUs count as one
	NPUSeats  map[Type]int      // empty: one NPU model on the host; else this many of each type
	Residents []Resident
	Queue     []Ticket // loads not begun, in order
	Chores    []string // models of tickets that are no loads: unloads and pulls of weights
	Loading   string   // model whose load is under way, "" when none
	Active    time.Time
	UpSince   time.Time
	InFlight  int // open requests over all models
	Leases    int // wake duties and reservations that hold the host awake
}

// Snapshot is the pool at one time.
type Snapshot struct {
	Now   time.Time // the state store's clock when the snapshot was taken
	Hosts []Host

	// Spread has models choose among so many equally good hosts, those that are first by name: gateways that decide at once would
	// all choose the first. 0 and 1: the first.
	Spread int
}
