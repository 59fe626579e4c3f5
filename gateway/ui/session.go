package ui

import (
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"time"

	"reveille/infra/state"
)

// SessionFor is how long a session lasts.
const SessionFor = 12 * time.Hour

// HeaderToken is the header in which the page proves with each request that it sent it: it carries the session's
// token, which only the page can read. A cookie without it counts for nothing.
const HeaderToken = "x-reveille-token"

// Sessions seals a key's digest into a cookie, so that each of the pool's gateways accepts it and none keeps anything.
// It is safe for concurrent use.
type Sessions struct {
	pool string
	name string
	aead cipher.AEAD
}

// Session is what a cookie says. That it could be opened does not mean that its key is still valid: look it up.
type Session struct {
	Key   [sha256.Size]byte // digest of its text
	Ends  time.Time
	Token string // for HeaderToken
}

// A sealed session is the key's digest, the end in Unix seconds, and the token's random bytes.
const (
	tokenBytes   = 16
	sessionBytes = sha256.Size + 8 + tokenBytes
	maxCookie    = 512 // bytes of a cookie's value that are looked at
)

// NewSessions derives the sealing key from the pool's secret.
func NewSessions(secret []byte, pool string) (*Sessions, error) {
	aead, err := state.NewCipher(secret, "reveille page session v1")
	if err != nil {
		return nil, err
	}
	id, err := hkdf.Key(sha256.New, secret, []byte(pool), "reveille page cookie name v1", 4)
	if err != nil {
		return nil, err
	}
	// Cookies are shared by all ports of a host: each pool has its own name.
	return &Sessions{pool: pool, name: "reveille_" + hex.EncodeToString(id), aead: aead}, nil
}

// Cookie is the name of the cookie.
func (s *Sessions) Cookie() string { return s.name }

// Begin makes a session for a key and the value of its cookie.
func (s *Sessions) Begin(key [sha256.Size]byte, now time.Time) (value string, out Session) {
	end := now.Add(SessionFor).Unix()
	plain := binary.BigEndian.AppendUint64(key[:], uint64(end))
	var token [tokenBytes]byte
	_, _ = rand.Read(token[:]) // never fails
	plain = append(plain, token[:]...)
	sealed := s.aead.Seal(nil, nil, plain, []byte(s.pool))
	return base64.RawURLEncoding.EncodeToString(sealed), Session{key, time.Unix(end, 0), hex.EncodeToString(token[:])}
}

// Open reads a cookie's value. It is not ok if Begin of a gateway of this pool has not made it, or if the session is
// over.
func (s *Sessions) Open(value []byte, now time.Time) (out Session, ok bool) {
	if len(value) == 0 || len(value) > maxCookie {
		return Session{}, false
	}
	sealed, err := base64.RawURLEncoding.Strict().AppendDecode(nil, value)
	if err != nil {
		return Session{}, false
	}
	plain, err := s.aead.Open(nil, nil, sealed, []byte(s.pool))
	if err != nil || len(plain) != sessionBytes {
		return Session{}, false
	}
	end := int64(binary.BigEndian.Uint64(plain[sha256.Size:]))
	out = Session{Ends: time.Unix(end, 0), Token: hex.EncodeToString(plain[sha256.Size+8:])}
	copy(out.Key[:], plain)
	return out, now.Before(out.Ends)
}

// ValidToken reports whether a request's HeaderToken is the session's.
func (s Session) ValidToken(token []byte) bool {
	return s.Token != "" && subtle.ConstantTimeCompare([]byte(s.Token), token) == 1
}
