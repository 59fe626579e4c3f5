package quota

import (
	"crypto/rand"
	"sync"
	"time"

	"reveille/gateway/api"
)

// Account counts the use of a key. A nil Account has no limits. Methods are safe for concurrent use and never wait for
// I/O.
type Account struct {
	mu       sync.Mutex
	waiting  int
	limits   Limits
	requests bucket
	tokens   bucket
	loads    bucket
	open     int
	spent    int64 // tokens of the budget used by all gateways, as of the last settlement, and by this one since
	reported int64 // the part of spent that the pool knew after the last settlement

	// With a ledger:
	ledger        *Ledger
	id            string
	counter       string    // names this Account in the store
	lastClaim     int64     // number of the last claim made
	lastBooked    int64     // number of the last claim that was answered
	enrolled      bool      // the ledger settles it
	settledAt     time.Time // when it was last settled; zero if it holds nothing
	usedAt        time.Time // when it was last used
	openAllowance int       // requests that may be open at this gateway
}

// New creates an account that this gateway alone counts.
func New(l Limits) *Account {
	a := &Account{}
	a.SetLimits(l)
	return a
}

// UseLedger has the account's limits hold for all gateways whose ledgers share a store; id names the account there. Call it
// before the account is used.
func (a *Account) UseLedger(l *Ledger, id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ledger, a.id, a.counter = l, id, rand.Text()
	if a.sharedLocked() {
		l.needed.Store(true)
	}
	for _, b := range a.buckets() {
		b.available = 0
	}
}

// sharedLocked reports whether the account has a limit that gateways share.
func (a *Account) sharedLocked() bool {
	return a.ledger != nil && (a.limits.Requests.N+a.limits.Tokens.N+a.limits.Loads.N+a.limits.Open > 0 || a.limits.Budget > 0)
}

// SetLimits sets new limits. What is left of an unchanged rate stays.
func (a *Account) SetLimits(l Limits) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	for i, r := range [...]Rate{l.Requests, l.Tokens, l.Loads} {
		b := a.buckets()[i]
		if r != b.rate && a.ledger != nil {
			a.settledAt = time.Time{}
		}
		if b.change(r, now); a.ledger != nil && a.settledAt.IsZero() {
			b.available = 0
		}
	}
	a.limits = l
	if a.sharedLocked() {
		a.ledger.needed.Store(true)
	}
}

// buckets are in the order of a settlement.
func (a *Account) buckets() [3]*bucket { return [...]*bucket{&a.requests, &a.tokens, &a.loads} }

// rounding absorbs the rounding errors of settlements.
const rounding = 1e-3

// takeLocked takes n from b if it has at least atLeast. Otherwise it takes nothing and returns how long until it does.
func (a *Account) takeLocked(b *bucket, n, atLeast float64, now time.Time) time.Duration {
	if b.rate.N == 0 {
		return 0
	}
	floor, pool := 0.0, b.poolLeft
	switch {
	case a.ledger == nil:
		b.refill(now, 1)
	case a.settledAt.IsZero():
		pool = b.poolNow(now)
		// Before the first settlement a gateway may owe the pool its share, at most what the pool is thought to have, and one
		// at least if that is there.
		share := float64(b.rate.N / a.ledger.gateways())
		floor = -max(min(share, pool), min(pool, 1))
	}
	if b.available-atLeast < floor-rounding {
		return b.until(min(atLeast-b.available-pool, atLeast))
	}
	b.available -= n
	return 0
}

// requestSettlementLocked has the ledger settle the account, at once if little is left.
func (a *Account) requestSettlementLocked(now time.Time) {
	if !a.sharedLocked() {
		return
	}
	a.usedAt = now
	if !a.enrolled {
		a.enrolled = true
		a.ledger.enroll(a)
	}
	soon := a.settledAt.IsZero() || a.limits.Open > 0 && a.open >= a.openAllowance && now.Sub(a.settledAt) > settleEvery/4
	for _, b := range a.buckets() {
		soon = soon || b.poolLeft >= 1 && b.available < b.poolLeft/2
	}
	if soon {
		a.ledger.settleSoon()
	}
}

