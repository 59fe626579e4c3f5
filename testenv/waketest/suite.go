// Package waketest tests the contract of power drivers: every driver runs [Run] against the real platform or the
// closest substitute.
package waketest

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/power"
)

// Fixture is a driver with a host to test it on. Fields other than Driver and Host are optional.
type Fixture struct {
	Driver power.Driver
	Host   catalog.Host // initially off
	// Play does what the driver does not: it boots the machine after a wake, or acts as the runner that turns its
	// machine off. It is called after each accepted wake (On) and sleep (Off).
	Play func(power.Power)
	// Starts returns how often the host was really turned on.
	Starts func() int
	// Keeps says that a wake right after a sleep may find the host on and keep it.
	Keeps bool
	// Strange is a host that the driver must refuse with power.ErrUnknownHost.
	Strange *catalog.Host
	// Blind says that the driver cannot tell a host's state, which is then always power.Unknown.
	Blind bool
}

// waitLimit bounds every wait of the suite.
const waitLimit = 30 * time.Second

// Run checks a driver against the contract of power.Driver. Each part gets its own fixture.
func Run(t *testing.T, fixture func(t *testing.T) Fixture) {
	for _, part := range []struct {
		name string
		test func(*suite)
	}{
		{"a host that is off is already asleep", (*suite).sleepsAlready},
		{"wake and sleep, again and again", (*suite).cycles},
		{"a repeated wake starts once", (*suite).wakesOnce},
		{"a wake right after a sleep succeeds", (*suite).wakeAfterSleep},
		{"an abandoned sleep is repeated until the host is off", (*suite).leftSleep},
		{"concurrent calls", (*suite).atOnce},
		{"an ended context ends the call", (*suite).endedContext},
		{"a strange host is refused", (*suite).strange},
	} {
		t.Run(part.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*waitLimit)
			defer cancel()
			part.test(&suite{t, ctx, fixture(t)})
		})
	}
}

type suite struct {
	t   *testing.T
	ctx context.Context
	f   Fixture
}

func (s *suite) wake() {
	s.t.Helper()
	if err := s.f.Driver.Wake(s.ctx, s.f.Host); err != nil {
		s.t.Fatal("wake: ", err)
	}
	s.play(power.On)
}

func (s *suite) sleep() {
	s.t.Helper()
	if err := s.f.Driver.Sleep(s.ctx, s.f.Host); err != nil {
		s.t.Fatal("sleep: ", err)
	}
	s.play(power.Off)
}

func (s *suite) play(p power.Power) {
	if s.f.Play != nil {
		s.f.Play(p)
	}
}

// becomes waits until the driver reports a state.
func (s *suite) becomes(want power.Power) {
	s.t.Helper()
	var got power.Power
	var err error
	for end := time.Now().Add(waitLimit); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		got, err = s.f.Driver.State(s.ctx, s.f.Host)
		if err == nil && (got == want || s.f.Blind && got == power.Unknown) {
			return
		}
	}
	s.t.Fatalf("state is %q (%v), want %q", got, err, want)
}

func (s *suite) started(want int) {
	s.t.Helper()
	if s.f.Starts == nil {
		return
	}
	for end := time.Now().Add(waitLimit); s.f.Starts() < want && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
	if got := s.f.Starts(); got != want {
		s.t.Fatalf("the host was started %d times, want %d", got, want)
	}
}

func (s *suite) sleepsAlready() {
	s.becomes(power.Off)
	s.sleep()
	s.sleep()
	s.becomes(power.Off)
	s.started(0)
}

func (s *suite) cycles() {
	for i := range 3 {
		s.wake()
		s.becomes(power.On)
		s.started(i + 1)
		s.sleep()
		s.becomes(power.Off)
	}
}

func (s *suite) wakesOnce() {
	s.wake()
	s.wake()
	s.becomes(power.On)
	s.wake()
	s.becomes(power.On)
	s.started(1)
}

// again repeats a call until the host is no longer shutting down, as callers do.
func (s *suite) again(call func(context.Context, catalog.Host) error) error {
	for {
		err := call(s.ctx, s.f.Host)
		if !errors.Is(err, power.ErrStopping) || s.ctx.Err() != nil {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (s *suite) wakeAfterSleep() {
	s.wake()
	s.becomes(power.On)
	s.sleep()
	if err := s.again(s.f.Driver.Wake); err != nil {
		s.t.Fatal("wake of a host that just went to sleep: ", err)
	}
	s.play(power.On)
	s.becomes(power.On)
	if !s.f.Keeps {
		s.started(2)
	}
}

// leftSleep does what sweeps do with a machine that they left before it was off, or that runs unnoticed.
func (s *suite) leftSleep() {
	s.wake()
	s.becomes(power.On)
	order := func(ctx context.Context) {
		s.t.Helper()
		if err := s.f.Driver.Sleep(ctx, s.f.Host); err != nil && !power.Unfinished(err) {
			s.t.Fatal("abandoned sleep: ", err)
		}
	}
	gone, cancel := context.WithCancel(s.ctx)
	cancel()
	order(gone)
	for {
		ctx, cancel := context.WithTimeout(s.ctx, 100*time.Millisecond)
		order(ctx)
		cancel()
		s.play(power.Off)
		is, err := s.f.Driver.State(s.ctx, s.f.Host)
		if err == nil && (is == power.Off || s.f.Blind) {
			break
		}
		if s.ctx.Err() != nil {
			s.t.Fatalf("after many orders the host is %q (%v)", is, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	s.started(1)
}

func (s *suite) atOnce() {
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			verb, call := "wake", s.f.Driver.Wake
			if i%3 == 2 {
				verb, call = "sleep", s.f.Driver.Sleep
			}
			if err := s.again(call); err != nil {
				s.t.Errorf("concurrent %s: %v", verb, err)
			}
		})
	}
	wg.Wait()
	s.play(power.On)
	if err := s.again(s.f.Driver.Wake); err != nil {
		s.t.Fatal("last wake: ", err)
	}
	s.play(power.On)
	s.becomes(power.On)
	if err := s.again(s.f.Driver.Sleep); err != nil {
		s.t.Fatal("last sleep: ", err)
	}
	s.play(power.Off)
	s.becomes(power.Off)
}

func (s *suite) endedContext() {
	ctx, cancel := context.WithCancel(s.ctx)
	cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.f.Driver.Wake(ctx, s.f.Host) // may have been accepted anyway
		_ = s.f.Driver.Sleep(ctx, s.f.Host)
		_, _ = s.f.Driver.State(ctx, s.f.Host)
	}()
	select {
	case <-done:
	case <-time.After(waitLimit):
		s.t.Fatal("calls outlive their context")
	}
}

func (s *suite) strange() {
	if s.f.Strange == nil {
		s.t.Skip("this driver accepts every name")
	}
	for verb, call := range map[string]func(context.Context, catalog.Host) error{"wake": s.f.Driver.Wake, "sleep": s.f.Driver.Sleep} {
		if err := call(s.ctx, *s.f.Strange); !errors.Is(err, power.ErrUnknownHost) {
			s.t.Errorf("%s of a strange host: %v, want power.ErrUnknownHost", verb, err)
		}
	}
}
