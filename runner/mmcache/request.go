package mmcache

import (
	"crypto/rand"
	"encoding/hex"
	"sync"
)

// HeaderToken carries [Request.Token] to an attached engine. The interposer reads it from the engine's socket; the
// engine itself does not know it.
const HeaderToken = "X-Reveille-Media"

// token identifies one request while it is in its engine. Only the runner and the engine know it, so a header that a
// client sends in a body identifies no request.
type token [16]byte

// A Request is one request in an attached engine.
type Request struct {
	a            *Attachment
	token        token
	counted      bool
	ended        bool
	startedAlone bool
	overlaps     uint64
	hits, misses int64
}

// requests tracks the requests in an attachment's engine.
type requests struct {
	mu       sync.Mutex
	tenants  map[token]string
	open     int    // counted ones
	overlaps uint64 // incremented when one starts while another is open
}

// Begin announces a request before the engine sees it. tenant is its tenant, or ""; counted means that it can have
// media. End it when the engine's first byte has arrived or the request has failed.
func (a *Attachment) Begin(tenant string, counted bool) *Request {
	q := &Request{a: a, counted: counted}
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
	if counted {
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
// another request with media was in the engine at any moment since Begin, and after the first call. End can be called
// on nil.
func (q *Request) End() (hits, misses int64, exact bool) {
	if q == nil {
		return 0, 0, false
	}
	hits, misses = q.a.Counts()
	r := &q.a.requests
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.tenants, q.token)
	if q.ended || !q.counted {
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
