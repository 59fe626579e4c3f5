package quota

import (
	"math"
	"time"
)

// bucket is what an account may use of one rate at this gateway: an equal part of it, and at least one at a time. Its
// account guards it.
type bucket struct {
	rate    Rate
	left    float64   // negative: used more than there was
	updated time.Time // when left was last refilled
}

// size returns how much the bucket holds.
func (b *bucket) size(gateways int) float64 { return max(float64(b.rate.N)/float64(gateways), 1) }

// perSecond returns how fast it fills.
func (b *bucket) perSecond(gateways int) float64 {
	return float64(b.rate.N) / float64(gateways) / b.rate.Per.Seconds()
}

// refill lets the bucket grow up to its size.
func (b *bucket) refill(now time.Time, gateways int) {
	if b.rate.N > 0 && now.After(b.updated) {
		b.left = min(b.size(gateways), b.left+now.Sub(b.updated).Seconds()*b.perSecond(gateways))
		b.updated = now
	}
}

// change sets another rate, with a full bucket; the same rate changes nothing.
func (b *bucket) change(r Rate, now time.Time) {
	if r != b.rate {
		*b = bucket{rate: r, left: float64(r.N), updated: now}
	}
}

// until returns how long until the bucket has n more than now.
func (b *bucket) until(n float64, gateways int) time.Duration {
	return max(time.Duration(math.Ceil(n/b.perSecond(gateways)*float64(time.Second))), time.Millisecond)
}

// State is what an account has left of a rate.
type State struct {
	Limit     int // 0: none
	Remaining int
	Reset     time.Duration // until all of it is free again, if nothing is used
}

func (b *bucket) state(now time.Time, gateways int) State {
	if b.rate.N == 0 {
		return State{}
	}
	b.refill(now, gateways)
	s := State{Limit: b.rate.N, Remaining: int(max(b.left, 0))}
	if missing := b.size(gateways) - b.left; missing >= 1 {
		s.Reset = b.until(missing, gateways)
	}
	return s
}
