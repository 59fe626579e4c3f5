package sleep

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"reveille/testenv/kit"
)

// moments are the steps of going to sleep at which a request may come. Those of waking follow from the request.
var moments = []step{
	{Kind: "model", State: "draining"},
	{Kind: "model", State: "unloaded"},
	{Kind: "host", State: "draining"},
	{Kind: "host", State: "draining"},
	{Kind: "host", State: "asleep", Reason: "sleep"}, // its runner's word
	{Kind: "host", State: "asleep", Reason: "stop"},  // its process is to end
	{Kind: "host", State: "asleep", Reason: "done"},  // it has ended
}

// reached reports whether a step is the moment or one that is past it: what a runner could not write at once is not told
// step by step, and a stop may fail.
func (e step) reached(moment step) bool {
	same := e.Kind == moment.Kind && e.State == moment.State
	if moment.Reason != "" && (e.Reason == "sleep" || e.Reason == "stop") {
		return same && e.Reason == moment.Reason
	}
	return same || e.Kind == "host" && e.State == "asleep"
}

const cycleHosts = 4

// cycles is how many cycles are run in all.
func cycles(t *testing.T) int {
	text := os.Getenv("REVEILLE_SLEEP_CYCLES")
	if text == "" {
		return 200
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("REVEILLE_SLEEP_CYCLES=%q: want a number of cycles", text)
	}
	return n
}

// A request that comes at any step of an unload, a drain, a stop or a start is answered: at a random moment of each cycle
// some requests are fired, and another at each step that follows while they wait.
func TestNothingIsLostInSleepCycles(t *testing.T) {
	t.Parallel()
	var models strings.Builder
	models.WriteString("models:\n")
	for i := range cycleHosts {
		for _, m := range []string{"a", "b"} { // of one slot
			fmt.Fprintf(&models, "  %s%d: {type: llm, recipe: standin, device: cpu, hosts: [h%d], options: {args: \"--load-time 30ms\"}}\n", m, i, i)
		}
	}
	models.WriteString("hosts:\n")
	for i := range cycleHosts {
		fmt.Fprintf(&models, "  h%d: {driver: local, devices: [cpu]}\n", i)
	}
	s, _, told := system(t, models.String(), "--idle=200ms", "--host-idle=100ms", "--host-min-up=0s", "--every=50ms", "--runner-addr=127.0.0.1:0")
	c := client(t)
	var fired, lost atomic.Int64
	fire := func(wg *sync.WaitGroup, at, model string) {
		stream := rand.N(2) == 0
		wg.Go(func() {
			fired.Add(1)
			a := chat(t.Context(), c, s.URL, model, stream)
			if !a.OK() {
				lost.Add(1)
				t.Errorf("request at %q: %v", at, a)
			}
		})
	}
	var hit sync.Map // step → *atomic.Int64
	note := func(e step) {
		e.Model, e.Host = "", ""
		if e.Kind == "model" {
			e.Reason = "" // for people
		}
		n, _ := hit.LoadOrStore(e, new(atomic.Int64))
		n.(*atomic.Int64).Add(1)
	}
	left := atomic.Int64{}
	left.Store(int64(cycles(t)))
	var hosts sync.WaitGroup
	for i := range cycleHosts {
		host := fmt.Sprint("h", i)
		any := func() string { return fmt.Sprint([]string{"a", "a", "a", "b"}[rand.N(4)], i) }
		hosts.Go(func() {
			at := told.here() // what follows the responses of a cycle is never missed, however late it is looked for
			var first sync.WaitGroup
			fire(&first, "the beginning", any())
			first.Wait()
			for left.Add(-1) >= 0 && !t.Failed() {
				moment := moments[rand.N(len(moments))]
				late := make(chan struct{})
				timer := time.AfterFunc(kit.Patience, func() { close(late) })
				var e step
				var ok bool
				e, at, ok = told.next(at, late, func(e step) bool { return e.Host == host && e.reached(moment) })
				timer.Stop()
				if !ok {
					t.Errorf("%s was never %s %s %s, nor past it", host, moment.Kind, moment.State, moment.Reason)
					return
				}
				if rand.N(2) == 0 {
					time.Sleep(rand.N(100 * time.Millisecond))
				}
				var wg sync.WaitGroup
				note(e)
				for range 1 + rand.N(3) {
					fire(&wg, e.String(), any())
				}
				answered := make(chan struct{})
				go func() { wg.Wait(); close(answered) }()
				var more sync.WaitGroup
				for {
					if e, at, ok = told.next(at, answered, func(e step) bool { return e.Host == host }); !ok {
						break
					}
					note(e)
					fire(&more, e.String(), any())
				}
				more.Wait()
			}
		})
	}
	hosts.Wait()
	asleep := 0
	for i := range cycleHosts {
		asleep += told.count(fmt.Sprintf("host h%d waking", i))
	}
	t.Logf("%d requests, %d lost, %d wakes", fired.Load(), lost.Load(), asleep)
	hit.Range(func(e, n any) bool {
		t.Logf("%4d times at %s %s %s", n.(*atomic.Int64).Load(), e.(step).Kind, e.(step).State, e.(step).Reason)
		return true
	})
}
