package quota

import (
	"sync"
	"time"

	"reveille/gateway/api"
)

// CrashWindow is the time in which two crashes bar a key from constrained output, and how long it stays barred.
const CrashWindow = 10 * time.Minute

// Crashes keeps track of engines that died, or were ended because they hung, under constrained requests (grammar, JSON
// schema, tools) of one key. Two such crashes within [CrashWindow] bar the key from them for CrashWindow. The zero value has seen none. Its size
// is fixed, and its methods are safe for concurrent use.
type Crashes struct {
	mu     sync.Mutex
	engine string    // that died last
	last   time.Time // when it did
	until  time.Time // barred
}

// Note counts the crash of an engine under a request that was sent to it at the given time, and reports whether the key
// is barred now. Requests that died in one crash count once.
func (c *Crashes) Note(engine string, sent, now time.Time) (barred bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if engine == c.engine && !sent.After(c.last) {
		return now.Before(c.until)
	}
	if !c.last.IsZero() && now.Sub(c.last) < CrashWindow {
		c.until = now.Add(CrashWindow)
	}
	c.engine, c.last = engine, now
	return now.Before(c.until)
}

// Check refuses a constrained request of a barred key with rate_limit_exceeded.
func (c *Crashes) Check(now time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	left := c.until.Sub(now)
	if left <= 0 {
		return nil
	}
	return api.Newf(api.RateLimitExceeded, "Engines crashed twice under this key's requests with constrained output. "+
		"For %d more seconds send requests without a grammar, a JSON schema or tools.", int((left+time.Second-1)/time.Second)).After(left)
}
