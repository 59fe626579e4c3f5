package quota

import (
	"context"
	"crypto/rand"
	"sync"
	"sync/atomic"
	"time"

	"reveille/infra/state"
)

const (
	settleEvery  = 100 * time.Millisecond
	settlePause  = 2 * time.Millisecond   // between settlements that requests ask for
	renewEvery   = 2 * time.Second        // between settlements of an account whose requests are all old, and between reports of an idle gateway
	releaseAfter = time.Second            // without use
	aloneAfter   = 500 * time.Millisecond // without a settlement: a gateway counts by itself
	maxClaims    = 256                    // of a settlement
)

// Store settles claims, like [state.Store].
type Store interface {
	SettleQuota(ctx context.Context, gateway string, end bool, claims []state.QuotaClaim) (grants []state.QuotaGrant, gateways int, err error)
}

// Ledger shares accounts with the pool's other gateways. What a key has left is divided equally among the
// gateways that use it, with one share kept in the pool for a gateway that starts to. Run it in one goroutine. It is safe for concurrent use.
type Ledger struct {
	store        Store
	gateway      string
	soon         chan struct{} // capacity 1
	poolGateways atomic.Int64  // gateways in it, as of the last settlement
	needed       atomic.Bool   // an account has a limit to share
	lastSettled  time.Time     // of any account; belongs to Run

	mu       sync.Mutex
	enrolled []*Account // added since the last round
}

// NewLedger makes a ledger.
func NewLedger(store Store) *Ledger {
	return &Ledger{store: store, gateway: rand.Text(), soon: make(chan struct{}, 1)}
}

// gateways returns how many the pool has, at least 1.
func (l *Ledger) gateways() int { return max(int(l.poolGateways.Load()), 1) }

func (l *Ledger) enroll(a *Account) {
	l.mu.Lock()
	l.enrolled = append(l.enrolled, a)
	l.mu.Unlock()
}

func (l *Ledger) settleSoon() {
	select {
	case l.soon <- struct{}{}:
	default:
	}
}

// Run settles accounts in use until ctx ends, and then gives back what it holds.
func (l *Ledger) Run(ctx context.Context) {
	tick := time.NewTicker(settleEvery)
	defer tick.Stop()
	var accounts []*Account
	for {
		accounts = l.settleAll(ctx, accounts, false)
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			l.settleAll(last, accounts, true)
			return
		case <-tick.C:
		case <-l.soon:
			time.Sleep(settlePause - time.Since(l.lastSettled))
		}
	}
}

// settleAll settles the accounts that need it, and returns those that are still in use.
func (l *Ledger) settleAll(ctx context.Context, accounts []*Account, end bool) (inUse []*Account) {
	l.mu.Lock()
	accounts, l.enrolled = append(accounts, l.enrolled...), nil
	l.mu.Unlock()
	now := time.Now()
	var claims []state.QuotaClaim
	var of []*Account
	for i, a := range accounts {
		if c, due := a.claim(now, end); due {
			claims, of = append(claims, c), append(of, a)
		} else {
			inUse = append(inUse, a)
		}
		if len(claims) == maxClaims || len(claims) > 0 && i == len(accounts)-1 {
			grants, err := l.settle(ctx, end, claims)
			for i, a := range of {
				if err != nil {
					a.countAlone(time.Now())
					inUse = append(inUse, a)
				} else if a.grant(&claims[i], &grants[i], now) {
					inUse = append(inUse, a)
				}
			}
			claims, of = claims[:0], of[:0]
		}
	}
	if l.needed.Load() && (end || now.Sub(l.lastSettled) >= renewEvery) {
		_, _ = l.settle(ctx, end, nil) // the next round tries again
	}
	return inUse
}

func (l *Ledger) settle(ctx context.Context, end bool, claims []state.QuotaClaim) ([]state.QuotaGrant, error) {
	grants, gateways, err := l.store.SettleQuota(ctx, l.gateway, end, claims)
	if l.lastSettled = time.Now(); err == nil {
		l.poolGateways.Store(int64(gateways))
	}
	return grants, err
}

// claim returns the account's claim if it is due.
func (a *Account) claim(now time.Time, end bool) (c state.QuotaClaim, due bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	unused := now.Sub(a.usedAt) >= releaseAfter
	c = state.QuotaClaim{Account: a.id, Open: a.open, OpenLimit: a.limits.Open, Idle: end || unused && a.open == 0}
	if unused && !c.Idle && now.Sub(a.settledAt) < renewEvery {
		return c, false
	}
	if a.limits.Open > 0 && !c.Idle { // the pool may take back half of the unused openings, so they are not used before it answers
		if spare := a.openLocked() - a.open; spare > 0 && !a.settledAt.IsZero() {
			a.openAllowance = a.open + (spare+1)/2
		}
		c.Open = max(a.openLocked(), a.open)
	}
	c.Budget, c.Spent = a.limits.Budget > 0, a.spent-a.reported
	a.lastClaim++
	c.Counter, c.Number, c.Booked = a.counter, a.lastClaim, a.lastBooked
	for i, b := range a.buckets() {
		c.Rates[i].Limit, c.Rates[i].Per, c.Rates[i].Held = float64(b.rate.N), b.rate.Per, b.available
	}
	return c, true
}

// grant books the answer to a claim, and reports whether the account is still to be settled.
func (a *Account) grant(c *state.QuotaClaim, g *state.QuotaGrant, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, b := range a.buckets() {
		if float64(b.rate.N) == c.Rates[i].Limit && b.rate.Per == c.Rates[i].Per { // else it has changed meanwhile
			b.available += g.Rates[i].Got
			b.poolLeft, b.updated, b.known = g.Rates[i].Left, now, true
		}
	}
	if c.Budget {
		a.spent += g.Spent - a.reported - c.Spent // what others have used, and what was used here meanwhile
		a.reported = g.Spent
	}
	a.openAllowance, a.settledAt, a.lastBooked = g.Open, now, c.Number
	if c.Idle && a.usedAt.Before(now) {
		a.settledAt, a.enrolled = time.Time{}, false
	}
	return a.enrolled
}

// countAlone lets the account grow by this gateway's share, since the others cannot be asked.
func (a *Account) countAlone(now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.settledAt.IsZero() {
		for _, b := range a.buckets() {
			b.available, b.updated = b.available+float64(b.rate.N)/float64(a.ledger.gateways()), now
		}
		a.settledAt = now
		a.openAllowance = max(a.limits.Open/a.ledger.gateways(), 1)
	}
	if now.Sub(a.settledAt) >= aloneAfter {
		gateways := a.ledger.gateways()
		for _, b := range a.buckets() {
			b.refill(now, gateways)
		}
		a.openAllowance = max(a.limits.Open/a.ledger.gateways(), 1)
	}
}
