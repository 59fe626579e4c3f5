package policy

import "time"

// HostState is a host's state in its life cycle.
type HostState string

// The states of a host. A host whose heartbeat is missing is Lost, whatever was last written.
const (
	Asleep   HostState = "asleep"
	Waking   HostState = "waking"
	Ready    HostState = "ready"
	Draining HostState = "draining"
	Lost     HostState = "lost"
)

// ModelState is a model's state on one host. A model without a record is unloaded.
type ModelState string

// The states of a model on a host.
const (
	ModelLoading  ModelState = "loading"
	ModelLoaded   ModelState = "loaded"
	ModelDraining ModelState = "draining"
)

// Model is the part of a catalog entry that decisions need.
type Model struct {
	ID      string
	Type    Type
	Devices Devices
	Pinned  bool
	Memory  int64         // bytes that it needs on each of its devices; 0 if unknown, which counts as nothing
	Parts   string        // what Memory consists of, as text; "" if unknown
	GPUs    GPUConstraint // which GPUs of a host with GPUMemory it may use
	Hosts   []string      // names or labels in the order to try; empty: any host with the devices
	Max     int           // maximum number of copies in the pool; values under 1 count as 1
	Idle    time.Duration // how long it can be unused before it is unloaded; negative: never unloaded, 0: SweepSettings.Idle

	// NeedByHost has what the model takes on hosts where that differs from Devices, Memory and GPUs: its options may
	// select another device, and the runner may know its need.
	NeedByHost map[string]Need
	// TooLarge holds, by host, the runners' refusals of this load. Those hosts are not tried again.
	TooLarge map[string]*Refusal
	// Saved holds, by host, the number of tokens in the model's saved conversations there, which a load restores.
	Saved map[string]int64
}

// Need is what a model takes from a host.
type Need struct {
	Devices Devices
	Memory  int64 // bytes on each of the devices, 0 if unknown
	Parts   string
	GPUs    GPUConstraint
}

// forHost returns the model as it would be on a host.
func (m Model) forHost(host string) Model {
	if n, ok := m.NeedByHost[host]; ok {
		m.Devices, m.Memory, m.Parts, m.GPUs = n.Devices, n.Memory, n.Parts, n.GPUs
	}
	return m
}

// Resident is a model that holds a slot on a host: it is loading, loaded or stopping.
type Resident struct {
	ID        string
	Type      Type
	Devices   Devices
	State     ModelState
	Pinned    bool
	InFlight  int       // requests the runner counts as open
	Reserved  bool      // loaded for a request that has not been served yet (rule 7)
	Kept      bool      // its min_loaded is not over: it makes no room for other models
	Closed    bool      // takes no new requests: a load waits for its slot (rule 4), or the copy was replaced or refused one
	Used      time.Time // last use: start or end of a load or an inference
	Needed    time.Time // when its load ended, or more than half of the requests that it serves at a time were last open; later if another copy has just left as spare
	Retired   string    // the model of which it is an old copy that only finishes its requests; "" for none
	Memory    int64     // bytes
	GPUMemory GPUMemory // the part of Memory on each GPU; nil: spread over the host's GPUs in proportion to their sizes
	Idle      time.Duration
	Value     float64 // value of keeping it, see EvictionPolicy.Value; 0 for all under LRU
}

// Busy reports whether r must not be stopped now: it serves, is reserved for a request, is kept by its min_loaded, or is
// loading.
func (r Resident) Busy() bool {
	return r.InFlight > 0 || r.Reserved || r.Kept || r.State == ModelLoading
}

// Ticket is a queued load as input of a decision.
type Ticket struct {
	ID        string
	Model     Model
	Since     time.Time // when it first waited for models and not behind another ticket; zero if it never has
	Overtaken int       // number of later loads that overtook it
}

// Host is one host of the pool.
type Host struct {
	Name         string
	Labels       []string
	State        HostState
	Devices      Devices           // 0 while unknown, which allows any
	Limits       Limits            // zero if unknown
	Budget       map[Devices]int64 // bytes by kind of device; a kind without an entry, or with one under 1, has no limit
	GPUMemory    GPUMemory         // bytes of each GPU, whose sum is Budget[GPU]; nil: its GPUs count as one
	NPUSeats     map[Type]int      // empty: one NPU model on the host; else this many of each type
	Residents    []Resident
	Queue        []Ticket  // loads not started, in order
	OtherTickets []string  // models of tickets that are not loads: unloads and pulls of weights
	Loading      string    // model whose load is in progress, "" if none
	Active       time.Time // when it last had a request or a load
	UpSince      time.Time
	InFlight     int           // open requests over all models
	Idle         time.Duration // its own time without activity after which it sleeps; 0: SweepSettings.HostIdle
}

// Snapshot is the pool at one time.
type Snapshot struct {
	Now   time.Time // the state store's clock when the snapshot was taken
	Hosts []Host

	// Spread is the number of equally good hosts, the first by name, that a hash chooses among, so that gateways that
	// decide at the same time do not all choose the first. 0 counts as 1.
	Spread int
}
