package policy

import (
	"cmp"
	"fmt"
	"time"
)

// EvictionPolicy is the way to choose victims among idle models.
type EvictionPolicy string

// The eviction policies.
const (
	LRU  EvictionPolicy = "lru"  // evicts the least recently used model
	Cost EvictionPolicy = "cost" // evicts the model that is cheapest to reload (reload seconds × host price) and least likely to be needed
)

// ParseEvictionPolicy reads the setting; "" is LRU.
func ParseEvictionPolicy(text string) (EvictionPolicy, error) {
	switch e := EvictionPolicy(text); e {
	case "", LRU:
		return LRU, nil
	case Cost:
		return e, nil
	}
	return "", fmt.Errorf("%q: want lru or cost", text)
}

// Value returns the value of keeping an idle model: the cost of its reload (reload seconds × its host's hourly price)
// divided by one more than the seconds that it has been unused, because a model unused for longer is less likely to be
// requested. A price of 0 or less counts as 1. For LRU, Value is 0, so only the times of use decide.
func (e EvictionPolicy) Value(reload time.Duration, price float64, unused time.Duration) float64 {
	if e != Cost {
		return 0
	}
	if price <= 0 {
		price = 1
	}
	return reload.Seconds() * price / (max(0, unused.Seconds()) + 1)
}

// Later returns the later of two times. It keeps a time of last use from moving back: starts and ends of loads and
// inferences all count and can be reported out of order.
func Later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// ByUse orders residents for eviction among equals: the longest unused first, ties by name. It is a total order over
// the residents of one host, whose names differ, so decisions do not depend on the order of a snapshot's lists.
func ByUse(a, b Resident) int {
	return cmp.Or(a.Used.Compare(b.Used), cmp.Compare(a.ID, b.ID))
}

// byEvictionOrder orders residents by the cost of evicting them: none for those already stopping, then idle ones, then
// busy ones. Among equals, the one of least value comes first (under LRU all have the same), then the longest unused. A
// closed busy one comes before open ones: completions renew its time of use, and without this rule a waiting load would
// close one victim after the other and starve.
func byEvictionOrder(a, b Resident) int {
	return cmp.Or(cmp.Compare(evictionClass(a), evictionClass(b)), cmp.Compare(a.Value, b.Value), ByUse(a, b))
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
