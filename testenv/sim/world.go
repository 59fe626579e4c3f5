package sim

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"

	"reveille/infra/catalog"
	"reveille/infra/policy"
	"reveille/infra/state"
	"reveille/testenv/check"
)

// Times of every pool of the simulator, shorter than the real ones where nothing depends on it.
const (
	hold         = 60 * time.Second
	reserve      = 5 * time.Second
	fairAfter    = 2 * time.Second
	drainTimeout = 8 * time.Second
	clearTimeout = 40 * time.Second
	callTimeout  = 150 * time.Millisecond
)

// Times of the warmer.
const (
	wakeLimit   = 25 * time.Second // of gateways, too
	orphanAfter = 20 * time.Second
	forgetAfter = 45 * time.Second
	confirm     = 3 * time.Second
	powerCall   = 6 * time.Second
)

const prefix = "rv:{main}:"

// world is one pool while a scenario runs.
type world struct {
	scenario Scenario
	redis    *miniredis.Miniredis
	scripts  *scripts
	operator *state.Store // never disturbed
	opLink   *link
	began    time.Time
	orders   *orders
	gateways []*gateway
	runners  []*runner
	warmer   *warmer
	group    *scalingGroup // of which all hosts are slots; nil: each is a machine of its own
	clients  sync.WaitGroup
	work     sync.WaitGroup
	ending   bool // guarded by mu: what ends now does not come back

	mu       sync.Mutex
	catalog  *catalog.Catalog
	edits    map[string]int // of the entries of models
	step     int
	history  []check.Event
	checker  *check.Checker
	pids     int
	serials  map[string]int
	requests int
	offset   time.Duration // of Redis' clock
	refusing bool          // Redis is out of memory
	remember bool          // there is a state to go back to
	parts    map[[2]int]bool
	keys     *keys // at the last look; nil when Redis was thrown back since
}

func newWorld(s Scenario) (*world, error) {
	cat, err := makeCatalog(s, nil)
	if err != nil {
		return nil, err
	}
	w := &world{
		scenario: s, catalog: cat, edits: map[string]int{}, redis: miniredis.NewMiniRedis(), began: time.Now(), orders: &orders{fail: map[[2]string][]error{}},
		serials: map[string]int{}, parts: map[[2]int]bool{},
	}
	cards := map[string]policy.GPUMemory{}
	limits, budgets, named := map[string]policy.Limits{}, map[string]int64{}, map[string]bool{}
	for i, h := range s.Hosts {
		if limits[s.hostName(i+1)], err = policy.ParseLimits(h.Limits); err != nil {
			return nil, err
		}
		budgets[s.hostName(i+1)] = int64(h.Budget) << 20
		if gpus, _ := cardsOf(h); gpus != nil {
			cards[s.hostName(i+1)] = gpus
			for _, n := range gpus {
				budgets[s.hostName(i+1)] += n
			}
		}
		named[s.hostName(i+1)] = !h.Strange
	}
	w.checker = check.New(check.World{
		Models: checked(cat), Limits: limits, Budgets: budgets, Cards: cards, Reserve: reserve, FairAfter: fairAfter, Clear: clearTimeout, Lease: state.WaiterLease, Catalogue: named,
		Sweep: s.Sweep, WakeLimit: s.wakeLimit(), ForgetAfter: forgetAfter,
	})
	w.warmer = &warmer{w: w, sweeps: map[int]context.CancelFunc{}}
	w.redis.ClockTTL(true)
	if c, err := w.redis.Dial(); err != nil { // starts the server
		return nil, err
	} else {
		_ = c.Close()
	}
	w.scripts = newScripts(w.redis.Server())
	w.redis.Server().SetPreHook(w.before)
	w.opLink = newLink(w.redis.Dial, true)
	if w.operator, err = w.store(w.opLink); err != nil {
		return nil, err
	}
	for i := range s.Gateways {
		w.gateways = append(w.gateways, newGateway(w, i+1))
	}
	if s.Group {
		w.group = newScalingGroup(w)
	}
	for i, h := range s.Hosts {
		w.runners = append(w.runners, newRunner(w, i+1, h, limits[s.hostName(i+1)]))
	}
	return w, nil
}

// hold is the longest wait for a model, and wakeLimit that for a runner whose host was woken.
func (s Scenario) hold() time.Duration      { return hold + 2*s.Copies.Wake }
func (s Scenario) wakeLimit() time.Duration { return wakeLimit + s.Copies.Wake }

