package rpc

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"hash"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// MaxSkew is how far a call's time may be from the runner's clock.
const MaxSkew = 30 * time.Second

// maxOffsets bounds the hosts whose clocks a Signer remembers; beyond it, it learns them again.
const maxOffsets = 1024

// maxCorrection is how far a runner's clock may be from the gateway's.
const maxCorrection = time.Hour

// Errors of Verify.
var (
	ErrSignature = errors.New("signature does not match")
	ErrTime      = errors.New("signed time is more than 30 s off")
	ErrReplay    = errors.New("call was seen before")
	ErrHost      = errors.New("call is meant for another host")
)

// Call is what a signature covers.
type Call struct {
	Method, Path string // path with query as sent
	Host         string // name of the runner's host, without spaces
	Model        string
	CacheTenant  string // HeaderCacheTenant
	Length       int    // of the body, in bytes; 0 for none
}

// Signer signs calls of one gateway process. It is safe for concurrent use.
type Signer struct {
	gateway string
	macs    sync.Pool
	counter atomic.Uint64
	offsets sync.Map // host → ms added to the local clock for its calls, int64
}

// Gateway is the signer's identity, fresh for each process.
func (s *Signer) Gateway() string { return s.gateway }

// NewSigner makes a signer with a fresh identity.
func NewSigner(secret []byte) *Signer {
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails
	return &Signer{gateway: hex.EncodeToString(id[:]), macs: macPool(secret)}
}

// Correct learns the clock of a host's runner (HeaderTime) after it refused a call for its time. It counts for calls to
// that host alone; a clock more than maxCorrection off is not believed.
func (s *Signer) Correct(host string, runnerMS int64) {
	off := runnerMS - time.Now().UnixMilli()
	if off <= maxCorrection.Milliseconds() && off >= -maxCorrection.Milliseconds() {
		n := 0
		s.offsets.Range(func(any, any) bool { n++; return n < maxOffsets })
		if n == maxOffsets {
			s.offsets.Clear()
		}
		s.offsets.Store(host, off)
	}
}

// Tenant names the holder of an API key to runners and Redis, which keep the data of tenants apart: 32 hex digits that
// are the same on all gateways of the pool and reveal nothing about the key, given its SHA-256.
func (s *Signer) Tenant(key [sha256.Size]byte) string {
	m := s.macs.Get().(*mac)
	defer s.macs.Put(m)
	m.text = append(m.text[:0], "reveille scope v1\x00"...) // calls start with "v2 "
	m.text = append(m.text, key[:]...)
	return hex.EncodeToString(m.sum()[:16])
}

// Sign returns the value of HeaderAuth for a call. Each call needs its own.
func (s *Signer) Sign(c Call) string {
	n := s.counter.Add(1)
	ms := time.Now().UnixMilli()
	if off, ok := s.offsets.Load(c.Host); ok {
		ms += off.(int64)
	}
	var buf [128]byte
	head := append(buf[:0], "v2 "...)
	head = append(head, s.gateway...)
	head = append(head, ' ')
	head = strconv.AppendUint(head, n, 10)
	head = append(head, ' ')
	head = strconv.AppendInt(head, ms, 10)
	head = append(head, ' ')
	head = append(head, c.Host...)
	m := s.macs.Get().(*mac)
	defer s.macs.Put(m)
	head = append(head, ' ')
	return string(base64.RawURLEncoding.AppendEncode(head, m.of(head[:len(head)-1], c)))
}

func macPool(secret []byte) sync.Pool {
	key := append([]byte(nil), secret...)
	return sync.Pool{New: func() any { return &mac{hash: hmac.New(sha256.New, key)} }}
}

// mac is a hash under the secret and the memory that it needs, for one goroutine at a time.
type mac struct {
	hash hash.Hash // after a Reset it goes on from the state behind the key
	text []byte
	out  [sha256.Size]byte
}

// sum returns the hash of text, valid until the next one.
func (m *mac) sum() []byte {
	m.hash.Reset()
	m.hash.Write(m.text)
	return m.hash.Sum(m.out[:0])
}

