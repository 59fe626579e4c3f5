package quota

import (
	"math"
	"time"
)

// bucket is what an account may use of one rate at this gateway. Its account guards it.
type bucket struct {
	rate      Rate
	available float64   // negative: used more than there was
	updated   time.Time // when available was last refilled or settled
	poolLeft  float64   // what the pool had at the last settlement, besides what gateways hold
	known     bool      // it was settled
}

// refill lets the bucket grow by this gateway's share of the rate, for a gateway that counts alone.
func (b *bucket) refill(now time.Time, gateways int) {
	if b.rate.N > 0 && now.After(b.updated) {
		most := float64(b.rate.N) / float64(gateways)
		if b.available < most {
			b.available = min(most, b.available+now.Sub(b.updated).Seconds()*most/b.rate.Per.Seconds())
		}
	}
	b.updated = now
}

// poolNow returns what the pool has now besides what gateways hold, as far as this gateway knows: all of the rate before the first
// settlement.
func (b *bucket) poolNow(now time.Time) float64 {
	if !b.known {
		return float64(b.rate.N)
	}
	return min(b.poolLeft+now.Sub(b.updated).Seconds()*float64(b.rate.N)/b.rate.Per.Seconds(), float64(b.rate.N))
}

// change sets another rate, with a full bucket; the same rate changes nothing.
func (b *bucket) change(r Rate, now time.Time) {
	if r != b.rate {
		*b = bucket{rate: r, available: float64(r.N), updated: now}
	}
}

// until returns how long until the pool has n more than now.
func (b *bucket) until(n float64) time.Duration {
	d := time.Duration(math.Ceil(n / float64(b.rate.N) * float64(b.rate.Per)))
	return max(d, time.Millisecond)
}

// State is what an account has left of a rate.
type State struct {
	Limit     int // 0: none
	Remaining int
	Reset     time.Duration // until all of it is free again, if nothing is used
}

func (b *bucket) state() State {
	if b.rate.N == 0 {
		return State{}
	}
	all := min(max(b.available+b.poolLeft, 0), float64(b.rate.N))
	s := State{Limit: b.rate.N, Remaining: int(all)}
	if missing := float64(b.rate.N) - (b.available + b.poolLeft); missing >= 1 {
		s.Reset = b.until(missing)
	}
	return s
}
