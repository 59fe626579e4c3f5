package policy

import (
	"cmp"
	"time"
)

// Use returns the later of last and at: the time of last use after a use at the given moment. Starts and ends of loads
// and inferences all count and may be reported out of order. A time of use never moves back.
func Use(last, at time.Time) time.Time {
	if at.After(last) {
		return at
	}
	return last
}

// ByUse orders residents for eviction among equals: the longest unused first, ties by name. It is a total order over
// the residents of one host, whose names differ, so plans do not depend on the order of a snapshot's lists.
func ByUse(a, b Resident) int {
	if c := a.Used.Compare(b.Used); c != 0 {
		return c
	}
	return cmp.Compare(a.ID, b.ID)
}

// byEvictionOrder orders residents by the cost of evicting them: none for those already stopping, then idle ones, then
// busy ones. Among equals, the one of least value comes first (under LRU all have the same), then the longest unused. A
// closed busy one comes before open ones: completions renew its time of use, and without this rule a waiting load would
// close one victim after the other and starve.
func byEvictionOrder(a, b Resident) int {
	if c := cmp.Or(cmp.Compare(evictionClass(a), evictionClass(b)), cmp.Compare(a.Value, b.Value)); c != 0 {
		return c
	}
	return ByUse(a, b)
}

func evictionClass(r Resident) int {
	switch {
	case r.State == ModelDraining:
		return 0
	case !r.Busy():
		return 1
	case r.Closed:
		return 2
	}
	return 3
}
