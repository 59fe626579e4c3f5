package quota

import (
	"slices"
	"sync"
	"time"

	"reveille/gateway/api"
)

const (
	// CrashWindow is the time within which two crashes bar a key from constrained output, and how long the key stays
	// barred.
	CrashWindow = 10 * time.Minute

	maxCrashes = 64 // crashes remembered
)

// Crashes records engines that died, or were killed because they hung, while they had constrained requests (grammar,
// JSON schema, tools). If two crashes within [CrashWindow] have exactly one key in common, that key is barred from such
// requests for [CrashWindow]. Requests without a key share the account nil. The zero value has recorded none. Methods
// are safe for concurrent use.
type Crashes struct {
	mu     sync.Mutex
	recent []crash // oldest first, at most maxCrashes
	barred map[*Account]time.Time
}

type crash struct {
	engine string
	at     time.Time
	keys   []*Account // one of them caused it; only the barred one if there is one
}

// Record records that an engine died, unless a crash since the given request was sent is already recorded. keys are the
// owners of the engine's constrained requests. Note returns the key that is barred for it, if any.
func (c *Crashes) Record(engine string, sent, now time.Time, keys []*Account) (barred *Account, is bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forgetLocked(now)
	for _, old := range c.recent {
		if old.engine == engine && !sent.After(old.at) {
			return nil, false
		}
	}
	if len(c.recent) == maxCrashes {
		c.recent = slices.Delete(c.recent, 0, 1)
	}
	c.recent = append(c.recent, crash{engine, now, slices.Clone(keys)})
	for _, old := range slices.Backward(c.recent[:len(c.recent)-1]) {
		if both := common(old.keys, keys); len(both) == 1 {
			c.barLocked(both[0], now)
			return both[0], true
		}
	}
	return nil, false
}

// barLocked bars a key, and clears the other keys of the crashes that it explains.
func (c *Crashes) barLocked(key *Account, now time.Time) {
	if c.barred == nil {
		c.barred = map[*Account]time.Time{}
	}
	c.barred[key] = now.Add(CrashWindow)
	for i := range c.recent {
		if slices.Contains(c.recent[i].keys, key) {
			c.recent[i].keys = []*Account{key}
		}
	}
}

func (c *Crashes) forgetLocked(now time.Time) {
	c.recent = slices.DeleteFunc(c.recent, func(old crash) bool { return now.Sub(old.at) >= CrashWindow })
	for key, until := range c.barred {
		if !now.Before(until) {
			delete(c.barred, key)
		}
	}
}

// common returns the keys that a and b share.
func common(a, b []*Account) (both []*Account) {
	for _, key := range a {
		if slices.Contains(b, key) {
			both = append(both, key)
		}
	}
	return both
}

// Rivals returns the other keys of the given key's crashes within the last [CrashWindow] whose cause is still
// undecided.
func (c *Crashes) Rivals(key *Account, now time.Time) (rivals []*Account) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, old := range c.recent {
		if now.Sub(old.at) >= CrashWindow || !slices.Contains(old.keys, key) {
			continue
		}
		for _, other := range old.keys {
			if other != key && !slices.Contains(rivals, other) {
				rivals = append(rivals, other)
			}
		}
	}
	return rivals
}

// Check refuses a constrained request of a barred key with rate_limit_exceeded.
func (c *Crashes) Check(key *Account, now time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	left := c.barred[key].Sub(now)
	if left <= 0 {
		return nil
	}
	return api.Newf(api.RateLimitExceeded, "Engines crashed twice under this key's requests with constrained output. "+
		"For %d more seconds send requests without a grammar, a JSON schema or tools.", api.Seconds(left)).WithRetryAfter(left)
}
