package policy

import (
	"fmt"
	"time"
)

// Eviction is how victims are chosen among idle models.
type Eviction string

// The ways to choose.
const (
	LRU  Eviction = "lru"  // the least recently used model is evicted
	Cost Eviction = "cost" // the model is evicted that is cheapest to reload (reload seconds × host price) and least likely to be needed
)

// ParseEviction reads the setting; "" is LRU.
func ParseEviction(text string) (Eviction, error) {
	switch e := Eviction(text); e {
	case "", LRU:
		return LRU, nil
	case Cost:
		return e, nil
	}
	return "", fmt.Errorf("%q: want lru or cost", text)
}

// Value returns what keeping an idle model is worth: the cost of its reload (reload seconds × its host's hourly price)
// divided by the seconds that it has been unused, because a model unused for longer is less likely to be requested.
// price 0 counts as 1. For LRU, Value is 0, so only the times of use decide.
func (e Eviction) Value(reload time.Duration, price float64, unused time.Duration) float64 {
	if e != Cost {
		return 0
	}
	if price <= 0 {
		price = 1
	}
	return reload.Seconds() * price / (max(0, unused.Seconds()) + 1)
}
