package linearizability

import (
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"reveille/infra/state"
	"reveille/testenv"
	"reveille/testenv/kit"
)

var (
	rounds = flag.Int("history.rounds", 1, "histories of each kind")
	length = flag.Int("history.calls", 400, "calls of a pool in a history")
	seed   = flag.Uint64("history.seed", 1, "chooses what the clients do")
	out    = flag.String("history.out", "", "folder for the pages of histories that have no order; default the temporary one")
)

func TestMain(m *testing.M) {
	state.LogLibrary(slog.New(slog.DiscardHandler))
	goleak.VerifyTestMain(m)
}

const (
	pools   = 3
	cuts    = 6               // of all connections in a history
	extra   = 20              // histories at most to see what must be seen
	timeout = 5 * time.Second // of a call: a slow day is not what this is about
)

// clients of a pool: gateways, runners and a sweep.
var clients = []string{"g1", "g2", "r1", "r2", "s"}

// TestUndisturbed: nothing goes wrong but that clients are slow, and leases end.
func TestUndisturbed(t *testing.T) {
	t.Parallel()
	addr := testenv.Redis(t)
	collect(t, func(t *testing.T, round, length int) *history {
		h := newHistory(t, round, newClock(), state.Options{URL: "redis://" + addr})
		h.reach(length)
		return h
	},
		"acquire created", "acquire attached", "acquire loaded", "acquire stale", "begin ok", "begin busy", "finish ok", "put ok", "put fenced",
		"drop ok", "beat fenced", "wake ok", "wake awake", "commitSleep ok", "commitSleep wanted", "confirmSleep ok", "stop ok",
		"giveUp ok", "giveUp gone", "forget ok", "forget wanted")
}

// TestRepliesLost: connections are cut again and again, some with a call's reply on its way.
func TestRepliesLost(t *testing.T) {
	t.Parallel()
	addr := testenv.Redis(t)
	collect(t, func(t *testing.T, round, length int) *history {
		relay := testenv.NewFlaky(t, addr)
		relay.Delay(200 * time.Microsecond) // so that a cut finds replies on their way
		h := newHistory(t, round, newClock(), state.Options{URL: "redis://" + relay.Addr})
		h.limit.Store(int64(length))
		for cut := range cuts {
			h.await(length * (cut + 1) / (cuts + 1))
			relay.Cut()
		}
		h.await(length)
		return h
	}, "acquire lost", "begin lost", "put lost")
}

// history is several pools that clients are at work on.
type history struct {
	t       testing.TB
	names   []string // of the pools
	records []*record
	began   time.Time
	span    time.Duration // longest for the history to be judged
	limit   atomic.Int64  // calls of a pool, at which its clients pause
	work    sync.WaitGroup
	ended   chan struct{} // closed by stop
	stop    func()        // returns when no client calls any more; the test's end calls it too
	stores  []*state.Store
}

// newHistory lets the clients begin. o says how they reach Redis. On Redis' own clock (nil) a history ends before any
// lease does, on another before Redis collects what has ended.
func newHistory(t testing.TB, round int, clock *clock, o state.Options) *history {
	t.Helper()
	h := &history{t: t, began: time.Now(), span: 50 * time.Second, ended: make(chan struct{})}
	if clock == nil {
		h.span = 8 * time.Second
	}
	h.stop = sync.OnceFunc(func() {
		close(h.ended)
		h.work.Wait()
		for _, s := range h.stores {
			_ = s.Close()
		}
	})
	t.Cleanup(h.stop)
	for n := range pools {
		o.Pool, o.Timeout = fmt.Sprintf("%d-%d", round, n), timeout
		r := newRecord(h.began)
		h.names, h.records = append(h.names, o.Pool), append(h.records, r)
		for number, name := range clients {
			c := &client{
				Rand: rand.New(rand.NewPCG(*seed+uint64(round), uint64(100*n+number))), t: t, number: number, name: name, record: r, clock: clock,
			}
			c.store = h.open(o, c)
			lonely := n == 0 && clock != nil // its host is lost, sleeps and leaves
			switch {
			case name[0] == 'g':
				h.employ(r, (&gateway{client: c, shy: lonely}).turn)
			case lonely && name == "r2":
			case name[0] == 'r':
				h.employ(r, (&runner{client: c, shy: lonely, holds: map[string]string{}}).turn)
			case name[0] == 's':
				h.employ(r, (&sweep{c}).turn)
			}
		}
	}
	return h
}

