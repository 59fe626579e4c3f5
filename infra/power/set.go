package power

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"reveille/infra/catalog"
)

// Backoff between the calls of a Set that are repeated, and how long it repeats them.
const (
	firstPause  = time.Second
	longPause   = 30 * time.Second
	callTimeout = 60 * time.Second
	longLook    = 4 * time.Second // longest between two looks whether a host that is stopping is off
)

// SetConfig configures a Set. Catalog and Drivers are required.
type SetConfig struct {
	// Catalog is the catalogue in force. It is called for every operation and must not return nil.
	Catalog func() *catalog.Catalog
	// Drivers by the name that the catalogue's hosts give. It is not changed after NewSet.
	Drivers map[catalog.Driver]Driver
	// CallTimeout bounds how long a call is repeated that was throttled, or that is to end a host still starting; default
	// 60 s. A host that is stopping is waited for until the caller's context ends.
	CallTimeout time.Duration
	// Pause is the first pause between two calls, doubled up to 30 s; default 1 s.
	Pause time.Duration
	Log   *slog.Logger // default: discard
}

// Set is all hosts of a catalogue with their drivers. It is safe for concurrent use and holds nothing to close.
//
// It is the one retry loop of a wake, for all who wait for the host (its caller holds the host's power lease): throttled
// calls are made again after 1, 2, 4 … 30 s, those for hosts that are still stopping after 1, 2, 4, 4 … s. A refusal for lack of capacity is
// returned at once instead: the caller then tries the next host of the model's list within the same held requests, and
// comes back to this one after a pause of its own; repeating here would hold those requests on a host that cannot come.
type Set struct{ cfg SetConfig }

// NewSet makes a Set.
func NewSet(cfg SetConfig) *Set {
	cfg.CallTimeout = cmp.Or(max(cfg.CallTimeout, 0), callTimeout)
	cfg.Pause = cmp.Or(max(cfg.Pause, 0), firstPause)
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	return &Set{cfg}
}

// Wake asks the host's driver to turn it on, and returns when the driver accepted or refused.
func (s *Set) Wake(ctx context.Context, host string) error {
	return s.repeat(ctx, host, "wake", func(d Driver, h catalog.Host) error { return d.Wake(ctx, h) })
}

// Sleep asks the host's driver to turn it off, and returns when the driver says that it is off, or refused; at once after
// the driver accepted where it cannot tell. ErrStopping: the driver accepted, and the host was not off when ctx ended.
func (s *Set) Sleep(ctx context.Context, host string) error {
	err := s.repeat(ctx, host, "sleep", func(d Driver, h catalog.Host) error { return d.Sleep(ctx, h) })
	if err != nil {
		return err
	}
	for pause := s.cfg.Pause; ; pause = min(2*pause, longLook) {
		is, err := s.State(ctx, host)
		if err == nil && (is == Off || is == Unknown) || errors.Is(err, ErrUnknownHost) {
			return nil
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			if err == nil {
				err = fmt.Errorf("it is still %s", is)
			}
			return fmt.Errorf("sleep host %s: %w: %w", host, ErrStopping, err)
		}
	}
}

// State returns the host's power state.
func (s *Set) State(ctx context.Context, host string) (Power, error) {
	d, h, err := s.find(host)
	if err != nil {
		return Unknown, err
	}
	return d.State(ctx, h)
}

// Can reports whether the host can be turned on and off here: the catalogue knows it and its driver is there.
func (s *Set) Can(host string) bool {
	_, _, err := s.find(host)
	return err == nil
}

// repeat makes one call until it is accepted or refused for good.
func (s *Set) repeat(ctx context.Context, host, verb string, call func(Driver, catalog.Host) error) error {
	began, pause := time.Now(), s.cfg.Pause
	for {
		d, h, err := s.find(host)
		if err == nil {
			err = call(d, h)
		}
		patient := time.Since(began)+pause <= s.cfg.CallTimeout
		again := errors.Is(err, ErrStopping) || patient && (errors.Is(err, ErrThrottled) || errors.Is(err, ErrStarting))
		if err == nil || !again {
			if err != nil {
				err = fmt.Errorf("%s host %s: %w", verb, host, err)
			}
			return err
		}
		s.cfg.Log.Info("driver is asked again", "host", host, "verb", verb, "pause", pause, "error", err)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return fmt.Errorf("%s host %s: %w (%w)", verb, host, err, context.Cause(ctx))
		}
		if pause = min(2*pause, longPause); errors.Is(err, ErrStopping) {
			pause = min(pause, longLook)
		}
	}
}

// find returns a host's entry and driver. A member of an Auto Scaling group goes by `entry.instance`, such as
// gpu.i-0123456789abcdef0: it has its group's entry with its own instance.
func (s *Set) find(host string) (Driver, catalog.Host, error) {
	c := s.cfg.Catalog()
	entry, ok := c.Host(host)
	if !ok {
		group, instance, member := strings.Cut(host, ".i-")
		if g, found := c.Host(group); member && found && g.Driver == catalog.DriverASG {
			m := *g
			m.Name, m.Instance = host, "i-"+instance
			entry, ok = &m, true
		}
	}
	if !ok {
		return nil, catalog.Host{}, fmt.Errorf("%w: %s is not in the catalogue", ErrUnknownHost, host)
	}
	d := s.cfg.Drivers[entry.Driver]
	if d == nil {
		return nil, catalog.Host{}, fmt.Errorf("%w: %s wants driver %s", ErrNoDriver, host, entry.Driver)
	}
	return d, *entry, nil
}
