package state_test

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"reveille/infra/state"
)

// A Redis that never responds costs 150 ms for each of five calls and then nothing, apart from one probe every second,
// give or take a fifth (faults 1 and 2). Runs in virtual time.
func TestSilentRedisByTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout, probe = 150 * time.Millisecond, time.Second
		s, err := state.Open(state.Options{URL: "redis://silent", Dial: func(context.Context) (net.Conn, error) {
			near, far := net.Pipe()
			go io.Copy(io.Discard, far)
			return near, nil
		}})
		must(t, err)
		defer s.Close()
		call := func() time.Duration {
			t.Helper()
			began := time.Now()
			if _, err := s.Snapshot(t.Context()); !errors.Is(err, state.ErrUnavailable) {
				t.Fatal(err)
			}
			return time.Since(began)
		}
		for range 5 {
			equal(t, "a call before the breaker opens", call(), timeout)
		}
		for range 20 {
			opened := time.Now()
			for call() == 0 {
				time.Sleep(time.Millisecond)
			}
			if after := time.Since(opened) - timeout; after < probe*4/5-timeout || after > probe*6/5 {
				t.Errorf("probed %v after the last call", after)
			}
		}
	})
}
