package quota

import (
	"slices"
	"sync"
	"time"

	"reveille/gateway/api"
)

const (
	// CrashWindow is the time in which two crashes bar a key from constrained output, and how long it stays barred.
	CrashWindow = 10 * time.Minute

	maxCrashes = 64 // remembered at a time
)

// Crashes is a gateway's record of engines that died, or were ended because they hung, while they had constrained requests
// (grammar, JSON schema, tools). A key is barred from them for [CrashWindow] when two crashes within that time have it, and
// no other key, in common. Requests without a key share the account nil. The zero value has seen none. Methods are safe for
// concurrent use.
type Crashes struct {
	mu     sync.Mutex
	recent []crash // oldest first, at most maxCrashes
	barred map[*Account]time.Time
}

type crash struct {
	engine string
	at     time.Time
	keys   []*Account // one of them caused it; only the barred one where there is one
}

// Note records that an engine died, unless it died since the given request was sent and that is on record. keys are those
// whose constrained requests it had. It returns the key that is barred for it, if any.
func (c *Crashes) Note(engine string, sent, now time.Time, keys []*Account) (barred *Account, is bool) {
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

// barLocked bars a key, and clears the others of the crashes that it explains.
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

// common are the keys of a that b has as well.
func common(a, b []*Account) (both []*Account) {
	for _, key := range a {
		if slices.Contains(b, key) {
			both = append(both, key)
		}
	}
	return both
}

// Rivals are the keys that have crashes of the last [CrashWindow] in common with the given one, where it is open which of
// them caused the crash.
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
		"For %d more seconds send requests without a grammar, a JSON schema or tools.", int((left+time.Second-1)/time.Second)).After(left)
}
