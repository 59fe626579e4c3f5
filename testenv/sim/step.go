package sim

import (
	"bufio"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Op is what a step does.
type Op string

// The operations, with the arguments they read besides After. Gateways and hosts count from 1.
const (
	Request   Op = "request"    // Gateway, Model, N requests, For (longest wait), Serve, Leave (0: stays)
	Start     Op = "background" // Gateway, Model: a load that nobody waits for
	Unload    Op = "unload"     // Gateway, Model, N=1: by force
	Idle      Op = "idle"       // Model, For: unload wherever it was not used for that long
	Reload    Op = "reload"     // Gateway, Model, N: load with these options
	Edit      Op = "edit"       // Model: its catalog entry changes
	Die       Op = "die"        // Host, Model: its engine dies
	Fail      Op = "fail"       // Host, Model, N: so many next starts fail
	Missing   Op = "missing"    // Host, Model, N: the same, file not found
	Crash     Op = "crash"      // Host, For: its runner dies with all engines, and comes back
	Stop      Op = "stop"       // Host, For: its runner stops in order, and comes back
	GateCrash Op = "gate-crash" // Gateway, For
	GateStop  Op = "gate-stop"  // Gateway, For
	Cut       Op = "cut"        // Gateway or Host, For: no way to Redis
	Stall     Op = "stall"      // Gateway or Host, For: what is sent either way waits
	Lose      Op = "lose"       // Gateway or Host, N replies of Redis, after Skip others
	Slow      Op = "slow"       // Gateway, For (latency)
	Garble    Op = "garble"     // Gateway or Host: events are lost, doubled and out of order
	Part      Op = "part"       // Gateway, Host, For: no way from one to the other
	Flush     Op = "flush"      // Redis loses everything
	Remember  Op = "remember"   // what a replica has
	Failover  Op = "failover"   // Redis as it was remembered; all connections end
	Refuse    Op = "refuse"     // For: Redis is out of memory
	Clock     Op = "clock"      // For: Redis' clock jumps
	NoWake    Op = "no-wake"    // Host, N: so many wakes fail
	Deaf      Op = "deaf"       // Host, N: so many boots bring no runner
	Ignore    Op = "ignore"     // Host, N: so many sleeps are accepted and have no effect
	Linger    Op = "linger"     // Host, For: its machine takes that much longer to go off, once
	Sleep     Op = "sleep"      // Gateway, Host, N=1: by force; an operator puts it to sleep
	Wake      Op = "wake"       // Gateway, Host: an operator wakes it
	SweepEnd  Op = "sweep-end"  // N=1: without a word; the sweeps under way end
	SweepLose Op = "sweep-lose" // N replies of Redis, after Skip others: the warmer's
	Reclaim   Op = "reclaim"    // Host: its machine, of a group, is given notice, and gone two minutes later
	Depart    Op = "depart"     // Host, For: crash, 0: for good; of a host that the catalog does not name
	Mend      Op = "mend"       // all that is wrong is over
	Rest      Op = "rest"       // nothing but After
)

// Step is one step of a scenario; After is how long the pool then runs on by itself.
type Step struct {
	Op      Op
	Gateway int
	Host    int
	Model   int // index into Scenario.Models
	N       int
	Skip    int
	For     time.Duration
	Serve   time.Duration
	Leave   time.Duration
	After   time.Duration
}

// String is the step as Parse reads it.
func (s Step) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-10s", s.Op)
	number := func(name string, n int) {
		if n != 0 {
			fmt.Fprintf(&b, " %s=%d", name, n)
		}
	}
	length := func(name string, d time.Duration) {
		if d != 0 {
			fmt.Fprintf(&b, " %s=%v", name, d)
		}
	}
	number("gateway", s.Gateway)
	number("host", s.Host)
	if s.Model > 0 {
		fmt.Fprintf(&b, " model=%s", modelNames[s.Model-1])
	}
	number("n", s.N)
	number("skip", s.Skip)
	length("for", s.For)
	length("serve", s.Serve)
	length("leave", s.Leave)
	length("after", s.After)
	return strings.TrimRight(b.String(), " ")
}

// HostSpec is one host of a scenario.
type HostSpec struct {
	Limits  string // as --max-loaded-models
	Asleep  bool   // its runner is started by the first wake
	Budget  int    // MiB for models on its CPU, 0 no limit
	GPUs    string // GiB of each, "24,48"; scenarios in which a host has some have the models of sized, and no others
	Strange bool   // it registers by itself: the catalog does not name it, and nobody can turn it on or off
}

// Copies says how many copies the models of cpu alone may have, and how long waits are in a pool where that matters.
// The zero value is one copy, whose engine serves any number of requests at a time.
type Copies struct {
	Max      int
	Parallel int           // requests that an engine serves at a time; the others wait for their turn
	Wake     time.Duration // from a machine's wake to its runner; 0: short
}

