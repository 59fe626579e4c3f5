package scheduling

import (
	"context"
	"errors"
	"testing"
	"time"
)

// A request's work is not over while its client waits, while nobody has asked its host to wake, or while its ticket is
// being released. It is over although the host still takes minutes to wake.
func TestSettle(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := sleeping()
		answered := make(chan struct{})
		r := start(t, p, func(c *Config) {
			c.Waker = wakerFunc(func(context.Context, string) error { <-answered; return nil })
		})
		settle := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			return r.AwaitIdle(ctx)
		}
		if err := settle(); err != nil {
			t.Fatal("a gate that was asked nothing:", err)
		}
		w := enter(t, r.Gate, WaitRequest{Model: "m0"})
		if err := settle(); !errors.Is(err, context.DeadlineExceeded) {
			t.Error("a request waits:", err)
		}
		w.Leave(false)
		if err := settle(); !errors.Is(err, context.DeadlineExceeded) {
			t.Error("the driver has not answered:", err)
		}
		close(answered)
		if err := settle(); err != nil {
			t.Error("the host wakes without us:", err)
		}
		if p.count("leave") != 1 {
			t.Error("the ticket was not left")
		}
		r.Gate.mu.Lock()
		defer r.Gate.mu.Unlock()
		if len(r.wakes) != 1 {
			t.Error("the duty was given up")
		}
	})
}
