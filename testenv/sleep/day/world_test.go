package day

import (
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"reveille/infra/policy"
)

// The pool's settings, those of a small deployment.
const (
	hosts      = 20
	models     = 50
	slots      = 2
	wakeTime   = 60 * time.Second
	stopTime   = 10 * time.Second
	modelIdle  = 10 * time.Minute
	hostIdle   = 15 * time.Minute
	hostMinUp  = 5 * time.Minute
	sweepEvery = time.Minute
	fairAfter  = 2 * time.Second
	overtakes  = 8
)

// epoch is when every simulation begins.
var epoch = time.Date(2026, 1, 5, 0, 0, 0, 0, time.UTC)

// event is something that happens at a moment.
type event struct {
	at    time.Time
	order int // among those of one moment
	do    func()
}

type agenda []event

func (a agenda) Len() int { return len(a) }
func (a agenda) Less(i, j int) bool {
	return a[i].at.Before(a[j].at) || a[i].at.Equal(a[j].at) && a[i].order < a[j].order
}
func (a agenda) Swap(i, j int) { a[i], a[j] = a[j], a[i] }
func (a *agenda) Push(x any)   { *a = append(*a, x.(event)) }
func (a *agenda) Pop() any {
	old := *a
	e := old[len(old)-1]
	*a = old[:len(old)-1]
	return e
}

// host is a machine with its runner.
type host struct {
	policy.Host
	price    float64
	woken    time.Time // when its present life began to cost
	stopping bool      // it sleeps, and its machine is not off yet
	touched  bool      // it is in world.touched
}

// load is a ticket with the requests that wait for it.
type load struct {
	id      string
	model   int
	host    *host
	waiters []time.Time // when they came
	since   time.Time
	passed  int
}

// tally is what a run cost and gave.
type tally struct {
	requests, cold, loads, evictions, wakes int
	again                                   int             // wakes of hosts that were wanted while they stopped
	waits                                   []time.Duration // of cold requests, in order once the run is over
	hours, price                            float64
}

// mirror hears each change as it is committed; the zero value hears nothing.
type mirror struct {
	place   func(*load)
	begin   func(*load)
	drop    func(*host, string)
	loaded  func(*load)
	ready   func(*host)
	asleep  func(*host)
	stopped func(*host) // its machine is off, or about to be woken again
	checked func()      // after each event
}

// world is one simulated pool.
type world struct {
	rng    *rand.Rand
	evict  policy.Eviction
	now    time.Time
	end    time.Time
	agenda agenda
	serial int

	catalog []policy.Model
	index   map[string]int // of models, by id
	reload  []time.Duration
	hosts   []*host
	loads   map[int]*load    // by model
	loading map[string]*host // by model: where it is being loaded
	touched []*host          // by the event under way
	tally   tally
	mirror  mirror
	broken  []string // violated invariants
}

func newWorld(seed uint64, evict policy.Eviction, length time.Duration) *world {
	w := &world{
		rng: rand.New(rand.NewPCG(seed, 1)), evict: evict, now: epoch, end: epoch.Add(length),
		index: map[string]int{}, loads: map[int]*load{}, loading: map[string]*host{},
	}
	for i := range models {
		device := policy.GPU
		if i%10 == 9 {
			device = policy.NPU
		}
		w.catalog = append(w.catalog, policy.Model{ID: fmt.Sprintf("m%02d", i), Type: policy.LLM, Devices: device, Max: 1})
		w.index[w.catalog[i].ID] = i
		w.reload = append(w.reload, time.Duration(5+w.rng.ExpFloat64()*25)*time.Second)
	}
	for i := range hosts {
		price := 0.5
		if i%2 == 1 {
			price = 2
		}
		devices := policy.GPU
		if i%5 == 4 {
			devices |= policy.NPU
		}
		w.hosts = append(w.hosts, &host{price: price, Host: policy.Host{
			Name: fmt.Sprintf("h%02d", i), State: policy.Asleep, Devices: devices, Limits: policy.Uniform(slots),
		}})
	}
	w.poisson()
	w.bursts()
	w.sweeps()
	return w
}

// sweeps are the warmer's.
func (w *world) sweeps() {
	for at := epoch.Add(sweepEvery); at.Before(w.end); at = at.Add(sweepEvery) {
		w.at(at, w.sweep)
	}
}

func (w *world) at(t time.Time, do func()) {
	w.serial++
	heap.Push(&w.agenda, event{t, w.serial, do})
}

// touch notes that the event under way changes a host.
func (w *world) touch(h *host) {
	if !h.touched {
		h.touched = true
		w.touched = append(w.touched, h)
	}
}

func (w *world) in(d time.Duration, do func()) { w.at(w.now.Add(d), do) }

// gap draws the time to the next of what happens every mean, by day more often than by night.
func (w *world) gap(at time.Time, mean time.Duration) time.Duration {
	day := 1 - 0.95*math.Cos(2*math.Pi*at.Sub(epoch).Hours()/24)
	return time.Duration(w.rng.ExpFloat64() * float64(mean) / day)
}

// poisson is the steady half of the traffic, over models of unequal popularity.
func (w *world) poisson() {
	popular := rand.NewZipf(w.rng, 1.3, 2, models-1)
	for at := epoch; ; {
		at = at.Add(w.gap(at, 2*time.Second))
		if !at.Before(w.end) {
			return
		}
		m := int(popular.Uint64())
		w.at(at, func() { w.arrive(m) })
	}
}

// bursts is the other half: now and then somebody uses a model for a few minutes, any of them.
func (w *world) bursts() {
	for at := epoch; ; {
		at = at.Add(w.gap(at, 80*time.Second))
		if !at.Before(w.end) {
			return
		}
		m := w.rng.IntN(models)
		for next, n := at, 10+w.rng.IntN(60); n > 0; n-- {
			next = next.Add(time.Duration(w.rng.ExpFloat64() * 5 * float64(time.Second)))
			w.at(next, func() { w.arrive(m) })
		}
	}
}

// run plays the time.
func (w *world) run() *tally {
	for len(w.agenda) > 0 && len(w.broken) == 0 {
		e := heap.Pop(&w.agenda).(event)
		if e.at.After(w.end) && len(w.loads) == 0 {
			break
		}
		w.now = e.at
		e.do()
		w.check()
		if w.mirror.checked != nil {
			w.mirror.checked()
		}
		for _, h := range w.touched {
			h.touched = false
		}
		w.touched = w.touched[:0]
	}
	for _, h := range w.hosts {
		if !h.woken.IsZero() {
			w.sleepsNow(h)
		}
	}
	slices.Sort(w.tally.waits)
	return &w.tally
}

// snapshot is the pool as decisions see it.
func (w *world) snapshot() policy.Snapshot {
	s := policy.Snapshot{Now: w.now}
	for _, h := range w.hosts {
		s.Hosts = append(s.Hosts, w.view(h))
	}
	return s
}

// view is a host as decisions see it: with the values of its models.
func (w *world) view(h *host) policy.Host {
	v := h.Host
	v.Residents = slices.Clone(h.Residents)
	for i := range v.Residents {
		r := &v.Residents[i]
		v.InFlight += r.InFlight
		r.Value = w.evict.Value(w.reload[w.index[r.ID]], h.price, w.now.Sub(r.Used))
	}
	return v
}
