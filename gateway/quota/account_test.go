package quota

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"reveille/gateway/api"
)

func refused(t *testing.T, err error, kind api.Kind, after time.Duration) {
	t.Helper()
	var e *api.Error
	if !errors.As(err, &e) || !errors.Is(err, kind) || after > 0 && e.RetryAfter != after {
		t.Errorf("%v (%+v), want kind %v after %v", err, e, kind, after)
	}
}

func fine(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

func TestRates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := New(Limits{Requests: Rate{2, time.Minute}, Loads: Rate{1, time.Hour}})
		fine(t, a.Begin())
		fine(t, a.Begin())
		refused(t, a.Begin(), api.RateLimitExceeded, 30*time.Second)
		refused(t, a.Begin(), api.RateLimitExceeded, 30*time.Second) // a refusal costs nothing
		fine(t, a.CountLoad())
		refused(t, a.CountLoad(), api.RateLimitExceeded, time.Hour)
		time.Sleep(30 * time.Second)
		fine(t, a.Begin())
		refused(t, a.Begin(), api.RateLimitExceeded, 30*time.Second)
		if n := a.open; n != 3 {
			t.Errorf("%d open, want 3", n)
		}

		a.SetLimits(Limits{Requests: Rate{2, time.Minute}}) // the bucket stays empty
		refused(t, a.Begin(), api.RateLimitExceeded, 30*time.Second)
		fine(t, a.CountLoad())
		a.SetLimits(Limits{Requests: Rate{3, time.Minute}})
		fine(t, a.Begin())
	})
}

func TestCounts(t *testing.T) {
	a := New(Limits{Open: 2, Waiting: 1})
	fine(t, a.Begin())
	fine(t, a.Begin())
	refused(t, a.Begin(), api.RateLimitExceeded, 0)
	a.End()
	fine(t, a.Begin())
	fine(t, a.BeginWait())
	refused(t, a.BeginWait(), api.RateLimitExceeded, 0)
	a.EndWait()
	fine(t, a.BeginWait())
}

func TestNoAccount(t *testing.T) {
	for name, a := range map[string]*Account{"none": nil, "no limits": New(Limits{})} {
		for range 100 {
			if a.Begin() != nil || a.BeginWait() != nil || a.CountLoad() != nil {
				t.Fatal(name)
			}
		}
		a.EndWait()
		a.End()
	}
}

// However many arrive at once, no more than the limit are admitted.
func TestOpenAndWaitingRequestsAreCounted(t *testing.T) {
	a := New(Limits{Open: 5})
	var in, most atomic.Int64
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			for range 200 {
				if a.Begin() == nil {
					most.Store(max(most.Load(), in.Add(1)))
					in.Add(-1)
					a.End()
				}
			}
		})
	}
	wg.Wait()
	if most.Load() > 5 || a.open != 0 {
		t.Errorf("%d at once, %d left", most.Load(), a.open)
	}
}

// Refusals cost nothing, however many there are at once: whatever is due is admitted.
func TestRefusalsTogether(t *testing.T) {
	a := New(Limits{Requests: Rate{1, time.Hour}})
	fine(t, a.Begin())
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 500 {
				if a.Begin() == nil {
					t.Error("let in")
				}
			}
		})
	}
	wg.Wait()
	if left := a.requests.left; left < 0 {
		t.Errorf("%v left", left)
	}
}

// gateways is a pool of n gateways.
type gateways struct {
	n     int
	spent map[string]int64
	keys  []string
}

func (g *gateways) Share(key string)               { g.keys = append(g.keys, key) }
func (g *gateways) Gateways() int                  { return g.n }
func (g *gateways) Spend(key string, tokens int64) { g.spent[key] += tokens }
func (g *gateways) Spent(key string) int64         { return g.spent[key] }

// Each of the pool's gateways lets in its part of the limits, and at least one at a time; a budget is one for all.
func TestGatewaysDivideLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pool := &gateways{n: 1, spent: map[string]int64{}}
		account := func(l Limits) *Account {
			a := New(l)
			a.JoinPool(pool, "ann")
			return a
		}
		admits := func(a *Account) (n int) {
			for a.Begin() == nil {
				n++
			}
			return n
		}
		a := account(Limits{Requests: Rate{60, time.Minute}, Tokens: Rate{600, time.Minute}, Open: 1000, Budget: 5000})
		if n := admits(a); n != 60 {
			t.Errorf("alone: %d", n)
		}
		pool.n = 3
		time.Sleep(time.Minute)
		if n := admits(a); n != 20 {
			t.Errorf("one of three: %d", n)
		}
		if requests, _ := a.States(); requests.Limit != 60 || requests.Remaining != 0 || requests.Reset != time.Minute {
			t.Errorf("%+v", requests)
		}
		time.Sleep(time.Minute)
		a.Charge(300)
		refused(t, a.Begin(), api.RateLimitExceeded, 30300*time.Millisecond)
		time.Sleep(time.Minute)
		fine(t, a.Begin())
		if pool.spent["ann"] != 300 {
			t.Error(pool.spent)
		}
		pool.spent["ann"] = 5000 // by others
		refused(t, a.Begin(), api.InsufficientQuota, 0)

		few := account(Limits{Requests: Rate{1, time.Hour}, Open: 2})
		if n := admits(few); n != 1 {
			t.Errorf("of one an hour and two open: %d", n)
		}
		few.End()
		refused(t, few.Begin(), api.RateLimitExceeded, 3*time.Hour)
		if len(pool.keys) != 2 || pool.keys[0] != "ann" || pool.keys[1] != "" {
			t.Errorf("shared: %q", pool.keys)
		}
	})
}

func TestSet(t *testing.T) {
	var l Limits
	for _, word := range []string{"requests=60/m", "tokens=9/s", "loads=20/h", "budget=5000000000", "open=8", "waiting=100"} {
		fine(t, l.Set(word))
	}
	if want := (Limits{Rate{60, time.Minute}, Rate{9, time.Second}, Rate{20, time.Hour}, 5_000_000_000, 8, 100}); l != want {
		t.Errorf("%+v", l)
	}
	if s := l.Requests.String(); s != "60/m" {
		t.Error(s)
	}
	for _, word := range []string{"requests=60", "requests=0/m", "requests=/m", "requests=1/d", "loads=-1/h", "open=0", "open=x", "open=", "waiting=99999999999", "tokens=5", "budget=0", "budget=5/m", "budget=99999999999999999"} {
		if err := new(Limits).Set(word); err == nil {
			t.Errorf("%s is accepted", word)
		}
	}
}