// openLocked returns how many requests may be open at this gateway, 0 for no limit.
func (a *Account) openLocked() int {
	switch most := a.limits.Open; {
	case most == 0 || a.ledger == nil:
		return most
	case a.settledAt.IsZero():
		if g := a.ledger.gateways(); g > 1 {
			return max(most/(20*g), 1) // other gateways may already have the whole limit open
		}
		return most
	default:
		return min(max(a.openAllowance, 0), most)
	}
}

// Begin counts a request, or refuses it with rate_limit_exceeded. After success, the caller must call End.
func (a *Account) Begin() error {
	if a == nil {
		return nil
	}
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	defer a.requestSettlementLocked(now)
	if most := a.openLocked(); most > 0 && a.open >= most || most == 0 && a.limits.Open > 0 {
		return api.Newf(api.RateLimitExceeded, "This key has %d requests open, which is its limit.", a.limits.Open)
	}
	if a.limits.Budget > 0 && a.spent >= a.limits.Budget {
		return api.Newf(api.InsufficientQuota, "This key has used its budget of %d tokens.", a.limits.Budget)
	}
	if after := a.takeLocked(&a.tokens, 0, 1, now); after > 0 {
		return api.Newf(api.RateLimitExceeded, "This key has used its %s tokens.", a.limits.Tokens).WithRetryAfter(after)
	}
	if after := a.takeLocked(&a.requests, 1, 1, now); after > 0 {
		return api.Newf(api.RateLimitExceeded, "This key has made its %s requests.", a.limits.Requests).WithRetryAfter(after)
	}
	a.open++
	return nil
}

// End ends a request.
func (a *Account) End() {
	if a != nil {
		a.mu.Lock()
		a.open--
		a.mu.Unlock()
	}
}

// maxTokens bounds what one answer is charged.
const maxTokens = 1e9

// Charge charges tokens that an answer has used. More than were left are owed: later requests are refused until they are
// paid.
func (a *Account) Charge(tokens int64) {
	if a == nil || tokens <= 0 {
		return
	}
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	tokens = min(tokens, maxTokens)
	if a.limits.Budget > 0 {
		a.spent += tokens
	}
	if a.tokens.rate.N > 0 {
		if a.ledger == nil {
			a.tokens.refill(now, 1)
		}
		a.tokens.available -= float64(tokens)
	}
	a.requestSettlementLocked(now)
}

// BeginWait counts a request that waits for a model to be loaded, or refuses it with queue_full. After success, the caller
// must call EndWait.
func (a *Account) BeginWait() error {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if most := a.limits.Waiting; most > 0 && a.waiting >= most {
		return api.Newf(api.QueueFull, "%d requests of this key wait for models to be loaded, which is its limit.", most)
	}
	a.waiting++
	return nil
}

// EndWait ends a wait.
func (a *Account) EndWait() {
	if a != nil {
		a.mu.Lock()
		a.waiting--
		a.mu.Unlock()
	}
}

// CountLoad counts a load that a request starts, or refuses it with rate_limit_exceeded.
func (a *Account) CountLoad() error {
	if a == nil {
		return nil
	}
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	defer a.requestSettlementLocked(now)
	if after := a.takeLocked(&a.loads, 1, 1, now); after > 0 {
		return api.Newf(api.RateLimitExceeded, "The requests of this key have begun its %s loads; models that are loaded can be used.", a.limits.Loads).WithRetryAfter(after)
	}
	return nil
}

// States returns what is left of requests and tokens, in the whole pool as far as this gateway knows.
func (a *Account) States() (requests, tokens State) {
	if a == nil {
		return State{}, State{}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	of := func(b *bucket) State {
		if a.ledger != nil && a.settledAt.IsZero() { // not known yet: as after a first use of a full one
			full := *b
			full.poolLeft = float64(b.rate.N)
			return full.state()
		}
		return b.state()
	}
	return of(&a.requests), of(&a.tokens)
}
