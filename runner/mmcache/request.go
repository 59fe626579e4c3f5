package mmcache

import (
	"crypto/rand"
	"encoding/hex"
	"sync"
)

// HeaderToken carries [Request.Token] to an attached engine. The interposer reads it from the engine's socket;
// llama-server ignores it.
const HeaderToken = "X-Reveille-Media"

// token identifies one request while it is in its engine. It is random and never leaves the runner and the engine's
// process, so a client cannot forge it, not even with a copy of the header in its body.
type token [16]byte

// A Request is one request in an attached engine.
type Request struct {
	a            *Attachment
	token        token
	mayHaveMedia bool
	ended        bool
	startedAlone bool
	overlaps     uint64
	hits, misses int64
}

// requests tracks the requests in an attachment's engine.
type requests struct {
	mu       sync.Mutex
	tenants  map[token]string
	open     int    // those that may have media
	overlaps uint64 // incremented when one starts while another is open
}

// Begin announces a request before the engine sees it. tenant is its tenant, or "". End it when the engine's first byte
// has arrived or the request has failed.
func (a *Attachment) Begin(tenant string, mayHaveMedia bool) *Request {
	q := &Request{a: a, mayHaveMedia: mayHaveMedia}
	r := &a.requests
	r.mu.Lock()
	defer r.mu.Unlock()
	if a.byKey {
		_, _ = rand.Read(q.token[:]) // never fails
		if r.tenants == nil {
			r.tenants = map[token]string{}
		}
		r.tenants[q.token] = tenant
	}
	if mayHaveMedia {
		q.startedAlone = r.open == 0
		r.open++
		if !q.startedAlone {
			r.overlaps++
		}
		q.overlaps = r.overlaps
		q.hits, q.misses = a.Counts()
	}
	return q
}

// Token returns the value of HeaderToken for the engine. It is nil if the engine's requests need no token, and on a
// nil Request.
func (q *Request) Token() []byte {
	if q == nil || !q.a.byKey {
		return nil
	}
	return hex.AppendEncode(nil, q.token[:])
}

// End returns how many of this request's media came from the cache, and how many were encoded. exact is false if
// another request with media was in the engine at any moment since Begin. Without media, and from the second call on,
// End returns zeros and false. It can be called on nil.
func (q *Request) End() (hits, misses int64, exact bool) {
	if q == nil {
		return 0, 0, false
	}
	hits, misses = q.a.Counts()
	r := &q.a.requests
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.tenants, q.token)
	if q.ended || !q.mayHaveMedia {
		return 0, 0, false
	}
	q.ended = true
	r.open--
	return hits - q.hits, misses - q.misses, q.startedAlone && r.overlaps == q.overlaps
}

// tenantOf returns the tenant of the request that a token identifies. If tenants share nothing and the token is
// unknown, it returns false, and the media are neither looked up nor stored.
func (a *Attachment) tenantOf(t token) (tenant string, ok bool) {
	if !a.byKey {
		return "", true
	}
	a.requests.mu.Lock()
	defer a.requests.mu.Unlock()
	tenant, ok = a.requests.tenants[t]
	return tenant, ok
}
