package mmcache

import (
	"math"
	"sync/atomic"
	"time"
)

const (
	fetchMiB = 32 * time.Millisecond // per MiB of floats: a quarter of the speed of 1 Gbit/s
	maxFetch = 10 * time.Second
)

// fetchTime returns the time that a look-up may take for the size of what it fetches.
func fetchTime(bytes int64) time.Duration { return min(time.Duration(bytes>>20)*fetchMiB, maxFetch) }

// outputs returns the size of the floats of all items.
func outputs(items []item) (bytes int64) {
	for _, it := range items {
		bytes += it.layout.Bytes()
	}
	return bytes
}

// encodeCost is the measured time of an engine's encoder: a running mean in ns per byte of floats. It is safe for
// concurrent use; of concurrent updates one may be lost.
type encodeCost struct{ bits atomic.Uint64 }

func (c *encodeCost) observe(e *Entry) {
	if e.EncodeTime <= 0 || len(e.Floats) == 0 {
		return
	}
	rate := float64(e.EncodeTime) / float64(len(e.Floats))
	if old := math.Float64frombits(c.bits.Load()); old > 0 {
		rate = old + (rate-old)/4
	}
	c.bits.Store(math.Float64bits(rate))
}

// of returns the time to encode that many bytes of floats, or 0 before the first measurement.
func (c *encodeCost) of(bytes int64) time.Duration {
	return time.Duration(math.Float64frombits(c.bits.Load()) * float64(bytes))
}

// worth returns how long Redis may take for so many bytes of floats: the configured wait plus a time for their size,
// which is at most the encoder's.
func (a *Attachment) worth(bytes int64) time.Duration {
	fetch := fetchTime(bytes)
	if cost := a.cost.of(bytes); cost > 0 {
		fetch = min(fetch, cost)
	}
	return a.s.cfg.LookupWait*9/10 + fetch
}
