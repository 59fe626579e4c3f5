package quota

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"reveille/gateway/api"
	"reveille/infra/state"
	"reveille/testenv"
)

// gateways makes n ledgers of one pool on a real Redis, each with an account of the same key.
func gateways(t *testing.T, n int, l Limits) (accounts []*Account, store *state.Store) {
	t.Helper()
	url := "redis://" + testenv.Redis(t) + "/0?" + testenv.PatientCalls
	var stop []func()
	for range n {
		s, err := state.Open(state.Options{URL: url, Pool: "quota", Secret: []byte("0123456789abcdef0123456789abcdef"), Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		store = s
		ledger := NewLedger(s)
		a := New(l)
		a.UseLedger(ledger, "ann")
		accounts = append(accounts, a)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { ledger.Run(ctx) })
		stop = append(stop, func() { cancel(); wg.Wait(); s.Close() })
	}
	for _, a := range accounts { // until each knows of the others
		await(t, func() bool { return a.ledger.gateways() == n })
	}
	t.Cleanup(func() {
		for _, f := range stop {
			f()
		}
	})
	return accounts, store
}

func await(t *testing.T, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it does not become so")
		}
	}
}

// hammer calls use of each account from several callers for a time, and returns how often it succeeded.
func hammer(accounts []*Account, d time.Duration, use func(*Account) error) (n int, took time.Duration) {
	var done atomic.Int64
	var wg sync.WaitGroup
	began := time.Now()
	for _, a := range accounts {
		for range 4 {
			wg.Go(func() {
				for time.Since(began) < d {
					if use(a) == nil {
						done.Add(1)
					}
					time.Sleep(200 * time.Microsecond)
				}
			})
		}
	}
	wg.Wait()
	return int(done.Load()), time.Since(began)
}

func request(a *Account) error {
	err := a.Begin()
	if err == nil {
		a.End()
	}
	return err
}

// Three gateways together let in what the limit says, within 5 %: of the burst and of the rate.
func TestThreeGatewaysShareRequests(t *testing.T) {
	t.Parallel()
	const burst = 600
	accounts, _ := gateways(t, 3, Limits{Requests: Rate{burst, 10 * time.Second}})
	n, took := hammer(accounts, 4*time.Second, request)
	want := burst + burst*took.Seconds()/10
	if float64(n) > 1.05*want || float64(n) < 0.95*want {
		t.Errorf("%d requests in %v, want %.0f", n, took, want)
	}
	t.Logf("%d requests in %v, want %.0f: %+.1f %%", n, took, want, (float64(n)/want-1)*100)
}

// One of three gateways gets all of the limit if the others are not used, and then leaves them nothing.
func TestOneOfThreeGateways(t *testing.T) {
	t.Parallel()
	const burst = 100
	accounts, _ := gateways(t, 3, Limits{Requests: Rate{burst, time.Hour}})
	n := 0
	await(t, func() bool { n += once(accounts[0]); return n >= burst })
	if n > burst {
		t.Errorf("%d requests, want %d", n, burst)
	}
	for _, a := range accounts[1:] {
		for range 100 {
			n += once(a)
			time.Sleep(time.Millisecond)
		}
	}
	if n > burst*105/100+1 {
		t.Errorf("%d requests one gateway after the other, want %d", n, burst)
	}
	t.Logf("%d requests of %d", n, burst)
}

func once(a *Account) int {
	if request(a) == nil {
		return 1
	}
	return 0
}

