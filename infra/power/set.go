package power

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"time"

	"reveille/infra/catalog"
)

// Bounds on the retries of a Set.
const (
	firstPause    = time.Second
	longPause     = 30 * time.Second
	callTimeout   = 60 * time.Second
	maxCheckPause = 4 * time.Second // maximum pause between two checks whether a stopping host is off
)

// SetConfig configures a Set. Catalog and Drivers are required.
type SetConfig struct {
	// Catalog returns the current catalog. It is called for every operation and must not return nil.
	Catalog func() *catalog.Catalog
	// Drivers maps the driver names in the catalog's hosts to drivers.
	Drivers map[catalog.Driver]Driver
	// Address returns the address with which a host's runner last registered, for hosts of the driver wol without one in
	// the catalog; nil: none is known.
	Address func(ctx context.Context, host string) (string, error)
	// Pool is where groups keep which machine is which host, and where wol reports its packets; nil: hosts of groups are
	// refused with ErrNoDriver.
	Pool Pool
	// CallTimeout bounds the retries of a call that was throttled, or of a Sleep for a host that is still starting;
	// default 60 s. For a host that is stopping, retries continue until the caller's context ends.
	CallTimeout time.Duration
	// Pause is the first pause between two attempts, doubled up to 30 s; default 1 s.
	Pause time.Duration
	Log   *slog.Logger // default: discard
}

// Set is all hosts of a catalog with their drivers. It is safe for concurrent use and has nothing to close.
//
// It is the only retry loop of a wake, on behalf of all requests that wait for the host (its caller holds the host's
// power lease). It retries throttled calls after 1, 2, 4 … s (at most 30 s), and calls for hosts that are still
// stopping after 1, 2, 4, 4 … s. It returns a refusal for lack of capacity immediately, so that the caller can try the
// next host of the model's list for the same held requests and return to this host after its own pause. Retrying here
// would keep those requests waiting for a host that cannot start.
type Set struct{ cfg SetConfig }

// NewSet creates a Set.
func NewSet(cfg SetConfig) *Set {
	cfg.CallTimeout = cmp.Or(max(cfg.CallTimeout, 0), callTimeout)
	cfg.Pause = cmp.Or(max(cfg.Pause, 0), firstPause)
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	cfg.Drivers = maps.Clone(cfg.Drivers)
	for name, d := range cfg.Drivers {
		if g, ok := d.(PoolDriver); ok && cfg.Pool != nil {
			cfg.Drivers[name] = g.WithPool(cfg.Pool)
		}
	}
	return &Set{cfg}
}

// Wake asks the host's driver to turn the host on, and returns when the driver has accepted or refused.
func (s *Set) Wake(ctx context.Context, host string) error {
	return s.repeat(ctx, host, "wake", func(d Driver, h catalog.Host) error { return d.Wake(ctx, h) })
}

// Sleep asks the host's driver to turn the host off. It returns when the driver refuses or reports that the host is
// off, or, if the driver does not know, as soon as it accepts. ErrStopping: the driver accepted, but the host was not
// off when ctx ended. The state is checked immediately, and again after pauses of 1, 2, 4, 4 … s.
func (s *Set) Sleep(ctx context.Context, host string) error {
	err := s.repeat(ctx, host, "sleep", func(d Driver, h catalog.Host) error { return d.Sleep(ctx, h) })
	if err != nil {
		return err
	}
	for pause := s.cfg.Pause; ; pause = min(2*pause, maxCheckPause) {
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
	d, h, err := s.find(ctx, host)
	if err != nil {
		return Unknown, err
	}
	return d.State(ctx, h)
}

// Can reports whether the host can be turned on and off here: it is in the catalog and its driver is available.
func (s *Set) Can(host string) bool {
	entry, ok := s.cfg.Catalog().Host(host)
	return ok && s.cfg.Drivers[entry.Driver] != nil
}

// repeat repeats a call until it is accepted or finally refused.
func (s *Set) repeat(ctx context.Context, host, verb string, call func(Driver, catalog.Host) error) error {
	start, pause := time.Now(), s.cfg.Pause
	for {
		d, h, err := s.find(ctx, host)
		if err == nil {
			err = call(d, h)
		}
		inTime := time.Since(start)+pause <= s.cfg.CallTimeout
		again := errors.Is(err, ErrStopping) || inTime && (errors.Is(err, ErrThrottled) || errors.Is(err, ErrStarting))
		if err == nil || !again {
			if err != nil {
				err = fmt.Errorf("%s host %s: %w", verb, host, err)
			}
			return err
		}
		s.cfg.Log.Info("retrying the driver", "host", host, "verb", verb, "pause", pause, "error", err)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return fmt.Errorf("%s host %s: %w (%w)", verb, host, err, context.Cause(ctx))
		}
		if pause = min(2*pause, longPause); errors.Is(err, ErrStopping) {
			pause = min(pause, maxCheckPause)
		}
	}
}

// find returns a host's entry and driver.
func (s *Set) find(ctx context.Context, host string) (Driver, catalog.Host, error) {
	entry, ok := s.cfg.Catalog().Host(host)
	if !ok {
		return nil, catalog.Host{}, fmt.Errorf("%w: %s is not in the catalog", ErrUnknownHost, host)
	}
	d := s.cfg.Drivers[entry.Driver]
	if d == nil {
		return nil, catalog.Host{}, fmt.Errorf("%w: %s requires driver %s", ErrNoDriver, host, entry.Driver)
	}
	h := *entry
	if h.Driver == catalog.DriverWoL && h.Address == "" && s.cfg.Address != nil {
		h.Address, _ = s.cfg.Address(ctx, host) // without it the driver cannot tell whether the host is on
	}
	return d, h, nil
}
