package check

import (
	"fmt"
	"strings"
	"time"

	"reveille/infra/policy"
)

// Checker follows a history. It is not safe for concurrent use.
type Checker struct {
	world      World
	violations []Violation
	now        Event

	engines  map[int]*engine
	requests map[string]*request
	hosts    map[string]*hostLog
	wants    map[string]*want // by model
	paid     map[grant]bool   // places that were claimed, by the first request of each
	quiet    time.Duration    // from then on nothing is wrong
	sound    time.Duration    // the same, but for gateways that die, whose leases end by themselves
	skewed   time.Duration    // until then leases may end late, as the clock of Redis jumped
	failed   map[string]time.Duration
	unwoken  time.Duration // when a wake failed last
	still    time.Duration // since when a request waits in a pool that does nothing; -1 not

	judged    map[int]*tally
	disturbed bool // something was wrong
}

type engine struct {
	host, model string
	pid         int
	cards       policy.GPUMemory // what it takes of GPUs
	ticket      string
	state       engineState
	closed      bool // was seen shut at some time
	died        bool
	open        map[string]bool // requests
	lastUse     time.Duration
	exited      time.Duration
	queue       map[string]*request // let to it, and not yet computed
	turns       []turn              // those that were computed while others waited
}

// turn is the beginning of a request's computation.
type turn struct {
	at       time.Duration
	priority uint64
}

type engineState int

const (
	spawning engineState = iota
	ready
	stopping
	gone
)

type request struct {
	gateway, model string
	ticket, host   string // of its grant
	asked          time.Duration
	deadline       time.Duration
	entered        time.Duration // when its runner let it to its engine
	background     bool
	explicit       bool // a background load with a ticket of its own
	onlyLoaded     bool // it only takes a loaded model, and is no use of that
	priority       uint64
	ahead          int  // requests that waited at its engine when it came there, and itself
	answered       bool // the first byte of its response was sent
	repeated       bool // its first engine died with it
	pid            int  // engine it was let to, 0 none
	open           bool
	cut            bool
	outcome        string
}

type grant struct{ ticket, gateway, host string }

// hostLog is what is remembered of a host.
type hostLog struct {
	up, stops  bool
	registered bool // in this life of its runner, and since Redis was last thrown back
	generation uint64
	attempts   map[attempt]int // starts, in this life of its runner
	fatal      map[string]bool // tickets whose file was not found
	overtaken  map[string]int  // by ticket
	// overtakenByType counts those of the same type.
	overtakenByType map[string]int
	heads           map[string]headOf // by type
	stuck           time.Duration     // since when a load could start and does not; -1 not
	unloads         map[string]time.Duration
	edits           map[string]time.Duration
	onlyIdle        map[string]time.Duration // the least of those asked for since the model was started
	failedNow       bool                     // the load under way has failed once
	clears          string                   // model whose start failed last, for which the host may be cleared; "" once another starts
	unknown         bool                     // Redis lost what it knew of the host while that was not up: its machine may run
	loading         string                   // model whose load is under way
	began           time.Duration            // when that was first seen
	idle            bool                     // nothing is under way on it

	// Since when something is so, -1 not.
	unwoken time.Duration // it is wanted and its machine is off
	costs   time.Duration // its machine runs and it does not serve
	known   time.Duration // it is gone and the pool knows it
}

// attempt is a load. A Redis that was thrown back may give a number twice until the runners have said what they know.
type attempt struct{ ticket, model string }

type headOf struct {
	ticket string
	model  string
	since  time.Duration
}

// want is who wants a model loaded.
type want struct {
	waiting    map[string]bool
	last       time.Duration // when the last one went
	background int           // loads without a waiter that may be queued
	explicit   int           // loads with tickets of their own that may be queued
	since      time.Duration // when the first of those was asked for
}

// New makes a checker.
func New(w World) *Checker {
	return &Checker{
		world: w, engines: map[int]*engine{}, requests: map[string]*request{}, hosts: map[string]*hostLog{}, wants: map[string]*want{},
		paid: map[grant]bool{}, failed: map[string]time.Duration{}, unwoken: -time.Hour, still: -1, judged: map[int]*tally{},
	}
}

// Check reads a whole history.
func Check(w World, history []Event) []Violation {
	c := New(w)
	for _, e := range history {
		c.Add(e)
	}
	return c.Violations()
}

// Violations are those found so far, in order.
func (c *Checker) Violations() []Violation { return c.violations }

func (c *Checker) broken(invariant int, format string, args ...any) {
	c.violations = append(c.violations, Violation{Invariant: invariant, Step: c.now.Step, At: c.now.At, Message: fmt.Sprintf(format, args...)})
}

// Calm reports whether promises for quiet times are in force.
func (c *Checker) Calm() bool { return c.now.At >= c.quiet }

