package policy

import (
	"fmt"
	"math/bits"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func find(rs []Resident, id string) Resident {
	return rs[slices.IndexFunc(rs, func(r Resident) bool { return r.ID == id })]
}

func without(rs []Resident, ids []string) []Resident {
	return slices.DeleteFunc(slices.Clone(rs), func(r Resident) bool { return slices.Contains(ids, r.ID) })
}

// checkAdmission checks a against every rule for an admission of want on h.
func checkAdmission(t *rapid.T, h Host, want Model, a Admission) {
	for _, id := range a.Evict {
		if r := find(h.Residents, id); r.Busy() || r.Pinned || r.State != ModelLoaded {
			t.Fatalf("evicts %+v", r)
		}
	}
	for _, id := range a.WaitFor {
		if r := find(h.Residents, id); !r.Busy() && r.State != ModelDraining {
			t.Fatalf("waits for idle %+v", r)
		} else if r.Pinned && r.State != ModelDraining {
			t.Fatalf("waits for pinned %+v", r)
		}
	}
	switch a.Decision {
	case DecideLoad:
		stay := without(h.Residents, a.Evict)
		if !feasible(h, want, stay) {
			t.Fatalf("%s does not fit with %+v", want.ID, stay)
		}
		for _, id := range a.Evict {
			if feasible(h, want, without(h.Residents, slices.DeleteFunc(slices.Clone(a.Evict), func(e string) bool { return e == id }))) {
				t.Fatalf("evicts %s unnecessarily", id)
			}
		}
		if len(a.WaitFor)+len(a.Close) > 0 || a.Refusal != nil {
			t.Fatalf("load with more: %+v", a)
		}
	case DecideWait:
		if len(a.WaitFor) == 0 || len(a.Evict) > 0 || a.Refusal != nil {
			t.Fatalf("wait for nothing or with more: %+v", a)
		}
	case DecideRefuse:
		if a.Refusal == nil || a.Refusal.Error() == "" || len(a.Evict)+len(a.WaitFor)+len(a.Close) > 0 {
			t.Fatalf("refusal with more or without reason: %+v", a)
		}
		if slices.Contains([]Code{TooLarge, NoNPUSeat, NoSlot}, a.Refusal.Code) == feasible(h, want, nil) {
			t.Fatalf("%s, but fits the empty host: %v", a.Refusal.Code, feasible(h, want, nil))
		}
	default:
		t.Fatalf("no verdict: %+v", a)
	}
	if a.Reason.Code == "" {
		t.Fatal("no reason")
	}
}

func TestAdmitKeepsTheRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := genHost("h", 7).Draw(t, "host")
		want := genModel("want").Draw(t, "want")
		waited := time.Duration(rapid.IntRange(0, 3).Draw(t, "waited")) * time.Second
		a := admit(h, want, waited, 2*time.Second)
		checkAdmission(t, h, want, a.Admission)
		for _, id := range a.Close {
			r := find(h.Residents, id)
			if waited < 2*time.Second || r.Reserved || r.Kept || r.InFlight == 0 || r.Closed || !slices.Contains(a.WaitFor, id) {
				t.Fatalf("closes %+v after %s", r, waited)
			}
		}
		for _, id := range a.Reopen {
			if r := find(h.Residents, id); !r.Closed || slices.Contains(a.WaitFor, id) || slices.Contains(a.Evict, id) {
				t.Fatalf("reopens %+v", r)
			}
		}
		// No wait that idle victims alone could avoid, unless something is stopping already.
		idle := []string{}
		for _, r := range h.Residents {
			if !r.Busy() && !r.Pinned && r.State == ModelLoaded {
				idle = append(idle, r.ID)
			}
			if r.State == ModelDraining {
				return
			}
		}
		if feasible(h, want, without(h.Residents, idle)) && a.Decision != DecideLoad {
			t.Fatalf("%s although idle %v make room: %s", a.Decision, idle, a.Reason)
		}
	})
}