// of covers head, which names the host, and the call's parts, each ended by a zero byte, which none of them can hold.
// The result is valid until the next one.
func (m *mac) of(head []byte, c Call) []byte {
	b := append(m.text[:0], head...)
	for _, part := range [...]string{c.Method, c.Path, c.Model, c.CacheTenant} {
		b = append(b, 0)
		b = append(b, part...)
	}
	b = append(b, 0)
	m.text = strconv.AppendInt(b, int64(c.Length), 10)
	return m.sum()
}

// Verifier checks signatures on one host. It is safe for concurrent use.
type Verifier struct {
	macs    sync.Pool
	started time.Time

	mu      sync.Mutex
	windows map[string]*window // by gateway; idle ones go, since their times are no longer accepted
	swept   time.Time
}

// NewVerifier makes a verifier for the pool's runner secret.
func NewVerifier(secret []byte) *Verifier {
	return &Verifier{macs: macPool(secret), started: time.Now(), windows: map[string]*window{}}
}

// Verify accepts a call once and returns the gateway that made it. c.Host is the verifier's own. Errors: ErrSignature,
// ErrHost (signed in order, for another host), ErrTime (send the caller your time), ErrReplay. A call signed before the
// verifier was made counts as ErrTime: an earlier process of the host may have accepted it.
func (v *Verifier) Verify(auth string, c Call, now time.Time) (gateway string, err error) {
	i := strings.LastIndexByte(auth, ' ')
	if i < 0 || len(auth) > 256 {
		return "", ErrSignature
	}
	f := strings.Split(auth[:i], " ")
	if len(f) != 5 || f[0] != "v2" {
		return "", ErrSignature
	}
	n, err1 := strconv.ParseUint(f[2], 10, 64)
	ms, err2 := strconv.ParseInt(f[3], 10, 64)
	got, err3 := base64.RawURLEncoding.DecodeString(auth[i+1:])
	if err1 != nil || err2 != nil || err3 != nil {
		return "", ErrSignature
	}
	m := v.macs.Get().(*mac)
	same := subtle.ConstantTimeCompare(got, m.of([]byte(auth[:i]), c)) == 1
	v.macs.Put(m)
	if !same {
		return "", ErrSignature
	}
	if f[4] != c.Host {
		return "", ErrHost
	}
	if now.Sub(v.started) < 2*MaxSkew && ms < v.started.UnixMilli() {
		return "", ErrTime
	}
	if d := now.UnixMilli() - ms; d > MaxSkew.Milliseconds() || d < -MaxSkew.Milliseconds() {
		return "", ErrTime
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.sweepLocked(now)
	w := v.windows[f[1]]
	if w == nil {
		w = &window{}
		v.windows[f[1]] = w
	}
	w.used = now
	if !w.accept(n) {
		return "", ErrReplay
	}
	return f[1], nil
}

// sweepLocked forgets gateways whose every signed time has left the accepted range.
func (v *Verifier) sweepLocked(now time.Time) {
	if now.Sub(v.swept) < MaxSkew {
		return
	}
	v.swept = now
	for id, w := range v.windows {
		if now.Sub(w.used) > 3*MaxSkew {
			delete(v.windows, id)
		}
	}
}

const windowBits = 1 << 14 // calls that may overtake one another

// window remembers which of the last windowBits counters were seen.
type window struct {
	top  uint64
	used time.Time
	seen [windowBits / 64]uint64
}

// accept reports whether n is new and marks it. Counters below the window are refused.
func (w *window) accept(n uint64) bool {
	if n == 0 || n+windowBits <= w.top {
		return false
	}
	if n > w.top {
		if n-w.top >= windowBits {
			w.seen = [windowBits / 64]uint64{}
		} else {
			for i := w.top + 1; i < n; i++ {
				w.seen[i/64%uint64(len(w.seen))] &^= 1 << (i % 64)
			}
		}
		w.top = n
		w.seen[n/64%uint64(len(w.seen))] |= 1 << (n % 64)
		return true
	}
	word, bit := &w.seen[n/64%uint64(len(w.seen))], uint64(1)<<(n%64)
	if *word&bit != 0 {
		return false
	}
	*word |= bit
	return true
}