// open makes a client's own store, whose scripts see the client's clock.
func (h *history) open(o state.Options, c *client) *state.Store {
	h.t.Helper()
	if c.clock != nil {
		o.Now = func() int64 { return c.now }
	}
	s, err := state.Open(o)
	if err != nil {
		h.t.Fatal(err)
	}
	h.stores = append(h.stores, s)
	return s
}

// employ lets a client take its turns.
func (h *history) employ(r *record, turn func()) {
	h.work.Go(func() {
		for {
			select {
			case <-h.ended:
				return
			default:
			}
			if int64(r.count()) < h.limit.Load() {
				turn()
			} else {
				time.Sleep(time.Millisecond)
			}
		}
	})
}

// reach lets the clients go on until each pool has so many calls, or the history has become too long.
func (h *history) reach(calls int) {
	h.limit.Store(int64(calls))
	h.await(calls)
}

func (h *history) await(calls int) {
	for !h.tooLong() && slices.ContainsFunc(h.records, func(r *record) bool { return r.count() < calls }) {
		time.Sleep(time.Millisecond)
	}
}

func (h *history) tooLong() bool { return time.Since(h.began) > h.span }

// collect makes and judges histories: -history.rounds of them, and some more until calls have been told each of these
// answers, for histories in which they don't come up prove little. A history that was too long is made again, shorter.
func collect(t *testing.T, one func(t *testing.T, round, length int) *history, kinds ...string) {
	t.Helper()
	told, judged, calls, lost, happened, began := map[string]int{}, 0, 0, 0, 0, time.Now()
	var longest time.Duration // that porcupine thought
	missing := func() []string {
		return slices.DeleteFunc(slices.Clone(kinds), func(k string) bool { return told[k] > 0 })
	}
	impatient := func() bool { return time.Since(began) > kit.Patience }
	length := *length
	for round := 0; judged < *rounds || len(missing()) > 0 && judged < *rounds+extra && !impatient(); round++ {
		ok := t.Run(fmt.Sprint("round", round), func(t *testing.T) {
			h := one(t, round, length)
			h.stop()
			if h.tooLong() {
				t.Log("this machine had something else to do: not judged, for leases may have ended in it")
				length = max(length/2, 40)
				return
			}
			judged++
			for n, r := range h.records {
				all, at := r.all(), time.Now()
				happened += judge(t, fmt.Sprintf("%s-%d", strings.ReplaceAll(t.Name(), "/", "-"), n), all)
				longest = max(longest, time.Since(at))
				calls, lost = calls+len(all), lost+r.lost
				for k, n := range r.seen {
					told[k] += n
				}
			}
		})
		if !ok {
			return
		}
		if judged == 0 && impatient() {
			t.Fatal("no history was short enough to be judged")
		}
	}
	if m := missing(); len(m) > 0 && judged == *rounds+extra {
		t.Errorf("no call was ever told %q", m)
	}
	t.Logf("%d histories of %d pools in %v: %d calls, %d without a reply, of which %d happened for certain; the longest was judged in %v",
		judged, pools, time.Since(began).Round(time.Millisecond), calls, lost, happened, longest.Round(time.Millisecond))
	var table strings.Builder
	for _, k := range slices.Sorted(maps.Keys(told)) {
		fmt.Fprintf(&table, "%s %d, ", k, told[k])
	}
	t.Log(table.String())
}