// Add reads the next event.
func (c *Checker) Add(e Event) {
	c.now = e
	switch e.Kind {
	case HostUp:
		old := c.host(e.Host)
		h := newHostLog()
		h.up, h.generation, h.edits, h.known = true, old.generation, old.edits, old.known
		c.hosts[e.Host] = h
	case HostStops:
		c.host(e.Host).stops = true
	case HostDown:
		c.host(e.Host).up = false
	case Registered:
		h := c.host(e.Host)
		if h.generation > 0 {
			c.judge(17)
		}
		if e.Value <= h.generation {
			c.broken(17, "host %s got generation %d after %d", e.Host, e.Value, h.generation)
		}
		h.generation, h.registered = max(h.generation, e.Value), true
	case Spawn:
		c.spawn(e)
	case Ready, Failed, StopBegin, Died, Exit:
		if en := c.engines[e.PID]; en != nil {
			c.engine(en, e)
		}
	case Unload:
		h := c.host(e.Host)
		if e.For > 0 {
			if least, asked := h.onlyIdle[e.Model]; !asked || e.For < least {
				h.onlyIdle[e.Model] = e.For
			}
		} else {
			h.unloads[e.Model] = e.At
		}
	case Edited:
		for name := range c.world.Limits {
			c.host(name).edits[e.Model] = e.At
		}
	case PowerOff:
		c.turnedOff(e)
	case WakeFailed:
		c.unwoken = e.At
	case Forgotten:
		c.forgotten(c.host(e.Host), e)
	case Mended:
		whole := max(e.At+e.For, c.skewed)
		c.quiet, c.sound = min(c.quiet, whole), min(c.sound, whole)
	case Disturbed:
		c.disturbed = true
		c.quiet = max(c.quiet, e.At+e.For)
		if e.Text == "clock" {
			c.skewed = max(c.skewed, e.At+e.For)
		}
		if !strings.HasPrefix(e.Text, "gate-") {
			c.sound = max(c.sound, e.At+e.For)
		}
	case Restored:
		for m := range c.world.Models {
			c.want(m).background++
		}
		for _, h := range c.hosts {
			h.unknown, h.registered = h.unknown || !h.up, false
			h.attempts, h.overtaken, h.overtakenByType, h.fatal = map[attempt]int{}, map[string]int{}, map[string]int{}, map[string]bool{}
		}
	case GatewayEnd:
		for id, r := range c.requests {
			if r.gateway == e.Gateway {
				c.unwant(id, r)
			}
		}
	case Sample:
		c.sample(e)
	case Keys:
		c.judge(30)
		if e.Text != "" {
			c.broken(30, "%s", e.Text)
		}
	case Declined:
		c.judge(26)
		if e.Value > 0 {
			c.broken(26, "a script that answered %q changed %d things", e.Text, e.Value)
		}
	default:
		c.request(e)
	}
}

func newHostLog() *hostLog {
	return &hostLog{
		attempts: map[attempt]int{}, fatal: map[string]bool{}, overtaken: map[string]int{}, overtakenByType: map[string]int{}, heads: map[string]headOf{}, stuck: -1, unwoken: -1, costs: -1, known: -1,
		unloads: map[string]time.Duration{}, edits: map[string]time.Duration{}, onlyIdle: map[string]time.Duration{},
	}
}

// lately is how long an unload or an edit may have its effects.
const lately = 5 * time.Minute

// unloaded reports whether somebody asked lately for the model to be unloaded there.
func (h *hostLog) unloaded(model string, now time.Duration) bool {
	at, asked := h.unloads[model]
	return asked && now-at < lately
}

// dismissed reports whether the model may go there although no other needs its place: for an unload, idleness or an edit.
func (h *hostLog) dismissed(model string, now time.Duration) bool {
	_, idle := h.onlyIdle[model]
	at, edited := h.edits[model]
	return idle || h.unloaded(model, now) || edited && now-at < lately
}

func (c *Checker) host(name string) *hostLog {
	h := c.hosts[name]
	if h == nil {
		h = newHostLog()
		c.hosts[name] = h
	}
	return h
}

func (c *Checker) want(model string) *want {
	w := c.wants[model]
	if w == nil {
		w = &want{waiting: map[string]bool{}, last: -time.Hour}
		c.wants[model] = w
	}
	return w
}

// unwant notes that a request does not wait any more.
func (c *Checker) unwant(id string, r *request) {
	w := c.want(r.model)
	if w.waiting[id] {
		delete(w.waiting, id)
		w.last = c.now.At
	}
}

func (c *Checker) typeOf(model string) policy.Type { return c.world.Models[model].Type }

// alive lists the engines of a host whose process is there; "" for all hosts.
func (c *Checker) alive(host string, match func(*engine) bool) []*engine {
	var out []*engine
	for _, en := range c.engines {
		if en.state != gone && (host == "" || en.host == host) && match(en) {
			out = append(out, en)
		}
	}
	return out
}
