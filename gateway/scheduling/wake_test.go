package scheduling

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"reveille/gateway/api"
	"reveille/infra/catalog"
	"reveille/infra/state"
)

func sleeping() *pool {
	p := newPool()
	p.host("a", "asleep")
	p.host("b", "asleep")
	return p
}

// wakeBy sets what wakes hosts.
func wakeBy(f wakerFunc) func(*Config) { return func(c *Config) { c.Waker = f } }

// If a request arrives while its host's machine is being turned off, the host is woken the moment that is done, not at
// the next renewal.
func TestWakesAsSoonAsTheStopIsOver(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPool()
		p.host("a", "asleep")
		p.stopping = map[string]bool{"a": true}
		r := start(t, p, wakeBy(func(_ context.Context, host string) error { p.setState(host, "ready"); return nil }))
		w := enter(t, r.Gate, WaitRequest{Model: "m0"})
		time.Sleep(renewEvery*5/2 + renewEvery/10)
		p.set(func() { p.stopping = nil })
		began := time.Now()
		p.publish(state.Event{Kind: "host", Host: "a", State: "asleep", Reason: "done"})
		time.Sleep(renewEvery / 10)
		if st := p.Snapshot().Hosts["a"].State; st == "asleep" {
			t.Errorf("the host is still %s after %v", st, time.Since(began))
		}
		if endpoint, _, err := w.Result(); err != nil || endpoint.Host != "a" {
			t.Fatalf("%+v %v", endpoint, err)
		}
	})
}

// A gateway that stops returns its power lease, and another gateway continues the wake at once.
func TestClosingGateHandsItsWakeBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := sleeping()
		stuck := start(t, p, wakeBy(func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() }))
		enter(t, stuck.Gate, WaitRequest{Model: "m0"})
		time.Sleep(10 * time.Millisecond)
		other := start(t, p, wakeBy(func(_ context.Context, host string) error { p.setState(host, "ready"); return nil }))
		w := enter(t, other.Gate, WaitRequest{Model: "m0"})
		time.Sleep(5 * time.Second)
		if s := w.Progress(); s.Stage != StageWaking {
			t.Fatalf("stage %+v", s)
		}
		stuck.Close()
		time.Sleep(renewEvery / 10)
		if st := p.Snapshot().Hosts["a"].State; st != "ready" {
			t.Errorf("the host is %s", st)
		}
		if endpoint, _, err := w.Result(); err != nil || endpoint.Host != "a" {
			t.Fatalf("%+v %v", endpoint, err)
		}
	})
}

func TestRefusedWakeGoesToTheNextHost(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := sleeping()
		r := start(t, p, wakeBy(func(_ context.Context, host string) error {
			if host == "a" {
				return errors.New("no instances of that type are left")
			}
			p.setState(host, "ready")
			return nil
		}))
		ws := []*Waiter{enter(t, r.Gate, WaitRequest{Model: "m0"}), enter(t, r.Gate, WaitRequest{Model: "m1"})}
		for _, w := range ws {
			if endpoint, _, err := w.Result(); err != nil || endpoint.Host != "b" {
				t.Fatalf("%+v %v", endpoint, err)
			}
		}
	})
}

func TestNoCapacityIsRetriedUntilTheDeadline(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := sleeping()
		var mu sync.Mutex
		began, tries := time.Now(), map[string][]int{} // host → seconds
		r := start(t, p, wakeBy(func(_ context.Context, host string) error {
			mu.Lock()
			defer mu.Unlock()
			tries[host] = append(tries[host], int(time.Since(began).Seconds()))
			return api.New(api.NoCapacity, "none")
		}))
		_, info, err := enter(t, r.Gate, WaitRequest{Model: "m0", Limit: 2 * time.Minute}).Result()
		wantKind(t, err, api.NoCapacity)
		if api.As(err).RetryAfter != time.Minute || info.Waited != 2*time.Minute {
			t.Errorf("%+v after %v", err, info.Waited)
		}
		// 1, 2, 4, 8, 16, 30 and 30 s apart (fault 24).
		want := []int{0, 1, 3, 7, 15, 31, 61, 91}
		for _, host := range []string{"a", "b"} {
			if !slices.Equal(tries[host], want) {
				t.Errorf("%s was to wake after %v s, want %v", host, tries[host], want)
			}
		}
	})
}

