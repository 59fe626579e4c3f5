package quota

import (
	"slices"
	"sync"
	"time"

	"reveille/gateway/api"
)

const (
	// crashWindow is the time within which two crashes count together, and how long they bar a key.
	crashWindow = 10 * time.Minute

	maxCrashes = 64 // crashes remembered
)

// Crashes bars a key from a model whose engine crashed twice within ten minutes, during two requests of that key and
// while no other key had a request open on it. The zero value has recorded none. Methods are safe for concurrent use.
type Crashes struct {
	mu     sync.Mutex
	recent []crash // oldest first
}

type crash struct {
	host, model string
	at          time.Time
	request     string   // the first that reported it
	key         *Account // of that request
	shared      bool     // another key had a request open as well
}

// Record records that an engine crashed with a request that was sent to it at the given time. Each request that was
// open reports the same crash.
func (c *Crashes) Record(host, model, request string, key *Account, sent, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.recent {
		if old := &c.recent[i]; old.host == host && old.model == model && !sent.After(old.at) {
			old.shared = old.shared || old.key != key
			return
		}
	}
	if len(c.recent) == maxCrashes {
		c.recent = slices.Delete(c.recent, 0, 1)
	}
	c.recent = append(c.recent, crash{host: host, model: model, at: now, request: request, key: key})
}

// Check returns rate_limit_exceeded if the key is refused the model. Requests without a key never are.
func (c *Crashes) Check(key *Account, model string, now time.Time) error {
	if key == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var last crash
	var until time.Time
	for _, one := range c.recent {
		if one.key != key || one.model != model || one.shared || one.request == last.request {
			continue // a request that was repeated after its first crash says nothing about the key's other requests
		}
		if one.at.Sub(last.at) < crashWindow {
			until = one.at.Add(crashWindow)
		}
		last = one
	}
	if left := until.Sub(now); left > 0 {
		return api.Newf(api.RateLimitExceeded, "The engine of '%s' crashed twice while serving only this key's requests. Retry in %d seconds.",
			model, api.Seconds(left)).WithRetryAfter(left)
	}
	return nil
}