// Scenario is a pool and what befalls it. Everything the run needs is in it.
type Scenario struct {
	Seed     uint64 // of the engines' and clients' own choices
	Gateways int
	Hosts    []HostSpec
	Sweep    time.Duration // between two sweeps of the warmer, 0 for none
	Idle     time.Duration // after which sweeps let models go and hosts sleep
	Copies   Copies
	Group    bool // all hosts are slots of one group of machines
	// Priorities gives some requests a priority other than normal.
	Priorities bool
	MinLoaded  time.Duration // of all models; the checker then expects no load to start soon
	Steps      []Step
}

// String is the scenario as a file.
func (s Scenario) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d\ngateways %d\n", s.Seed, s.Gateways)
	if s.Sweep > 0 {
		fmt.Fprintf(&b, "sweep %v idle=%v\n", s.Sweep, s.Idle)
	}
	if c := s.Copies; c.Max > 0 {
		fmt.Fprintf(&b, "copies %d parallel=%d wake=%v\n", c.Max, c.Parallel, c.Wake)
	}
	if s.Group {
		b.WriteString("group\n")
	}
	if s.Priorities {
		b.WriteString("priorities\n")
	}
	if s.MinLoaded > 0 {
		fmt.Fprintf(&b, "min_loaded %v\n", s.MinLoaded)
	}
	for _, h := range s.Hosts {
		word, budget := "host", ""
		switch {
		case h.Asleep:
			word = "asleep"
		case h.Strange:
			word = "strange"
		}
		if h.Budget > 0 {
			budget = fmt.Sprintf(" budget=%d", h.Budget)
		}
		if h.GPUs != "" {
			budget = " gpus=" + h.GPUs
		}
		fmt.Fprintf(&b, "%s %s%s\n", word, h.Limits, budget)
	}
	for _, st := range s.Steps {
		fmt.Fprintln(&b, st)
	}
	return b.String()
}

// Parse reads a scenario; empty lines and lines that begin with # do not count.
func Parse(text string) (Scenario, error) {
	var s Scenario
	lines := bufio.NewScanner(strings.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		if err := s.line(line); err != nil {
			return s, fmt.Errorf("line %d: %w", n, err)
		}
	}
	return s, lines.Err()
}

func (s *Scenario) line(line string) (err error) {
	word, rest, _ := strings.Cut(line, " ")
	rest = strings.TrimSpace(rest)
	switch word {
	case "seed":
		s.Seed, err = strconv.ParseUint(rest, 10, 64)
	case "gateways":
		s.Gateways, err = strconv.Atoi(rest)
	case "sweep":
		every, idle, _ := strings.Cut(rest, " idle=")
		if s.Sweep, err = time.ParseDuration(every); err == nil {
			s.Idle, err = time.ParseDuration(idle)
		}
	case "group":
		s.Group = true
	case "priorities":
		s.Priorities = true
	case "min_loaded":
		s.MinLoaded, err = time.ParseDuration(rest)
	case "copies":
		var wake string
		if _, err = fmt.Sscanf(rest, "%d parallel=%d wake=%s", &s.Copies.Max, &s.Copies.Parallel, &wake); err == nil {
			s.Copies.Wake, err = time.ParseDuration(wake)
		}
	case "host", "asleep", "strange":
		limits, gpus, _ := strings.Cut(rest, " gpus=")
		limits, budget, said := strings.Cut(limits, " budget=")
		h := HostSpec{Limits: limits, GPUs: gpus, Asleep: word == "asleep", Strange: word == "strange"}
		for text := range strings.SplitSeq(gpus, ",") {
			if _, bad := strconv.ParseUint(text, 10, 15); bad != nil && gpus != "" {
				return bad
			}
		}
		if said {
			h.Budget, err = strconv.Atoi(budget)
		}
		s.Hosts = append(s.Hosts, h)
	default:
		var st Step
		if st, err = parseStep(Op(word), rest); err == nil {
			s.Steps = append(s.Steps, st)
		}
	}
	return err
}

func parseStep(op Op, rest string) (Step, error) {
	st := Step{Op: op}
	numbers := map[string]*int{"gateway": &st.Gateway, "host": &st.Host, "n": &st.N, "skip": &st.Skip}
	lengths := map[string]*time.Duration{"for": &st.For, "serve": &st.Serve, "leave": &st.Leave, "after": &st.After}
	for f := range strings.FieldsSeq(rest) {
		name, value, _ := strings.Cut(f, "=")
		var err error
		switch {
		case numbers[name] != nil:
			*numbers[name], err = strconv.Atoi(value)
		case lengths[name] != nil:
			*lengths[name], err = time.ParseDuration(value)
		case name == "model":
			if st.Model = modelIndex(value); st.Model == 0 {
				err = fmt.Errorf("unknown model %q", value)
			}
		default:
			err = fmt.Errorf("unknown argument %q", name)
		}
		if err != nil {
			return st, err
		}
	}
	if _, known := operations[op]; !known {
		return st, fmt.Errorf("unknown step %q", op)
	}
	return st, nil
}
