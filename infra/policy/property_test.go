package policy

import (
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
	case Load:
		stay := without(h.Residents, a.Evict)
		if !feasible(h, want, stay) {
			t.Fatalf("%s does not fit beside %+v", want.ID, stay)
		}
		for _, id := range a.Evict {
			if feasible(h, want, without(h.Residents, slices.DeleteFunc(slices.Clone(a.Evict), func(e string) bool { return e == id }))) {
				t.Fatalf("evicts %s in vain", id)
			}
		}
		if len(a.WaitFor)+len(a.Close) > 0 || a.Refusal != nil {
			t.Fatalf("load with more: %+v", a)
		}
	case Wait:
		if len(a.WaitFor) == 0 || len(a.Evict) > 0 || a.Refusal != nil {
			t.Fatalf("wait for nothing or with more: %+v", a)
		}
	case Refuse:
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
			if waited < 2*time.Second || r.Reserved || r.InFlight == 0 || r.Closed || !slices.Contains(a.WaitFor, id) {
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
		if feasible(h, want, without(h.Residents, idle)) && a.Decision != Load {
			t.Fatalf("%s although idle %v make room: %s", a.Decision, idle, a.Reason)
		}
	})
}

func TestPlansIgnoreTheOrderOfLists(t *testing.T) {
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
		d := Defaults{Idle: time.Minute, HostIdle: 5 * time.Minute, HostMinUp: 5 * time.Minute}
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
			if a := admit(h, want, 0, time.Second); a.Decision != Load || (len(a.Evict) > 0) != (p.Reason.Code == IdleVictim) {
				t.Fatalf("%s, but admission is %+v", p.Reason, a)
			}
			return
		}
		for _, o := range s.Hosts {
			if avoid[o.Name] == "" && o.State == Ready && len(o.Queue) == 0 && admit(o, want, 0, time.Second).Decision == Load {
				t.Fatalf("%s on %s, but %s could load now", p.Reason, p.Host, o.Name)
			}
		}
	})
}

func TestIdleIsIdempotentAndHarmless(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := genSnapshot().Draw(t, "snapshot")
		d := Defaults{Idle: time.Minute, HostIdle: 5 * time.Minute, HostMinUp: 5 * time.Minute}
		p := Idle(s, epoch, d)
		for _, u := range p.Unload {
			h := s.Hosts[slices.IndexFunc(s.Hosts, func(h Host) bool { return h.Name == u.Host })]
			if r := find(h.Residents, u.Model); h.State != Ready || r.Busy() || r.Pinned || r.Closed || r.State != ModelLoaded || r.Idle < 0 {
				t.Fatalf("unloads %+v", r)
			}
		}
		for _, z := range p.Sleep {
			h := s.Hosts[slices.IndexFunc(s.Hosts, func(h Host) bool { return h.Name == z.Host })]
			if h.State != Ready || len(h.Residents)+len(h.Queue)+h.Leases+h.InFlight > 0 {
				t.Fatalf("sleeps %+v", h)
			}
		}
		applyIdle(s, p)
		if again := Idle(s, epoch, d); !isEmpty(again) {
			t.Fatalf("again: %+v", again)
		}
	})
}
