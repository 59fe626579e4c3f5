// Package quota is the account of one API key at one gateway: how many requests the key may make per time and have open
// at once, how many of them may wait for a model, and how many loads they may start.
//
// Each gateway counts by itself, so that no request waits for another machine. Behind K gateways that share the
// requests, a key gets at most K times its limits.
package quota

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"reveille/gateway/api"
)

// Limits are the limits of a key. A zero field means no limit.
type Limits struct {
	Requests Rate // inference requests
	Loads    Rate // loads that its requests start
	Open     int  // concurrent requests
	Waiting  int  // concurrent requests that wait for a model to be loaded
}

// Rate is N per time, with a burst of N: each use becomes free again after its share of the time. The zero value is no
// limit.
type Rate struct {
	N   int
	Per time.Duration
}

// String returns the form that [ParseRate] reads, or "" for no limit.
func (r Rate) String() string {
	for name, per := range units {
		if r.N > 0 && r.Per == per {
			return strconv.Itoa(r.N) + "/" + name
		}
	}
	return ""
}

var units = map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour}

// ParseRate parses N/s, N/m or N/h with N at least 1.
func ParseRate(s string) (Rate, error) {
	n, unit, _ := strings.Cut(s, "/")
	r := Rate{Per: units[unit]}
	var err error
	if r.N, err = count(n); err != nil || r.Per == 0 {
		return Rate{}, errors.New("want a number of at least 1 and /s, /m or /h")
	}
	return r, nil
}

func count(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil || n == 0 {
		return 0, errors.New("want a number of at least 1")
	}
	return int(n), nil
}

// IsLimit reports whether a word has the form of a limit, valid or not.
func IsLimit(word string) bool {
	name, _, is := strings.Cut(word, "=")
	return is && (name == "requests" || name == "loads" || name == "open" || name == "waiting")
}

// Set parses one limit, such as requests=60/m, loads=20/h, open=8 or waiting=100. Errors do not quote it.
func (l *Limits) Set(word string) (err error) {
	name, value, _ := strings.Cut(word, "=")
	switch name {
	case "requests":
		l.Requests, err = ParseRate(value)
	case "loads":
		l.Loads, err = ParseRate(value)
	case "open":
		l.Open, err = count(value)
	case "waiting":
		l.Waiting, err = count(value)
	default:
		return errors.New("unknown limit: want requests=N/m, loads=N/h, open=N or waiting=N")
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// Account counts the use of a key. A nil Account has no limits. Methods are safe for concurrent use and never block.
type Account struct {
	terms   atomic.Pointer[terms]
	open    atomic.Int64
	waiting atomic.Int64
}

// terms are limits with their buckets.
type terms struct {
	Limits
	requests, loads *rate.Limiter // nil means no limit
}

// New creates an account.
func New(l Limits) *Account {
	a := &Account{}
	a.Change(l)
	return a
}

// Change sets new limits. A bucket whose rate is unchanged keeps its level. It must not be called concurrently.
func (a *Account) Change(l Limits) {
	t, old := &terms{Limits: l}, a.terms.Load()
	if old == nil {
		old = &terms{}
	}
	t.requests = bucket(l.Requests, old.Requests, old.requests)
	t.loads = bucket(l.Loads, old.Loads, old.loads)
	a.terms.Store(t)
}

func bucket(r, was Rate, old *rate.Limiter) *rate.Limiter {
	switch {
	case r.N == 0:
		return nil
	case r == was:
		return old
	}
	return rate.NewLimiter(rate.Every(r.Per/time.Duration(r.N)), r.N)
}

// Begin counts a request, or refuses it with rate_limit_exceeded. After success, the caller must call End.
func (a *Account) Begin() error {
	if a == nil {
		return nil
	}
	t := a.terms.Load()
	if !enter(&a.open, t.Open) {
		return api.Newf(api.RateLimitExceeded, "This key has %d requests open, which is its limit.", t.Open)
	}
	if after := take(t.requests); after > 0 {
		a.open.Add(-1)
		return api.Newf(api.RateLimitExceeded, "This key has made its %s requests.", t.Requests).After(after)
	}
	return nil
}

// End ends a request.
func (a *Account) End() {
	if a != nil {
		a.open.Add(-1)
	}
}

// Wait counts a request that waits for a model to be loaded, or refuses it with queue_full. After success, the caller
// must call Leave.
func (a *Account) Wait() error {
	if a == nil {
		return nil
	}
	if most := a.terms.Load().Waiting; !enter(&a.waiting, most) {
		return api.Newf(api.QueueFull, "%d requests of this key wait for models to be loaded, which is its limit.", most)
	}
	return nil
}

// Leave ends a wait.
func (a *Account) Leave() {
	if a != nil {
		a.waiting.Add(-1)
	}
}

// Load counts a load that a request starts, or refuses it with rate_limit_exceeded.
func (a *Account) Load() error {
	if a == nil {
		return nil
	}
	t := a.terms.Load()
	if after := take(t.loads); after > 0 {
		return api.Newf(api.RateLimitExceeded, "The requests of this key have begun its %s loads; models that are loaded can be used.", t.Loads).After(after)
	}
	return nil
}

// enter increments n unless it has reached most; 0 means no limit.
func enter(n *atomic.Int64, most int) bool {
	for {
		now := n.Load()
		if most > 0 && now >= int64(most) {
			return false
		}
		if n.CompareAndSwap(now, now+1) {
			return true
		}
	}
}

// take takes one from a bucket, or returns how long until there may be one. A refusal leaves the bucket unchanged.
func take(b *rate.Limiter) time.Duration {
	now := time.Now()
	if b == nil || b.AllowN(now, 1) {
		return 0
	}
	missing := 1 - b.TokensAt(now)
	return max(time.Duration(missing/float64(b.Limit())*float64(time.Second)), time.Millisecond)
}
