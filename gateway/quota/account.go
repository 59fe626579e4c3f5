package quota

import (
	"sync"
	"time"

	"reveille/gateway/api"
)

// Pool is what gateways that share limits know of each other, implemented by *state.UsageReporter. Its methods do not
// wait.
type Pool interface {
	Share(key string)               // announces that this gateway shares limits and, if key is not "", that key has a budget
	Gateways() int                  // how many share limits, at least 1
	Spend(key string, tokens int64) // adds to what the key has spent of its budget
	Spent(key string) int64         // of its budget, at all gateways
}

// Account counts the use of a key. A nil Account has no limits. Methods are safe for concurrent use and never wait for
// I/O.
type Account struct {
	pool Pool   // nil: this gateway counts alone
	id   string // of the key in the pool

	mu       sync.Mutex
	limits   Limits
	requests bucket
	tokens   bucket
	loads    bucket
	open     int
	waiting  int
	spent    int64 // of the budget, without a pool
}

// New creates an account that this gateway alone counts.
func New(l Limits) *Account {
	a := &Account{}
	a.SetLimits(l)
	return a
}

// JoinPool divides the limits equally among the pool's gateways that share limits; id names the key there. Call it
// before the account is used.
func (a *Account) JoinPool(p Pool, id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pool, a.id = p, id
	a.announceLocked()
}

// announceLocked registers shared limits with the pool.
func (a *Account) announceLocked() {
	switch l := a.limits; {
	case a.pool == nil:
	case l.Budget > 0:
		a.pool.Share(a.id)
	case l.Requests.N+l.Tokens.N+l.Loads.N+l.Open > 0:
		a.pool.Share("")
	}
}

// SetLimits sets new limits. What is left of an unchanged rate stays.
func (a *Account) SetLimits(l Limits) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	a.requests.change(l.Requests, now)
	a.tokens.change(l.Tokens, now)
	a.loads.change(l.Loads, now)
	a.limits = l
	a.announceLocked()
}

func (a *Account) gateways() int {
	if a.pool == nil {
		return 1
	}
	return a.pool.Gateways()
}

// takeLocked takes n from b if at least one is left, even if n is more. Otherwise it takes nothing and returns how long
// until one is left.
func (a *Account) takeLocked(b *bucket, n float64, now time.Time) time.Duration {
	if b.rate.N == 0 {
		return 0
	}
	b.refill(now, a.gateways())
	if b.left < 1 {
		return b.until(1-b.left, a.gateways())
	}
	b.left -= n
	return 0
}

// Begin counts a request, or refuses it with rate_limit_exceeded, or with insufficient_quota if the budget is used up.
// After success, the caller must call End.
func (a *Account) Begin() error {
	if a == nil {
		return nil
	}
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.limits.Open > 0 && a.open >= max(a.limits.Open/a.gateways(), 1) {
		return api.Newf(api.RateLimitExceeded, "Limit reached: %d open requests for this key.", a.limits.Open)
	}
	if a.limits.Budget > 0 && a.spentLocked() >= a.limits.Budget {
		return api.Newf(api.InsufficientQuota, "Budget used up: %d tokens for this key.", a.limits.Budget)
	}
	if after := a.takeLocked(&a.tokens, 0, now); after > 0 {
		return api.Newf(api.RateLimitExceeded, "Rate limit reached: %s tokens.", a.limits.Tokens).WithRetryAfter(after)
	}
	if after := a.takeLocked(&a.requests, 1, now); after > 0 {
		return api.Newf(api.RateLimitExceeded, "Rate limit reached: %s requests.", a.limits.Requests).WithRetryAfter(after)
	}
	a.open++
	return nil
}

func (a *Account) spentLocked() int64 {
	if a.pool == nil {
		return a.spent
	}
	return a.pool.Spent(a.id)
}

// End ends a request.
func (a *Account) End() {
	if a != nil {
		a.mu.Lock()
		a.open--
		a.mu.Unlock()
	}
}

// maxCharge bounds what one response is charged.
const maxCharge = 1e9

// Charge charges tokens that a response has used. If that is more than is left, the account is in debt: requests are
// refused until at least one token is left again.
func (a *Account) Charge(tokens int64) {
	if a == nil || tokens <= 0 {
		return
	}
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	tokens = min(tokens, maxCharge)
	if a.limits.Budget > 0 && a.pool == nil {
		a.spent += tokens
	} else if a.limits.Budget > 0 {
		a.pool.Spend(a.id, tokens)
	}
	if a.tokens.rate.N > 0 {
		a.tokens.refill(now, a.gateways())
		a.tokens.left -= float64(tokens)
	}
}

// CountsTokens reports whether the account has a limit of tokens.
func (a *Account) CountsTokens() bool {
	if a == nil {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.limits.Budget > 0 || a.limits.Tokens.N > 0
}

// BeginWait counts a request that waits for a model to be loaded, or refuses it with queue_full. After success, the
// caller must call EndWait.
func (a *Account) BeginWait() error {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if limit := a.limits.Waiting; limit > 0 && a.waiting >= limit {
		e := api.Newf(api.QueueFull, "Limit reached: %d waiting requests for this key.", limit)
		e.Kind = api.RateLimitExceeded // with QueueFull, Ollama's clients would get 503, as for the queue of all keys
		return e
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
	a.mu.Lock()
	defer a.mu.Unlock()
	if after := a.takeLocked(&a.loads, 1, time.Now()); after > 0 {
		return api.Newf(api.RateLimitExceeded, "Rate limit reached: %s model loads. Models that are already loaded can be used.", a.limits.Loads).WithRetryAfter(after)
	}
	return nil
}

// ReturnLoad gives back a load that was counted and did not start.
func (a *Account) ReturnLoad() {
	if a != nil {
		a.mu.Lock()
		a.loads.left++ // refill takes care of its size
		a.mu.Unlock()
	}
}

// States returns what is left of requests and tokens at this gateway.
func (a *Account) States() (requests, tokens State) {
	if a == nil {
		return State{}, State{}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	now, gateways := time.Now(), a.gateways()
	return a.requests.state(now, gateways), a.tokens.state(now, gateways)
}
