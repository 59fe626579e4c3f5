package mmcache

import (
	"crypto/rand"
	"encoding/hex"
	"sync"
)

// HeaderToken carries [Request.Token] to an attached engine. The interposer reads it from the engine's socket; the engine
// itself does not know it.
const HeaderToken = "X-Reveille-Media"

// token names one request while it is in its engine. Nobody but the runner and the engine knows it, so that a header
// that a client puts into a body names nothing.
type token [16]byte

// A Request is one request in an attached engine.
type Request struct {
	a            *Attachment
	token        token
	counted      bool
	alone        bool
	crowded      uint64
	hits, misses int64
}

// requests are those in the engine of an attachment.
type requests struct {
	mu      sync.Mutex
	scopes  map[token]string
	open    int    // that are counted
	crowded uint64 // rises when one begins while another is open
}

// Begin announces a request of the tenant scope, "" for none, before the engine sees it. counted: it may have media. End it
// when the engine's first byte is there or the request failed.
func (a *Attachment) Begin(scope string, counted bool) *Request {
	q := &Request{a: a, counted: counted}
	r := &a.requests
	r.mu.Lock()
	defer r.mu.Unlock()
	if a.byKey {
		_, _ = rand.Read(q.token[:]) // never fails
		if r.scopes == nil {
			r.scopes = map[token]string{}
		}
		r.scopes[q.token] = scope
	}
	if counted {
		q.alone = r.open == 0
		r.open++
		if !q.alone {
			r.crowded++
		}
		q.crowded = r.crowded
		q.hits, q.misses = a.Counts()
	}
	return q
}

// Token is the value of HeaderToken for the engine; nil where the engine's requests need not be told apart, and on nil.
func (q *Request) Token() []byte {
	if q == nil || !q.a.byKey {
		return nil
	}
	return hex.AppendEncode(nil, q.token[:])
}

// End returns the media of this request that were served from the cache and that were encoded, and whether that is exact,
// which it is when no other request with media was in the engine at any moment since Begin. It may be called once, and
// on nil.
func (q *Request) End() (hits, misses int64, exact bool) {
	if q == nil {
		return 0, 0, false
	}
	hits, misses = q.a.Counts()
	r := &q.a.requests
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.scopes, q.token)
	if !q.counted {
		return 0, 0, false
	}
	r.open--
	return hits - q.hits, misses - q.misses, q.alone && r.crowded == q.crowded
}

// scopeOf is the tenant of the request that an engine names by its token. Where tenants share nothing, a request that is
// not known has no tenant, and its media are neither looked up nor kept.
func (a *Attachment) scopeOf(t token) (scope string, ok bool) {
	if !a.byKey {
		return "", true
	}
	a.requests.mu.Lock()
	defer a.requests.mu.Unlock()
	scope, ok = a.requests.scopes[t]
	return scope, ok
}