func TestDecisionsIgnoreTheOrderOfLists(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := genSnapshot().Draw(t, "snapshot")
		want := genModel("want").Draw(t, "want")
		mixed := s
		mixed.Hosts = rapid.Permutation(s.Hosts).Draw(t, "hosts")
		mixed.Hosts = slices.Clone(mixed.Hosts)
		for i := range mixed.Hosts {
			mixed.Hosts[i].Residents = rapid.Permutation(mixed.Hosts[i].Residents).Draw(t, "residents")
		}
		same := func(what string, a, b any) {
			if !reflect.DeepEqual(a, b) {
				t.Fatalf("%s differs:\n%+v\n%+v", what, a, b)
			}
		}
		same("place", Place(s, want, nil), Place(mixed, want, nil))
		d := SweepSettings{Idle: time.Minute, HostIdle: 5 * time.Minute, HostMinUp: 5 * time.Minute}
		same("idle", Idle(s, epoch, d), Idle(mixed, epoch, d))
		for _, h := range mixed.Hosts {
			o := s.Hosts[slices.IndexFunc(s.Hosts, func(o Host) bool { return o.Name == h.Name })]
			same("admit", admit(o, want, time.Hour, time.Second), admit(h, want, time.Hour, time.Second))
			same("next", Next(o, epoch, 2*time.Second), Next(h, epoch, 2*time.Second))
			e1, d1 := ClearAll(o, "r0")
			e2, d2 := ClearAll(h, "r0")
			same("clear", [][]string{e1, d1}, [][]string{e2, d2})
		}
	})
}

func TestPlaceKeepsTheRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := genSnapshot().Draw(t, "snapshot")
		want := genModel("w0").Draw(t, "want")
		avoid := map[string]string{"h0": "no capacity"}
		p := Place(s, want, avoid)
		if (p.Host == "") != (p.Refusal != nil) {
			t.Fatalf("neither or both: %+v", p)
		}
		if p.Refusal != nil {
			if len(p.Refusal.Hosts) != len(s.Hosts) || p.Wake {
				t.Fatalf("refusal explains %d of %d hosts", len(p.Refusal.Hosts), len(s.Hosts))
			}
			return
		}
		h := s.Hosts[slices.IndexFunc(s.Hosts, func(h Host) bool { return h.Name == p.Host })]
		if avoid[h.Name] != "" || p.Wake != (h.State != Ready) || !feasible(h, want, nil) {
			t.Fatalf("bad host %s: %+v", p.Host, p)
		}
		if p.Reason.Code == FreeSlot || p.Reason.Code == IdleVictim {
			if a := admit(h, want, 0, time.Second); a.Decision != DecideLoad || (len(a.Evict) > 0) != (p.Reason.Code == IdleVictim) {
				t.Fatalf("%s, but admission is %+v", p.Reason, a)
			}
			return
		}
		for _, o := range s.Hosts {
			if avoid[o.Name] == "" && o.State == Ready && len(o.Queue) == 0 && admit(o, want, 0, time.Second).Decision == DecideLoad {
				t.Fatalf("%s on %s, but %s could load now", p.Reason, p.Host, o.Name)
			}
		}
	})
}

func TestIdleIsIdempotentAndHarmless(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := genSnapshot().Draw(t, "snapshot")
		d := SweepSettings{Idle: time.Minute, HostIdle: 5 * time.Minute, HostMinUp: 5 * time.Minute}
		p := Idle(s, epoch, d)
		for _, u := range p.Unload {
			h := s.Hosts[slices.IndexFunc(s.Hosts, func(h Host) bool { return h.Name == u.Host })]
			if r := find(h.Residents, u.Model); h.State != Ready || r.Busy() && !u.Spare || r.Reserved || r.Pinned || r.Closed || r.State != ModelLoaded || r.Idle < 0 {
				t.Fatalf("unloads %+v", r)
			}
		}
		for _, z := range p.Sleep {
			h := s.Hosts[slices.IndexFunc(s.Hosts, func(h Host) bool { return h.Name == z.Host })]
			if h.State != Ready || len(h.Residents)+len(h.Queue)+h.InFlight > 0 {
				t.Fatalf("sleeps %+v", h)
			}
		}
		applyIdle(s, p)
		if again := Idle(s, epoch, d); !isEmpty(again) {
			t.Fatalf("again: %+v", again)
		}
	})
}

var epoch = time.Date(2024, 5, 1, 12, 0, 0, 0, time.UTC)

// Generators draw from few names, types and sizes, so that collisions and ties are common.

