package scheduling

import "time"

// backoff records, by key, how often something failed in a row and when it can be tried again. The first free failures
// have no effect. Each further one opens a window that doubles from base up to max. It reads no clock. An unknown key
// has zero times, which mean "now".
type backoff[K comparable] struct {
	base, max time.Duration
	free      int
	byKey     map[K]*failureWindow
}

type failureWindow struct {
	failures int
	until    time.Time
	cause    string // of the last failure: the same cause reported twice counts once
	why      string // of the last failure, for clients
}

// fail records a failure. cause identifies it, because one failure is reported in several ways; why explains it to
// clients.
func (t *backoff[K]) fail(key K, cause, why string, now time.Time) {
	e := t.byKey[key]
	if e == nil {
		e = &failureWindow{}
		t.byKey[key] = e
	}
	if e.cause == cause {
		return
	}
	e.cause, e.why = cause, why
	e.failures++
	if n := e.failures - t.free; n > 0 {
		d := t.max
		if n < 16 { // beyond that, the shift exceeds any sensible limit
			d = min(t.base<<(n-1), t.max)
		}
		e.until = now.Add(d)
	}
}

// succeed forgets the failures of a key.
func (t *backoff[K]) succeed(key K) { delete(t.byKey, key) }

// remaining returns how long the key's window stays open, 0 if it is closed.
func (t *backoff[K]) remaining(key K, now time.Time) time.Duration {
	if e := t.byKey[key]; e != nil {
		return max(0, e.until.Sub(now))
	}
	return 0
}

// why returns the reason of the key's last failure, for clients.
func (t *backoff[K]) why(key K) string {
	if e := t.byKey[key]; e != nil {
		return e.why
	}
	return ""
}

// waitingKeys lists the keys whose windows are open, and when the first of these ends (zero for none).
func (t *backoff[K]) waitingKeys(now time.Time) (keys []K, first time.Time) {
	for k, e := range t.byKey {
		if e.until.After(now) {
			keys = append(keys, k)
			if first.IsZero() || e.until.Before(first) {
				first = e.until
			}
		}
	}
	return keys, first
}
