package state_test

import (
	"fmt"
	"testing"

	"reveille/infra/state"
	"reveille/testenv"
)

// Benchmarks use their own redis-server over loopback.

func benchStore(b *testing.B, hosts, models int) *state.Store {
	b.Helper()
	s, err := state.Open(state.Options{URL: "redis://" + testenv.Redis(b)})
	must(b, err)
	b.Cleanup(func() { _ = s.Close() })
	for h := range hosts {
		loaded := map[string]string{}
		for m := range models {
			loaded[fmt.Sprint("m", m)] = "llm"
		}
		register(b, s, fmt.Sprint("h", h), loaded)
	}
	b.ReportAllocs()
	return s
}

func BenchmarkSnapshot(b *testing.B) {
	for _, hosts := range []int{1, 8, 64} {
		b.Run(fmt.Sprint("hosts=", hosts), func(b *testing.B) {
			s := benchStore(b, hosts, 4)
			for b.Loop() {
				_, err := s.Snapshot(ctx)
				must(b, err)
			}
		})
	}
}

func BenchmarkAcquire(b *testing.B) {
	b.Run("loaded", func(b *testing.B) {
		s := benchStore(b, 8, 4)
		for b.Loop() {
			equal(b, "status", acquire(b, s, state.Want{Gateway: "gw", Model: "m1"}).Status, "loaded")
		}
	})
	b.Run("attach", func(b *testing.B) {
		s := benchStore(b, 8, 4)
		acquire(b, s, want(b, s, "gw", "cold", "h0"))
		for b.Loop() {
			equal(b, "status", acquire(b, s, state.Want{Gateway: "gw", Model: "cold"}).Status, "attached")
		}
	})
	b.Run("load", func(b *testing.B) { // placed, begun, finished
		s := benchStore(b, 1, 4)
		g := register(b, s, "h", nil)
		for b.Loop() {
			a := acquire(b, s, want(b, s, "gw", "cold", "h"))
			must(b, s.Begin(ctx, "h", g, a.Ticket))
			_, err := s.Finish(ctx, "h", g, a.Ticket, state.Outcome{})
			must(b, err)
		}
	})
}

func BenchmarkTouch(b *testing.B) {
	s := benchStore(b, 8, 4)
	toucher := state.NewUsageReporter(s)
	for b.Loop() {
		for m := range 4 {
			toucher.Touch("h1", fmt.Sprint("m", m))
		}
		toucher.Answered(state.Answer{Host: "h1", Model: "m0"})
		must(b, toucher.Flush(ctx))
	}
}

func BenchmarkNote(b *testing.B) { // the cost for a warm request
	s := benchStore(b, 1, 1)
	toucher := state.NewUsageReporter(s)
	for b.Loop() {
		toucher.Touch("h0", "m0")
	}
}