// before runs before each command of Redis: it runs scripts at the scenario's clock, and refuses them while Redis is
// out of memory.
func (w *world) before(c *server.Peer, cmd string, args ...string) bool {
	if cmd != "EVALSHA" && cmd != "EVAL" {
		return false
	}
	w.mu.Lock()
	now, refusing := time.Now().Add(w.offset), w.refusing
	w.mu.Unlock()
	if refusing {
		c.WriteError("OOM command not allowed when used memory > 'maxmemory'.")
		return true
	}
	w.redis.SetTime(now)
	w.scripts.eval(c, now, cmd, args, func(refusal string, effects uint64) {
		w.record(check.Event{Kind: check.Declined, Text: refusal, Value: effects})
	})
	return true
}

func (w *world) store(l *link) (*state.Store, error) {
	return state.Open(state.Options{URL: "redis://127.0.0.1:6379", Timeout: callTimeout, Dial: l.Dial})
}

// record adds an event to the history.
func (w *world) record(e check.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e.Step, e.At = w.step, time.Since(w.began)
	w.history = append(w.history, e)
	w.checker.Add(e)
}

func (w *world) disturb(d time.Duration, what string) {
	w.record(check.Event{Kind: check.Disturbed, For: d, Text: what})
}

func (w *world) broken() []check.Violation {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.checker.Violations()
}

// calm reports whether promises for quiet times are in force.
func (w *world) calm() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.checker.Calm()
}

func (w *world) nextPID() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pids++
	return w.pids
}

// serial counts the uses of a name.
func (w *world) serial(name string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.serials[name]++
	return strconv.Itoa(w.serials[name])
}

// models is the catalog as it is now.
func (w *world) models() *catalog.Catalog {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.catalog
}

func (w *world) isEnding() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ending
}

// parted reports whether a gateway cannot reach a host.
func (w *world) parted(gateway, host int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.parts[[2]int{gateway, host}]
}

// runnerOf is the runner whose life has these engines, nil when that is over.
func (w *world) runnerOf(e *engines) *runner {
	for _, r := range w.runners {
		if life := r.current(); life != nil && life.engines == e {
			return r
		}
	}
	return nil
}

func (w *world) runner(addr string) *runner {
	for _, r := range w.runners {
		if r.addr == addr {
			return r
		}
	}
	return nil
}

// queue is what is queued on a host.
func (w *world) queue(host string) []check.Ticket {
	ids, _ := w.redis.List(prefix + "queue:" + host)
	w.mu.Lock()
	now := float64(time.Now().Add(w.offset).UnixMilli())
	w.mu.Unlock()
	out := make([]check.Ticket, 0, len(ids))
	for _, id := range ids {
		key := prefix + "ticket:" + id
		t := check.Ticket{ID: id, Model: w.redis.HGet(key, "model"), Load: w.redis.HGet(key, "kind") == "load", Wanted: w.redis.HGet(key, "background") == "1"}
		t.Passed, _ = strconv.Atoi(w.redis.HGet(key, "passed"))
		waiters, _ := w.redis.SortedSet(prefix + "waiters:" + id)
		for _, until := range waiters {
			t.Wanted = t.Wanted || until >= now
		}
		if t.Model != "" {
			out = append(out, t)
		}
	}
	return out
}

// account is a host by its runner's own word.
func (w *world) account(r *runner) *check.View {
	life := r.current()
	if life == nil {
		return &check.View{}
	}
	v := life.host.View()
	out := &check.View{Loading: v.Loading}
	for _, m := range v.Models {
		out.Residents = append(out.Residents, check.Resident{
			Model: m.ID, PID: m.PID, State: policy.ModelState(m.State), InFlight: m.InFlight, Reserved: m.Reserved > 0, Closed: m.Closed, Used: m.Used.Sub(w.began),
		})
	}
	return out
}

// loading is a host's load under way by its runner's own word.
func (w *world) loading(l *life) *check.View { return &check.View{Loading: l.host.View().Loading} }

// sample records all hosts as they are. Nothing may be running.
func (w *world) sample() {
	for _, r := range w.runners {
		v := w.account(r)
		life := r.current()
		v.State, v.Power = policy.HostState(w.redis.HGet(prefix+"host:"+r.name, "state")), r.machine.is()
		v.Ready = life != nil && life.ready() && v.State == policy.Ready
		v.Queue = w.queue(r.name)
		models, _ := w.redis.SMembers(prefix + "models:" + r.name)
		for _, m := range models {
			key := prefix + "model:" + r.name + ":" + m
			pid, _ := strconv.Atoi(w.redis.HGet(key, "pid"))
			v.Records = append(v.Records, check.Record{Model: m, State: w.redis.HGet(key, "state"), PID: pid})
		}
		w.record(check.Event{Kind: check.Sample, Host: r.name, View: v})
	}
}