func genDevices() *rapid.Generator[Devices] {
	return rapid.SampledFrom([]Devices{CPU, GPU, GPU, NPU, GPU | NPU})
}

func genType() *rapid.Generator[Type] { return rapid.SampledFrom([]Type{LLM, LLM, Embedding, Audio}) }

func genModel(id string) *rapid.Generator[Model] {
	return rapid.Custom(func(t *rapid.T) Model {
		return Model{
			ID: id, Type: genType().Draw(t, "type"), Devices: genDevices().Draw(t, "devices"),
			Memory: rapid.Int64Range(0, 12).Draw(t, "memory"), Pinned: rapid.IntRange(0, 9).Draw(t, "pinned") == 0,
			Max: rapid.IntRange(0, 3).Draw(t, "max"),
		}
	})
}

func genResident(id string) *rapid.Generator[Resident] {
	return rapid.Custom(func(t *rapid.T) Resident {
		m := genModel(id).Draw(t, "model")
		r := Resident{
			ID: id, Type: m.Type, Devices: m.Devices, Memory: m.Memory, Pinned: m.Pinned, State: ModelLoaded,
			Used: epoch.Add(-time.Duration(rapid.IntRange(0, 5).Draw(t, "used")) * time.Minute),
			Idle: time.Duration(rapid.IntRange(-1, 3).Draw(t, "idle")) * time.Minute,

			Needed: epoch.Add(-time.Duration(rapid.IntRange(0, 5).Draw(t, "needed")) * time.Minute),
		}
		switch rapid.IntRange(0, 9).Draw(t, "state") {
		case 0:
			r.State = ModelLoading
		case 1:
			r.State = ModelDraining
		case 2, 3:
			r.InFlight = rapid.IntRange(1, 3).Draw(t, "in flight")
			r.Closed = rapid.Bool().Draw(t, "closed")
		case 4:
			r.Reserved = true
		case 5:
			r.Kept = true
		}
		return r
	})
}

func genLimits() *rapid.Generator[Limits] {
	return rapid.Custom(func(t *rapid.T) Limits {
		l := Uniform(1)
		for i := range l {
			l[i] = rapid.SampledFrom([]int{-1, 1, 1, 2, 3}).Draw(t, "limit")
		}
		return l
	})
}

// genHost draws a ready host with at most n residents.
func genHost(name string, n int) *rapid.Generator[Host] {
	return rapid.Custom(func(t *rapid.T) Host {
		h := Host{Name: name, State: Ready, Devices: CPU | GPU | NPU, Limits: genLimits().Draw(t, "limits")}
		h.UpSince = epoch.Add(-time.Duration(rapid.IntRange(0, 20).Draw(t, "up")) * time.Minute)
		h.Active = epoch.Add(-time.Duration(rapid.IntRange(0, 20).Draw(t, "active")) * time.Minute)
		if rapid.Bool().Draw(t, "seats?") {
			h.NPUSeats = map[Type]int{LLM: rapid.IntRange(1, 2).Draw(t, "llm seats"), Audio: 1}
		}
		if rapid.Bool().Draw(t, "budget?") {
			h.Budget = map[Devices]int64{GPU: rapid.Int64Range(4, 24).Draw(t, "gpu bytes"), NPU: 10}
		}
		for i := range rapid.IntRange(0, n).Draw(t, "residents") {
			h.Residents = append(h.Residents, genResident(fmt.Sprintf("r%d", i)).Draw(t, "resident"))
		}
		return h
	})
}

// genQueuedHost draws a ready host with residents and up to five tickets.
func genQueuedHost(name string) *rapid.Generator[Host] {
	return rapid.Custom(func(t *rapid.T) Host {
		h := genHost(name, 5).Draw(t, "host")
		for i := range rapid.IntRange(0, 5).Draw(t, "tickets") {
			k := Ticket{
				ID: fmt.Sprintf("t%d", i), Model: genModel(fmt.Sprintf("w%d", i)).Draw(t, "wanted"),
				Overtaken: rapid.IntRange(6, MaxOvertaken).Draw(t, "overtaken"),
			}
			if s := rapid.IntRange(0, 4).Draw(t, "since"); s > 0 {
				k.Since = epoch.Add(-time.Duration(s) * time.Second)
			}
			h.Queue = append(h.Queue, k)
		}
		return h
	})
}

