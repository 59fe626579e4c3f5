package policy

import (
	"fmt"
	"time"
)

// Eviction is how victims are chosen among idle models.
type Eviction string

// The ways to choose.
const (
	LRU  Eviction = "lru"  // the least recently used goes
	Cost Eviction = "cost" // the one goes that is cheapest to bring back, by reload seconds × host price, and least likely needed
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

// Value is what sparing an idle model is worth: what its reload would cost, reload seconds × the price of its host's hour,
// over the seconds that it has been unused, as a model is the less likely to be asked for the longer it has not been.
// price 0 counts as 1. It is 0 for LRU, which leaves the choice to the times of use.
func (e Eviction) Value(reload time.Duration, price float64, unused time.Duration) float64 {
	if e != Cost {
		return 0
	}
	if price <= 0 {
		price = 1
	}
	return reload.Seconds() * price / (max(0, unused.Seconds()) + 1)
}
