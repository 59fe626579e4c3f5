package pressure

import (
	"context"
	"runtime/metrics"
	"sync/atomic"
	"time"
)

// Gauge samples the memory of this process. Reading it costs next to nothing. It is safe for concurrent use; a nil one
// is always Normal.
type Gauge struct {
	limit int64
	read  func() int64
	used  atomic.Int64
}

// New makes a gauge with a limit in bytes, 0 for none. used says how many are used; nil asks the runtime.
func New(limit int64, used func() int64) *Gauge {
	if used == nil {
		used = memoryInUse
	}
	g := &Gauge{limit: limit, read: used}
	g.Sample()
	return g
}

// sampleEvery is the time between two looks: a fraction of what it takes to fill the room between the levels with
// requests.
const sampleEvery = 250 * time.Millisecond

// Run looks again and again until ctx ends. Without it, what New saw stands.
func (g *Gauge) Run(ctx context.Context) {
	if g.limit <= 0 {
		return
	}
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			g.Sample()
		}
	}
}

// Sample takes one sample.
func (g *Gauge) Sample() { g.used.Store(g.read()) }

// Level returns the level of the last sample.
func (g *Gauge) Level() Level {
	if g == nil {
		return Normal
	}
	return levelAt(g.used.Load(), g.limit)
}

// Bytes are the bytes in use by the last sample, and the limit, 0 for none.
func (g *Gauge) Bytes() (used, limit int64) {
	if g == nil {
		return 0, 0
	}
	return g.used.Load(), g.limit
}

// memoryInUse is the memory that the process cannot free, in bytes.
func memoryInUse() int64 {
	s := []metrics.Sample{
		{Name: "/memory/classes/total:bytes"}, {Name: "/gc/heap/live:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/free:bytes"}, {Name: "/memory/classes/heap/released:bytes"},
	}
	metrics.Read(s)
	n := int64(s[0].Value.Uint64() + s[1].Value.Uint64())
	for _, less := range s[2:] {
		n -= int64(less.Value.Uint64())
	}
	return max(0, n)
}
