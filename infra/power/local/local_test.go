package local_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"reveille/infra/catalog"
	"reveille/infra/power"
	"reveille/infra/power/local"
	"reveille/testenv/waketest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var host = catalog.Host{Name: "local", Driver: catalog.DriverLocal}

// idle runs until it is asked to end.
func idle(ctx context.Context, _ catalog.Host) error {
	<-ctx.Done()
	return nil
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestContract(t *testing.T) {
	waketest.Run(t, func(t *testing.T) waketest.Fixture {
		var starts atomic.Int32
		d := local.New(local.Config{MinLife: 10 * time.Millisecond, Run: func(ctx context.Context, h catalog.Host) error {
			starts.Add(1)
			return idle(ctx, h)
		}})
		t.Cleanup(func() { _ = d.Close() })
		return waketest.Fixture{Driver: d, Host: host, Starts: func() int { return int(starts.Load()) }}
	})
}

func TestAHostThatCannotStart(t *testing.T) {
	for name, why := range map[string]error{"an error": errors.New("bad flag --frobnicate"), "no error": nil} {
		told := make(chan error, 1)
		d := local.New(local.Config{
			MinLife: time.Minute, Run: func(context.Context, catalog.Host) error { return why },
			OnExit: func(h string, err error) { told <- fmt.Errorf("%s: %w", h, err) },
		})
		err := d.Wake(t.Context(), host)
		if !errors.Is(err, power.ErrFailed) || why != nil && !errors.Is(err, why) {
			t.Errorf("%s: wake: %v", name, err)
		}
		if err := <-told; why != nil && !errors.Is(err, why) || !strings.HasPrefix(err.Error(), "local: ") {
			t.Errorf("%s: told %v", name, err)
		}
		if p, _ := d.State(t.Context(), host); p != power.Off {
			t.Errorf("%s: state %v", name, p)
		}
		must(t, d.Close())
	}
}

// A host that ends on its own is told of, one that was asked to end is not; both can be woken again.
func TestAnUnaskedEndIsTold(t *testing.T) {
	told, end := make(chan error, 1), make(chan error)
	d := local.New(local.Config{
		MinLife: time.Millisecond, OnExit: func(_ string, err error) { told <- err },
		Run: func(ctx context.Context, _ catalog.Host) error {
			select {
			case err := <-end:
				return err
			case <-ctx.Done():
				return nil
			}
		},
	})
	defer d.Close()
	must(t, d.Wake(t.Context(), host))
	why := errors.New("another runner took its name")
	end <- why
	if err := <-told; !errors.Is(err, why) {
		t.Error("told:", err)
	}
	must(t, d.Wake(t.Context(), host))
	must(t, d.Sleep(t.Context(), host))
	select {
	case err := <-told:
		t.Error("a sleep was reported as an unexpected end:", err)
	default:
	}
}

// Sleep gives up when its caller does, the host still ends, and a wake waits for that.
func TestASleepGoesOnWithoutItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := local.New(local.Config{Run: func(ctx context.Context, h catalog.Host) error {
			_ = idle(ctx, h)
			time.Sleep(time.Second) // it drains
			return nil
		}})
		defer d.Close()
		must(t, d.Wake(t.Context(), host))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := d.Sleep(ctx, host); !errors.Is(err, power.ErrStopping) {
			t.Error("sleep:", err)
		}
		if err := d.Wake(ctx, host); !errors.Is(err, power.ErrStopping) {
			t.Error("wake of a stopping host:", err)
		}
		if p, _ := d.State(ctx, host); p != power.Stopping {
			t.Error("state:", p)
		}
		must(t, d.Wake(t.Context(), host))
	})
}

// Close ends all hosts, does not wait for one that hangs for longer than its grace, and nothing starts afterwards.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var ended atomic.Int32
		d := local.New(local.Config{Grace: time.Minute, Run: func(ctx context.Context, h catalog.Host) error {
			_ = idle(ctx, h)
			if h.Name == "hangs" {
				<-release
			}
			ended.Add(1)
			return nil
		}})
		for _, name := range []string{"a", "b", "hangs"} {
			must(t, d.Wake(t.Context(), catalog.Host{Name: name}))
		}
		began := time.Now()
		must(t, d.Close())
		if took := time.Since(began); took != time.Minute || ended.Load() != 2 {
			t.Errorf("closed after %v with %d ended", took, ended.Load())
		}
		close(release)
		must(t, d.Close())
		if ended.Load() != 3 {
			t.Error("a second Close does not wait")
		}
		if err := d.Wake(t.Context(), host); !errors.Is(err, power.ErrClosed) {
			t.Error("wake after close:", err)
		}
	})
}
