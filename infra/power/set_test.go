package power_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/power"
)

const hosts = `
models:
  m: {type: llm, recipe: standin, device: cpu}
hosts:
  box: {driver: local, devices: [cpu]}
  fleet: {driver: asg, group: g, devices: [cpu], max: 4}
  lan: {driver: wol, mac: "00:11:22:33:44:55", devices: [cpu]}
`

// script is a driver that returns its errors in order, then nil.
type script struct {
	off   bool // after an accepted sleep
	lasts int  // number of checks at which it is still stopping
	errs  []error
	calls []catalog.Host
}

func (s *script) call(h catalog.Host) error {
	s.calls = append(s.calls, h)
	if len(s.errs) == 0 {
		return nil
	}
	err := s.errs[0]
	s.errs = s.errs[1:]
	return err
}

func (s *script) Wake(_ context.Context, h catalog.Host) error { return s.call(h) }
func (s *script) Sleep(_ context.Context, h catalog.Host) error {
	err := s.call(h)
	s.off = err == nil
	return err
}
func (s *script) State(_ context.Context, h catalog.Host) (power.Power, error) {
	if s.lasts > 0 {
		s.lasts--
		return power.Stopping, nil
	}
	if s.off {
		return power.Off, nil
	}
	return power.On, s.call(h)
}

func set(t *testing.T, d power.Driver) *power.Set {
	t.Helper()
	c, _, err := catalog.Parse("models.yaml", []byte(hosts))
	if err != nil {
		t.Fatal(err)
	}
	return power.NewSet(power.SetConfig{
		Catalog: func() *catalog.Catalog { return c }, Pause: time.Millisecond, CallTimeout: time.Hour,
		Drivers: map[catalog.Driver]power.Driver{catalog.DriverLocal: d, catalog.DriverASG: d},
	})
}

func TestSetRepeatsOnlyWhatMayPass(t *testing.T) {
	busy := fmt.Errorf("%w: slow down", power.ErrThrottled)
	stopping := fmt.Errorf("%w: i-1", power.ErrStopping)
	starting := fmt.Errorf("%w: i-1", power.ErrStarting)
	for name, tc := range map[string]struct {
		errs  []error
		want  error
		calls int
	}{
		"accepted":                {nil, nil, 1},
		"throttled, then not":     {[]error{busy, busy}, nil, 3},
		"stopping, then stopped":  {[]error{stopping, stopping, stopping}, nil, 4},
		"starting, then started":  {[]error{starting}, nil, 2},
		"no capacity, at once":    {[]error{power.ErrNoCapacity}, power.ErrNoCapacity, 1},
		"capacity lost meanwhile": {[]error{busy, power.ErrNoCapacity}, power.ErrNoCapacity, 2},
		"not permitted":           {[]error{power.ErrDenied}, power.ErrDenied, 1},
		"anything else":           {[]error{errors.ErrUnsupported}, errors.ErrUnsupported, 1},
	} {
		t.Run(name, func(t *testing.T) {
			for verb, call := range map[string]func(*power.Set, context.Context, string) error{"wake": (*power.Set).Wake, "sleep": (*power.Set).Sleep} {
				d := &script{errs: tc.errs}
				if err := call(set(t, d), t.Context(), "box"); !errors.Is(err, tc.want) || (err == nil) != (tc.want == nil) {
					t.Errorf("%s: %v, want %v", verb, err, tc.want)
				}
				if len(d.calls) != tc.calls {
					t.Errorf("%s: %d calls, want %d", verb, len(d.calls), tc.calls)
				}
			}
		})
	}
}

func TestSetEndsWithItsContext(t *testing.T) {
	d := &script{}
	for range 10_000 {
		d.errs = append(d.errs, power.ErrStopping)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	err := set(t, d).Wake(ctx, "box")
	if !errors.Is(err, power.ErrStopping) || !errors.Is(err, context.DeadlineExceeded) {
		t.Error("wake:", err)
	}
}

// A machine that takes 40 s to turn off, as in clouds, is turned on again within 4 s of that.
func TestSetWakesSoonAfterAStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, err := catalog.Parse("models.yaml", []byte(hosts))
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		d := slow(func() bool { return time.Since(start) < 40*time.Second })
		s := power.NewSet(power.SetConfig{Catalog: func() *catalog.Catalog { return c }, Drivers: map[catalog.Driver]power.Driver{catalog.DriverLocal: d}})
		if err := s.Wake(t.Context(), "box"); err != nil || time.Since(start) > 44*time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
	})
}

// slow is a driver whose host is stopping as long as the function returns true.
type slow func() bool

func (d slow) Wake(context.Context, catalog.Host) error {
	if d() {
		return power.ErrStopping
	}
	return nil
}
func (slow) Sleep(context.Context, catalog.Host) error                { return nil }
func (slow) State(context.Context, catalog.Host) (power.Power, error) { return power.Unknown, nil }

func TestSetSleepEndsWhenTheHostIsOff(t *testing.T) {
	d := &script{lasts: 3}
	if err := set(t, d).Sleep(t.Context(), "box"); err != nil || d.lasts != 0 || len(d.calls) != 1 {
		t.Error("sleep:", err, d.lasts, len(d.calls))
	}
	d = &script{lasts: 1_000_000}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := set(t, d).Sleep(ctx, "box"); !errors.Is(err, power.ErrStopping) || !power.Unfinished(err) {
		t.Error("still stopping:", err)
	}
}

func TestSetFindsHosts(t *testing.T) {
	d := &script{}
	s := set(t, d)
	for host, want := range map[string]error{
		"box": nil, "fleet-1": nil, "fleet-4": nil, "fleet": power.ErrUnknownHost,
		"lan": power.ErrNoDriver, "nobody": power.ErrUnknownHost, "": power.ErrUnknownHost,
	} {
		if err := s.Wake(t.Context(), host); !errors.Is(err, want) || (err == nil) != (want == nil) {
			t.Errorf("%q: %v, want %v", host, err, want)
		}
		if s.Can(host) != (want == nil) {
			t.Errorf("%q: can is %v", host, s.Can(host))
		}
	}
}

// A Wake-on-LAN host without an address in the catalog has that of its last registration.
func TestAddressOfTheLastRegistration(t *testing.T) {
	c, _, err := catalog.Parse("models.yaml", []byte(`
hosts:
  pc: {driver: wol, mac: "00:11:22:33:44:55", devices: [cpu]}
  fixed: {driver: wol, mac: "00:11:22:33:44:56", address: "10.0.0.2:8090", devices: [cpu]}
`))
	if err != nil {
		t.Fatal(err)
	}
	d := &addressed{}
	set := power.NewSet(power.SetConfig{
		Catalog: func() *catalog.Catalog { return c }, Drivers: map[catalog.Driver]power.Driver{catalog.DriverWoL: d},
		Address: func(_ context.Context, host string) (string, error) { return host + ":1", nil },
	})
	for host, want := range map[string]string{"pc": "pc:1", "fixed": "10.0.0.2:8090"} {
		if err := set.Wake(t.Context(), host); err != nil || d.address != want {
			t.Errorf("%s: %v, address %q, want %q", host, err, d.address, want)
		}
	}
}

type addressed struct {
	power.Driver
	address string
}

func (d *addressed) Wake(_ context.Context, h catalog.Host) error { d.address = h.Address; return nil }
