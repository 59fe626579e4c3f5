package scheduling

import "time"

// backoff records, by key, how often something failed in a row and when it can be tried again. The first b.free failures
// have no effect. Each further one blocks the key for a time that doubles from base up to max. It reads no clock.
type backoff[K comparable] struct {
	base, max time.Duration
	free      int
	byKey     map[K]*failures
}

type failures struct {
	count     int
	until     time.Time // the key is blocked until then
	failureID string    // of the last failure: one that is reported twice counts once
	message   string    // of the last failure, for clients
}

// fail records a failure, once for each failureID in a row. message explains it to clients.
func (b *backoff[K]) fail(key K, failureID, message string, now time.Time) {
	f := b.byKey[key]
	if f == nil {
		f = &failures{}
		b.byKey[key] = f
	}
	if f.failureID == failureID {
		return
	}
	f.failureID, f.message = failureID, message
	f.count++
	if n := f.count - b.free; n > 0 {
		d := b.max
		if n < 16 { // beyond that, the shift exceeds any sensible limit
			d = min(b.base<<(n-1), b.max)
		}
		f.until = now.Add(d)
	}
}

// succeed forgets the failures of a key.
func (b *backoff[K]) succeed(key K) { delete(b.byKey, key) }

// remaining returns how long the key stays blocked, 0 if it is not.
func (b *backoff[K]) remaining(key K, now time.Time) time.Duration {
	if f := b.byKey[key]; f != nil {
		return max(0, f.until.Sub(now))
	}
	return 0
}

// message returns the message of the key's last failure, for clients.
func (b *backoff[K]) message(key K) string {
	if f := b.byKey[key]; f != nil {
		return f.message
	}
	return ""
}

// blockedKeys lists the blocked keys, and when the first of them can be tried again (zero for none).
func (b *backoff[K]) blockedKeys(now time.Time) (keys []K, first time.Time) {
	for k, f := range b.byKey {
		if f.until.After(now) {
			keys = append(keys, k)
			if first.IsZero() || f.until.Before(first) {
				first = f.until
			}
		}
	}
	return keys, first
}
