package keys

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"reveille/gateway/quota"
	"reveille/infra/rpc"
)

// Revoked marks a revoked key in Redis. A gateway that has read it never accepts the key again, even if somebody puts
// an older record back.
const Revoked = "revoked"

// MayGrant returns why a key may not make another that is stored with this text: a key cannot grant more than it has.
func (k *Key) MayGrant(text string) error {
	g, err := parseGrant(strings.Fields(text), quota.Limits{})
	switch {
	case err != nil:
		return err
	case g.scopes&^k.Scopes != 0:
		return errors.New("it has a scope that the key of this request lacks")
	case g.cloud && k.isCloud != nil:
		return errors.New("it has cloud=yes, which the key of this request lacks")
	case rpc.ParsePriority(g.maxPriority) < rpc.ParsePriority(k.MaxPriority):
		return errors.New("its requests may have a higher priority than those of the key of this request")
	case k.limitedOrExpires || k.Limited():
		return errors.New("the key of this request expires or has limits")
	}
	return nil
}

// maxGrant is the maximum length in bytes of what is stored for a key.
const maxGrant = 1 << 10

// JoinPool has the pool's gateways divide the limits of all keys. Call it before the set is used.
func (s *Set) JoinPool(p quota.Pool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pool = p
	for d, k := range *s.keys.Load() {
		k.Account.JoinPool(p, accountID(d))
	}
}

func accountID(d digest) string { return hex.EncodeToString(d[:16]) }

// SetStored replaces the keys that are kept in Redis: hex digest → what the key may do, or [Revoked]. It returns an
// error that lists the invalid entries, which grant nothing.
func (s *Set) SetStored(table map[string]string) error {
	stored := make(map[digest]grant, len(table))
	var errs []error
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, text := range table {
		d, err := parseDigest(name)
		if err == nil && text == Revoked {
			if s.revoked == nil {
				s.revoked = map[digest]bool{}
			}
			s.revoked[d] = true
		}
		if s.revoked[d] || err != nil {
			continue
		}
		g, err := parseGrant(strings.Fields(text), s.defaults)
		if err != nil {
			errs = append(errs, fmt.Errorf("api key %.12s in Redis: %w", name, err))
			continue
		}
		stored[d] = g
	}
	s.stored = stored
	s.mergeLocked()
	return errors.Join(errs...)
}

// CheckStored checks an entry before it is stored: the digest of a key and what it may do.
func CheckStored(name, text string) error {
	if _, err := parseDigest(name); err != nil {
		return err
	}
	if len(text) > maxGrant {
		return fmt.Errorf("want at most %d bytes", maxGrant)
	}
	_, err := parseGrant(strings.Fields(text), quota.Limits{})
	return err
}

// An Entry is a key in Redis for people.
type Entry struct {
	ID      string `json:"id"` // beginning of its digest
	Name    string `json:"name"`
	Grant   string `json:"grant"` // as in a line of the keys file
	Revoked bool   `json:"revoked,omitempty"`
	Expired bool   `json:"expired,omitempty"`
}

// List returns the keys of a table of Redis, by name.
func List(table map[string]string) []Entry {
	out := []Entry{}
	for _, name := range slices.Sorted(maps.Keys(table)) {
		if _, err := parseDigest(name); err != nil {
			continue
		}
		l := Entry{ID: name[:idDigits], Revoked: table[name] == Revoked}
		if g, err := parseGrant(strings.Fields(table[name]), quota.Limits{}); err == nil {
			l.Name, l.Grant = g.name, table[name]
			l.Expired = !g.expires.IsZero() && !time.Now().Before(g.expires)
		}
		out = append(out, l)
	}
	slices.SortStableFunc(out, func(a, b Entry) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// idDigits is the length of a key's id.
const idDigits = 12

// ID returns the id of a key with that digest.
func ID(digest [sha256.Size]byte) string { return hex.EncodeToString(digest[:idDigits/2]) }

// Matching returns the digests of a table's keys that are not revoked and have the given name, or whose digest starts
// with the given id of at least eight digits.
func Matching(table map[string]string, id string) (digests []string) {
	for name, text := range table {
		if _, err := parseDigest(name); err != nil || text == Revoked {
			continue
		}
		g, err := parseGrant(strings.Fields(text), quota.Limits{})
		if err == nil && g.name == id || len(id) >= 8 && strings.HasPrefix(name, strings.ToLower(id)) {
			digests = append(digests, name)
		}
	}
	return digests
}
