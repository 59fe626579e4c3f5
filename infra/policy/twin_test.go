package policy

import (
	"math/bits"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// feasible spells out when want may be loaded beside the staying residents, rule by rule and without sharing code with
// the package.
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

func TestRoomAgainstTwin(t *testing.T) {
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
