package mmcache

import (
	"math"
	"sync/atomic"
	"time"
)

const (
	fetchMiB = 32 * time.Millisecond // for a MiB of floats: a quarter of what 1 Gbit/s carries
	maxFetch = 10 * time.Second
)

// fetchTime is what a look-up may take for the size of what it fetches.
func fetchTime(bytes int64) time.Duration { return min(time.Duration(bytes>>20)*fetchMiB, maxFetch) }

// outputs is the size of the floats of all items.
func outputs(items []item) (bytes int64) {
	for _, it := range items {
		bytes += it.layout.Bytes()
	}
	return bytes
}

// encodeCost is what an engine's encoder takes, measured: a running mean in ns a byte of floats. It is safe for concurrent
// use; of updates at the same time one may be lost.
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

// of is what encoding so many bytes of floats takes, 0 while nothing was measured.
func (c *encodeCost) of(bytes int64) time.Duration {
	return time.Duration(math.Float64frombits(c.bits.Load()) * float64(bytes))
}

// worth is how long Redis may take for so many bytes of floats: the configured wait, and for their size what the encoder
// would take at most.
func (a *Attachment) worth(bytes int64) time.Duration {
	fetch := fetchTime(bytes)
	if cost := a.cost.of(bytes); cost > 0 {
		fetch = min(fetch, cost)
	}
	return a.s.cfg.LookupWait*9/10 + fetch
}
