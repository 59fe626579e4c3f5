package policy

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// history plays a host through many steps as a runner does, and checks the invariants after each.
type history struct {
	t    *rapid.T
	h    Host
	now  time.Time
	over map[string]int // by ticket, how many later ones overtook it
	fair time.Duration
	made int
	done int
}

func (y *history) step() bool {
	s := Next(y.h, y.now, y.fair)
	for _, id := range s.Close {
		r := y.resident(id)
		if r.Closed || r.Reserved || r.State != ModelLoaded || r.InFlight == 0 {
			y.t.Fatalf("closes %+v", *r)
		}
		r.Closed = true
	}
	for _, id := range s.Reopen {
		y.resident(id).Closed = false
	}
	for _, w := range s.Waits {
		if k := y.ticket(w.Ticket); w.Heads && k.Since.IsZero() {
			k.Since = y.now
		}
		if w.Heads == (w.Behind != "") && w.Reason.Code != OneLoad {
			y.t.Fatalf("heads and behind at once, or neither: %+v", w)
		}
	}
	if !s.Again.IsZero() && !s.Again.After(y.now) {
		y.t.Fatalf("again at %s, now %s", s.Again, y.now)
	}
	if s.Ticket == "" {
		return false
	}
	k := *y.ticket(s.Ticket)
	checkAdmission(y.t, y.h, k.Model, s.Admission)
	if s.Admission.Decision == Load {
		if y.h.Loading != "" {
			y.t.Fatal("two loads at once")
		}
		for i := range y.h.Queue {
			o := &y.h.Queue[i]
			if o.ID == k.ID {
				break
			}
			if !slices.Contains(s.Overtakes, o.ID) && admit(y.h, o.Model, 0, y.fair).Decision != Refuse {
				y.t.Fatalf("%s overtakes %s unsaid", k.ID, o.ID)
			}
			if o.Model.Type == k.Model.Type && slices.Contains(s.Overtakes, o.ID) {
				y.t.Fatalf("%s overtakes %s of its type", k.ID, o.ID)
			}
		}
		for _, id := range s.Overtakes {
			y.ticket(id).Overtaken++
			if y.over[id]++; y.over[id] > MaxOvertaken {
				y.t.Fatalf("%s overtaken %d times", id, y.over[id])
			}
		}
		y.h.Residents = without(y.h.Residents, s.Admission.Evict)
		m := k.Model
		y.h.Residents = append(y.h.Residents, Resident{
			ID: m.ID, Type: m.Type, Devices: m.Devices, Memory: m.Memory, State: ModelLoading, Reserved: true, Used: y.now,
		})
		y.h.Loading = m.ID
	}
	y.h.Queue = slices.DeleteFunc(y.h.Queue, func(o Ticket) bool { return o.ID == k.ID })
	y.done++
	return true
}

func (y *history) resident(id string) *Resident {
	return &y.h.Residents[slices.IndexFunc(y.h.Residents, func(r Resident) bool { return r.ID == id })]
}

func (y *history) ticket(id string) *Ticket {
	return &y.h.Queue[slices.IndexFunc(y.h.Queue, func(k Ticket) bool { return k.ID == id })]
}

// tick lets one second of traffic pass. The load in progress ends. Every open model gets a new request before its old
// ones end, so it is never idle while it stays open. Closed and reserved models finish. Draining models are gone.
func (y *history) tick() {
	y.now = y.now.Add(time.Second)
	y.h.Residents = slices.DeleteFunc(y.h.Residents, func(r Resident) bool { return r.State == ModelDraining })
	for i := range y.h.Residents {
		r := &y.h.Residents[i]
		if r.State == ModelLoading {
			r.State = ModelLoaded
			y.h.Loading = ""
		}
		switch {
		case r.Pinned:
		case r.Closed:
			r.InFlight = 0
		default:
			r.InFlight, r.Reserved = 1, false
		}
		r.Used = Use(r.Used, y.now)
	}
}

func (y *history) enqueue() {
	id := fmt.Sprintf("w%d", y.made)
	m := genModel(id).Draw(y.t, "wanted")
	m.Pinned = false
	y.h.Queue = append(y.h.Queue, Ticket{ID: "k" + id, Model: m})
	y.made++
}

// TestQueueHistory: under traffic that never leaves an open model idle, no rule is ever broken, and every ticket is
// served or refused within a bounded number of fair_after periods although new tickets keep arriving.
func TestQueueHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		y := &history{t: t, h: genHost("h", 5).Draw(t, "host"), now: epoch, fair: 2 * time.Second, over: map[string]int{}}
		for i := range y.h.Residents {
			if y.h.Residents[i].State == ModelLoading {
				y.h.Loading = y.h.Residents[i].ID
			}
		}
		for range rapid.IntRange(1, 25).Draw(t, "ticks") {
			for range rapid.IntRange(0, 2).Draw(t, "newcomers") {
				y.enqueue()
			}
			if len(y.h.Queue) > 0 && rapid.IntRange(0, 9).Draw(t, "drop?") == 0 {
				y.h.Queue = slices.Delete(y.h.Queue, 0, 1)
				y.done++
			}
			for y.step() {
			}
			y.tick()
		}
		// For each victim a ticket needs at most a wait of fair_after, and one second each to close, finish and load.
		for limit := (len(y.h.Queue) + 1) * 12; len(y.h.Queue) > 0; limit-- {
			if limit == 0 {
				t.Fatalf("starving: %+v\non %+v", y.h.Queue, y.h.Residents)
			}
			for y.step() {
			}
			y.tick()
		}
		if y.done != y.made {
			t.Fatalf("%d tickets, %d ended", y.made, y.done)
		}
		y.step()
		for _, r := range y.h.Residents {
			if r.Closed && r.State != ModelDraining {
				t.Fatalf("left closed with nobody waiting: %+v", r)
			}
		}
	})
}