// Tokens count after the answer. What was used beyond the limit is owed, and whoever asks is refused until it is paid.
func TestThreeGatewaysShareTokens(t *testing.T) {
	t.Parallel()
	const burst, each = 30_000, 100
	accounts, _ := gateways(t, 3, Limits{Tokens: Rate{burst, 10 * time.Second}})
	n, took := hammer(accounts, 4*time.Second, func(a *Account) error {
		err := request(a)
		if err == nil {
			a.Charge(each)
		}
		return err
	})
	want := burst + burst*took.Seconds()/10
	if got := float64(n * each); got > 1.05*want || got < 0.95*want {
		t.Errorf("%.0f tokens in %v, want %.0f", got, took, want)
	}
	t.Logf("%d tokens in %v, want %.0f", n*each, took, want)

	accounts[0].Charge(2 * burst)
	time.Sleep(5 * settleEvery)
	for i, a := range accounts {
		if request(a) == nil {
			t.Errorf("gateway %d lets in a key that owes %d tokens", i, burst)
		}
		if _, left := a.States(); left.Remaining != 0 || left.Reset < 10*time.Second {
			t.Errorf("gateway %d: %+v", i, left)
		}
	}
}

// Requests that are open at once stay within the limit over all gateways, and all of it can be used.
func TestThreeGatewaysShareOpenRequests(t *testing.T) {
	t.Parallel()
	const most = 60
	accounts, _ := gateways(t, 3, Limits{Open: most})
	var open, high atomic.Int64
	_, _ = hammer(accounts, 2*time.Second, func(a *Account) error {
		if err := a.Begin(); err != nil {
			return err
		}
		high.Store(max(high.Load(), open.Add(1)))
		return nil // stays open
	})
	if n := open.Load(); n > most*105/100 || n < most*95/100 {
		t.Errorf("%d open, want %d", n, most)
	}
	for range accounts[0].open {
		accounts[0].End()
		open.Add(-1)
	}
	await(t, func() bool {
		if accounts[1].Begin() == nil {
			open.Add(1)
		}
		return open.Load() >= most*95/100
	})
	if n := open.Load(); n > most*105/100 {
		t.Errorf("%d open after one gateway's ended, want %d", n, most)
	}
}

// A gateway that is not told of others counts by itself, by its part of the limit.
func TestWithoutRedis(t *testing.T) {
	t.Parallel()
	ledger := NewLedger(away{})
	ledger.poolGateways.Store(2)
	a := New(Limits{Requests: Rate{1000, 10 * time.Second}})
	a.UseLedger(ledger, "ann")
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { ledger.Run(ctx) })
	n, took := hammer([]*Account{a}, 3*time.Second, request)
	cancel()
	wg.Wait()
	if most := 500 + 50*took.Seconds() + 1; float64(n) > most || n < 500 {
		t.Errorf("%d requests in %v, want 500 to %.0f", n, took, most)
	}
}

type away struct{}

func (away) SettleQuota(context.Context, string, bool, []state.QuotaClaim) ([]state.QuotaGrant, int, error) {
	return nil, 0, errors.New("away")
}

// A key that pauses between its requests is held to its limits like one that does not.
func TestPausesDoNotRenew(t *testing.T) {
	t.Parallel()
	accounts, _ := gateways(t, 1, Limits{Requests: Rate{2, time.Hour}, Tokens: Rate{10, time.Hour}})
	a := accounts[0]
	pause := func() {
		t.Helper()
		await(t, func() bool { a.mu.Lock(); defer a.mu.Unlock(); return !a.enrolled })
	}
	n := 0
	for range 5 {
		n += once(a)
		pause()
	}
	if n != 2 {
		t.Errorf("%d requests, want 2", n)
	}
}

// A budget is used up by all gateways together, and does not come back: not with time, not for a gateway that starts later.
func TestGatewaysShareABudget(t *testing.T) {
	t.Parallel()
	accounts, store := gateways(t, 3, Limits{Budget: 100})
	for _, a := range accounts {
		if err := request(a); err != nil {
			t.Fatal(err)
		}
		a.Charge(40)
	}
	for i, a := range accounts {
		await(t, func() bool { return errors.Is(request(a), api.InsufficientQuota) })
		a.mu.Lock()
		if a.spent != 120 {
			t.Errorf("gateway %d knows of %d tokens, want 120", i, a.spent)
		}
		a.mu.Unlock()
	}
	later := New(Limits{Budget: 100})
	later.UseLedger(NewLedger(store), "ann")
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { later.ledger.Run(ctx) })
	await(t, func() bool { return errors.Is(request(later), api.InsufficientQuota) })
	later.SetLimits(Limits{Budget: 121}) // more was bought
	if err := request(later); err != nil {
		t.Error(err)
	}
	cancel()
	wg.Wait()
}

