package ui

import (
	"crypto/sha256"
	"encoding/base64"
	"testing"
	"time"
)

func sessionsOf(t *testing.T, secret, pool string) *Sessions {
	t.Helper()
	s, err := NewSessions([]byte(secret), pool)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

const secret = "a secret of sixteen or more"

func TestSession(t *testing.T) {
	now, key := time.Unix(1_800_000_000, 0), sha256.Sum256([]byte("rv_key"))
	s := sessionsOf(t, secret, "main")
	value, begun := s.Begin(key, now)
	again, other := s.Begin(key, now)
	if again == value || other.Token == begun.Token {
		t.Error("two sessions are alike")
	}
	got, ok := sessionsOf(t, secret, "main").Open([]byte(value), now.Add(SessionFor-time.Second)) // another replica
	if !ok || got != begun || got.Key != key {
		t.Errorf("%v, want %v", got, begun)
	}
	if !got.ValidToken([]byte(begun.Token)) || got.ValidToken([]byte(other.Token)) || got.ValidToken(nil) || (Session{}).ValidToken(nil) {
		t.Error("tokens")
	}
	if _, ok := s.Open([]byte(value), now.Add(SessionFor)); ok {
		t.Error("a session does not end")
	}
	for what, o := range map[string]*Sessions{"secret": sessionsOf(t, secret+"!", "main"), "pool": sessionsOf(t, secret, "next")} {
		if _, ok := o.Open([]byte(value), now); ok {
			t.Errorf("a session of another %s is accepted", what)
		}
		if o.Cookie() == s.Cookie() {
			t.Errorf("another %s has the same cookie", what)
		}
	}
}

// No change of a cookie, and nothing that is none, makes a session.
func TestForgedSessions(t *testing.T) {
	now, s := time.Now(), sessionsOf(t, secret, "main")
	value, _ := s.Begin(sha256.Sum256([]byte("rv_key")), now)
	sealed, err := base64.RawURLEncoding.DecodeString(value)
	if err != nil {
		t.Fatal(err)
	}
	for i := range sealed {
		forged := append([]byte(nil), sealed...)
		forged[i] ^= 1
		if _, ok := s.Open([]byte(base64.RawURLEncoding.EncodeToString(forged)), now); ok {
			t.Errorf("byte %d may be changed", i)
		}
	}
	short := base64.RawURLEncoding.EncodeToString(s.aead.Seal(nil, nil, []byte("short"), []byte("main")))
	for _, v := range []string{"", "x", value[1:], value + "A", value + "==", short, string(make([]byte, 1<<20))} {
		if _, ok := s.Open([]byte(v), now); ok {
			t.Errorf("%.40q is a session", v)
		}
	}
}