func genSnapshot() *rapid.Generator[Snapshot] {
	return rapid.Custom(func(t *rapid.T) Snapshot {
		s := Snapshot{Now: epoch}
		for i := range rapid.IntRange(0, 5).Draw(t, "hosts") {
			h := genQueuedHost(fmt.Sprintf("h%d", i)).Draw(t, "host")
			h.State = rapid.SampledFrom([]HostState{Ready, Ready, Asleep, Waking, Draining, Lost}).Draw(t, "state")
			s.Hosts = append(s.Hosts, h)
		}
		return s
	})
}

// admitted is an admission with the closed models that are no longer victims.
type admitted struct {
	Admission
	Reopen []string
}

// admit returns the admission of a single load that has waited for the given time, as Next decides it for each load of
// a queue.
func admit(h Host, want Model, waited, fairAfter time.Duration) admitted {
	victims, cards, refusal := findVictims(&h, &want)
	a := admitted{admission(victims, refusal, waited >= fairAfter), closedExcept(&h, victims)}
	a.GPUMemory = cards
	return a
}

// feasible spells out when want can be loaded together with the staying residents, rule by rule and without sharing
// code with the package.
func feasible(h Host, want Model, stay []Resident) bool {
	count := func(match func(Resident) bool) (n int) {
		for _, r := range stay {
			if match(r) {
				n++
			}
		}
		return n
	}
	if n := h.Limits.Of(want.Type); n >= 0 && count(func(r Resident) bool { return r.Type == want.Type })+1 > n {
		return false
	}
	if want.Devices&NPU != 0 {
		if len(h.NPUSeats) == 0 {
			if count(func(r Resident) bool { return r.Devices&NPU != 0 }) > 0 {
				return false
			}
		} else if count(func(r Resident) bool { return r.Devices&NPU != 0 && r.Type == want.Type })+1 > h.NPUSeats[want.Type] {
			return false
		}
	}
	for _, d := range []Devices{CPU, GPU, NPU} {
		budget, ok := h.Budget[d]
		if !ok || want.Devices&d == 0 || want.Memory == 0 {
			continue
		}
		sum := want.Memory
		for _, r := range stay {
			if r.Devices&d != 0 {
				sum += r.Memory
			}
		}
		if sum > budget {
			return false
		}
	}
	return true
}

// twin tries every set of victims and returns the best one as a mask over rs, which is ordered from the cheapest victim
// to the costliest. The best set is the one whose costliest member is cheapest, then the next costliest, and so on,
// which is the smallest mask. The second result is the smallest size of any feasible set.
func twin(h Host, want Model, rs []Resident) (best, smallest int) {
	best, smallest = -1, -1
	for mask := range 1 << len(rs) {
		stay, allowed := []Resident{}, true
		for i, r := range rs {
			gone := mask>>i&1 == 1
			allowed = allowed && !(gone && r.Pinned && r.State != ModelDraining)
			if !gone {
				stay = append(stay, r)
			}
		}
		if !allowed || !feasible(h, want, stay) {
			continue
		}
		if best < 0 {
			best = mask
		}
		if n := bits.OnesCount(uint(mask)); smallest < 0 || n < smallest {
			smallest = n
		}
	}
	return best, smallest
}

func TestFitMatchesATwin(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := genHost("h", 8).Draw(t, "host")
		want := genModel("want").Draw(t, "want")
		rs := slices.Clone(h.Residents)
		slices.SortFunc(rs, byEvictionOrder)
		best, smallest := twin(h, want, rs)

		got, _, refusal := findVictims(&h, &want)
		if (refusal != nil) != (best < 0) {
			t.Fatalf("refusal %v, but best victims are %b of %v", refusal, best, names(rs))
		}
		if refusal != nil {
			return
		}
		mask := 0
		for i, r := range rs {
			if contains(got, r.ID) {
				mask |= 1 << i
			}
		}
		if mask != best {
			t.Fatalf("victims %v = %b, want %b of %v", names(got), mask, best, names(rs))
		}
		// With slots and seats alone the set is also the smallest. With memory, LRU order may take two small old models
		// to spare a big recent one.
		if len(h.Budget) == 0 && len(got) != smallest {
			t.Fatalf("%d victims, %d would do", len(got), smallest)
		}
	})
}