// A settlement whose answer is lost is made again, and counts once: of a budget, of what is owed, and of what was granted. One that
// arrives after a later one changes nothing.
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	_, store := gateways(t, 1, Limits{})
	settle := func(c state.QuotaClaim) state.QuotaGrant {
		t.Helper()
		grants, _, err := store.SettleQuota(t.Context(), "g", false, []state.QuotaClaim{c})
		if err != nil {
			t.Fatal(err)
		}
		return grants[0]
	}
	claim := func(number, booked, spent int64, held float64) state.QuotaClaim {
		c := state.QuotaClaim{Account: "bob", Budget: true, Spent: spent, Counter: "c", Number: number, Booked: booked}
		c.Rates[1].Limit, c.Rates[1].Per, c.Rates[1].Held = 1000, 1000*time.Hour, held
		return c
	}
	late := claim(2, 0, 100, -100)
	settle(claim(1, 0, 100, -100)) // used 100 that it did not hold
	for n := int64(3); n < 20; n++ {
		settle(claim(n, 0, 100, -100))
	}
	g := settle(claim(20, 0, 150, -150))
	settle(late)
	if all := -150 + g.Rates[1].Got + g.Rates[1].Left; g.Spent != 150 || all < 849 || all > 851 {
		t.Errorf("150 tokens of 1000 counted %d times as %d, and %.0f are left", 20, g.Spent, all)
	}
	held := -150 + g.Rates[1].Got
	for n := int64(21); n < 40; n++ {
		settle(claim(n, 20, 0, held))
		c := claim(n, 20, 0, held) // another gateway settles meanwhile
		c.Counter, c.Idle, c.Rates[1].Held = "d", true, 0
		settle(c)
	}
	g = settle(claim(40, 20, 50, held-50))
	if all := held - 50 + g.Rates[1].Got + g.Rates[1].Left; g.Spent != 200 || all < 799 || all > 801 {
		t.Errorf("200 tokens of 1000 counted as %d, and %.0f are left", g.Spent, all)
	}
	if g = settle(claim(41, 40, 10, 0)); g.Spent != 210 {
		t.Errorf("after an answer that arrived, 10 tokens more: %d", g.Spent)
	}
}

// lossy loses answers of a store that has settled.
type lossy struct {
	Store
	lost atomic.Int64
}

func (l *lossy) SettleQuota(ctx context.Context, gateway string, end bool, claims []state.QuotaClaim) ([]state.QuotaGrant, int, error) {
	grants, n, err := l.Store.SettleQuota(ctx, gateway, end, claims)
	if len(claims) > 0 && l.lost.Add(-1) >= 0 {
		return nil, 0, errors.New("timeout")
	}
	return grants, n, err
}

// A gateway that gets no answers from a slow Redis charges a key once, and neither takes nor gives it more of its rates.
func TestSlowRedisChargesOnce(t *testing.T) {
	t.Parallel()
	const used, lost = 100, 10
	_, store := gateways(t, 1, Limits{})
	l := &lossy{Store: store}
	l.lost.Store(lost)
	a := New(Limits{Budget: 1000, Tokens: Rate{1000, 1000 * time.Hour}})
	a.UseLedger(NewLedger(l), "cy")
	a.Charge(used)
	a.settledAt = time.Now() // else it adds its share at first
	var accounts []*Account
	for range lost + 1 {
		accounts = a.ledger.settleAll(t.Context(), accounts, false)
	}
	if left := a.tokens.available + a.tokens.poolLeft; a.spent != used || a.reported != used || left < 1000-used-1 || left > 1000-used+1 {
		t.Errorf("%d tokens used once count as %d and %d, and %.0f are left", used, a.spent, a.reported, left)
	}
}
