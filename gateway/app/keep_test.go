package app

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

func TestKeeperPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKeeper(func(context.Context, string) error { return nil }, slog.New(slog.DiscardHandler))
		pause := func() time.Duration {
			ended := time.Now()
			k.again(t.Context(), "h")
			return time.Since(ended)
		}
		var got []time.Duration
		for range 11 {
			got = append(got, pause())
			time.Sleep(time.Second)
		}
		if got[0] != firstRestart || got[1] != 2*firstRestart || got[10] != lastRestart {
			t.Errorf("pauses %v: want them to double from %v to %v", got, firstRestart, lastRestart)
		}
		time.Sleep(time.Minute)
		if p := pause(); p != firstRestart {
			t.Errorf("pause after a long life %v, want %v", p, firstRestart)
		}
	})
}

func TestKeeperStartsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var woken []string
		k := newKeeper(func(_ context.Context, host string) error { woken = append(woken, host); return nil }, slog.New(slog.DiscardHandler))
		k.again(t.Context(), "h")
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		k.again(ended, "other")
		if len(woken) != 1 || woken[0] != "h" {
			t.Errorf("woken %v, want h alone", woken)
		}
	})
}