// A host that has not come within the limit goes back to sleep, and another is woken, whether its driver has ended or
// still tries.
func TestHostThatNeverComes(t *testing.T) {
	for try := range 20 { // the driver may end before the wake does, or after it
		bubble(t, func(t *testing.T) {
			p := sleeping()
			r := start(t, p, func(c *Config) {
				c.WakeLimit = time.Minute
				c.Waker = wakerFunc(func(ctx context.Context, host string) error {
					if host == "b" {
						p.setState(host, "ready")
					} else if try > 0 {
						<-ctx.Done()
					}
					return ctx.Err()
				})
			})
			endpoint, info, err := enter(t, r.Gate, WaitRequest{Model: "m0"}).Result()
			if err != nil || endpoint.Host != "b" || info.Waited < time.Minute || p.count("failwake") != 1 {
				t.Fatalf("%+v %+v %v", endpoint, info, err)
			}
		})
	}
}

func TestLostPowerLeaseStopsTheDriver(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := sleeping()
		stopped := make(chan struct{})
		r := start(t, p, wakeBy(func(ctx context.Context, _ string) error {
			<-ctx.Done()
			close(stopped)
			return ctx.Err()
		}))
		enter(t, r.Gate, WaitRequest{Model: "m0"})
		time.Sleep(time.Second)
		p.set(func() { p.duties["a"] = "another's" })
		<-stopped
		if p.count("failwake") != 0 {
			t.Error("reported a failure of a wake whose lease it lost")
		}
	})
}

var _ Store = (*state.Store)(nil)
var _ Mirror = (*state.Mirror)(nil)

// A host whose hours of the day are used up, or that rests, is not woken: another host gets the model, and without one
// the refusal says when to try again. A host that is awake serves on.
func TestClosedHosts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := sleeping()
		awake := map[string]time.Duration{"a": 2 * time.Hour}
		r := start(t, p, func(c *Config) {
			c.Waker = wakerFunc(func(_ context.Context, host string) error { p.setState(host, "ready"); return nil })
			c.AwakeToday = func() map[string]time.Duration { return awake }
		})
		a, _ := r.cat.Load().Host("a")
		b, _ := r.cat.Load().Host("b")
		a.DailyHostHours = 2
		get := func(model string) (string, *api.Error) {
			t.Helper()
			endpoint, _, err := enter(t, r.Gate, WaitRequest{Model: model}).Result()
			if err == nil {
				return endpoint.Host, nil
			}
			return "", api.As(err)
		}
		if host, err := get("m0"); host != "b" {
			t.Fatalf("served by %q, %v", host, err)
		}
		b.DailyHostHours = 0.5
		awake["b"] = time.Hour // it is awake, and may go on
		if host, err := get("m1"); host != "b" {
			t.Fatalf("served by %q, %v", host, err)
		}
		p.setState("b", "asleep")
		midnight := time.Now().UTC().Truncate(24 * time.Hour).Add(24 * time.Hour)
		_, err := get("m2")
		if err == nil || err.Kind != api.DailyHostHours || err.Status != 503 || err.RetryAfter.Round(time.Second) != time.Until(midnight).Round(time.Second) {
			t.Fatalf("%+v", err)
		}
		if err := r.WakeHost(t.Context(), "b"); !errors.Is(err, api.DailyHostHours) {
			t.Fatal("an operator's wake:", err)
		}
		var rest catalog.Schedule
		if err := rest.UnmarshalText([]byte(time.Now().Format("4 15 * * *"))); err != nil {
			t.Fatal(err)
		}
		b.DailyHostHours, b.Rest = 0, &catalog.Period{Schedule: rest, For: catalog.Duration(time.Hour)}
		if _, err := get("m3"); err == nil || err.Kind != api.HostResting || err.RetryAfter <= 50*time.Minute || err.RetryAfter > time.Hour {
			t.Fatalf("%+v", err)
		}
		time.Sleep(time.Hour)
		if host, err := get("m4"); host != "b" {
			t.Fatalf("after its rest served by %q, %v", host, err)
		}
	})
}
