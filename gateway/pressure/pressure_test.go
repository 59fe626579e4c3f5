package pressure

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestLevelAt(t *testing.T) {
	const gib = 1 << 30
	for _, c := range []struct {
		used, limit int64
		want        Level
	}{
		{0, 0, Normal}, {1 << 62, 0, Normal}, {0, gib, Normal}, {919, 1000, Normal}, {920, 1000, CloseConns}, {949, 1000, CloseConns}, {950, 1000, Shed}, {2000, 1000, Shed},
		{gib * 91 / 100, gib, Normal}, {gib * 93 / 100, gib, CloseConns}, {gib * 96 / 100, gib, Shed}, {1<<62 - 1, 1 << 62, Shed},
	} {
		if got := levelAt(c.used, c.limit); got != c.want {
			t.Errorf("%d of %d: %d, want %d", c.used, c.limit, got, c.want)
		}
	}
}

func TestGauge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var used atomic.Int64
		g := New(1000, used.Load)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go g.Run(ctx)
		for n, want := range map[int64]Level{930: CloseConns, 960: Shed, 100: Normal} {
			used.Store(n)
			time.Sleep(time.Second)
			if got := g.Level(); got != want {
				t.Errorf("at %d: %d, want %d", n, got, want)
			}
			if u, limit := g.Bytes(); u != n || limit != 1000 {
				t.Errorf("%d of %d", u, limit)
			}
		}
	})
	none := New(0, nil)
	none.Run(t.Context()) // nothing to look for: it returns
	if none.Level() != Normal || (*Gauge)(nil).Level() != Normal {
		t.Error("a level without a limit")
	}
}

// Garbage does not count, what is held does.
func TestInUse(t *testing.T) {
	const size = 64 << 20
	runtime.GC()
	before := memoryInUse()
	held := make([]byte, size)
	for i := range held {
		held[i] = 1
	}
	runtime.GC()
	if more := memoryInUse() - before; more < size/2 {
		t.Errorf("%d bytes more with %d held", more, size)
	}
	runtime.KeepAlive(held)
	held = nil
	runtime.GC()
	if more := memoryInUse() - before; more > size/2 {
		t.Errorf("%d bytes more with nothing held", more)
	}
}
