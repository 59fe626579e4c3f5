// Package keys checks API keys. A key is known by its SHA-256 alone: it is looked up by that digest, so that no compare
// depends on secret bytes, and an unknown, a withdrawn and a missing key take the same path to the same answer.
//
// The file of keys has one key a line: the key, or sha256: and the 64 hex digits of its digest; then its scopes, infer
// and manage, separated by commas (infer alone when absent); then limits such as requests=60/m (package quota) and
// priority=high if the key may use that; then a name for people. Blank lines and lines that begin with # are passed over. The file is read again when it changes.
package keys

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"reveille/gateway/quota"
)

// Scopes is what a key may do.
type Scopes uint8

// The scopes.
const (
	Infer Scopes = 1 << iota
	Manage
)

type digest [sha256.Size]byte

// Key is a key in force.
type Key struct {
	Digest  [sha256.Size]byte // of its text
	Scopes  Scopes
	High    bool           // it may use the priority high
	Account *quota.Account // stays while the key does, however often the file is read
}

// Set is the keys in force. It is safe for concurrent use; the zero value knows no key and is open.
type Set struct {
	path  string
	admin string
	local string // see AddLocal
	each  quota.Limits
	keys  atomic.Pointer[map[digest]Key]

	mu   sync.Mutex // held over a look at the file
	seen string     // the text last read
}

// Open reads the file at path ("" for none) and adds admin ("" for none) as a key with both scopes. each are the limits of
// every key whose line names no other.
func Open(path, admin string, each quota.Limits) (*Set, error) {
	s := &Set{path: path, admin: admin, each: each}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s, s.readLocked()
}

func (s *Set) readLocked() error {
	read := map[digest]line{}
	if s.path != "" {
		data, err := os.ReadFile(s.path)
		if err != nil {
			return fmt.Errorf("api keys: %w", err)
		}
		s.seen = string(data)
		if err := parse(data, s.each, read); err != nil {
			return fmt.Errorf("api keys %s: %w", s.path, err)
		}
	}
	if s.admin != "" {
		read[sha256.Sum256([]byte(s.admin))] = line{Infer | Manage, true, s.each}
	}
	if s.local != "" {
		read[sha256.Sum256([]byte(s.local))] = line{scopes: Infer | Manage, high: true}
	}
	var old map[digest]Key
	if p := s.keys.Load(); p != nil {
		old = *p
	}
	keys := make(map[digest]Key, len(read))
	for d, l := range read {
		k := Key{d, l.scopes, l.high, old[d].Account}
		if k.Account == nil {
			k.Account = quota.New(l.limits)
		} else {
			k.Account.Change(l.limits)
		}
		keys[d] = k
	}
	s.keys.Store(&keys)
	return nil
}

// line is a key's line in the file.
type line struct {
	scopes Scopes
	high   bool
	limits quota.Limits
}

// parse reads lines; errors name lines and never quote them.
func parse(data []byte, each quota.Limits, into map[digest]line) error {
	var errs []error
	sc := bufio.NewScanner(bytes.NewReader(data))
	for n := 1; sc.Scan(); n++ {
		f := strings.Fields(sc.Text())
		if len(f) == 0 || strings.HasPrefix(f[0], "#") {
			continue
		}
		d := digest(sha256.Sum256([]byte(f[0])))
		if hexed, ok := strings.CutPrefix(f[0], "sha256:"); ok {
			raw, err := hex.DecodeString(hexed)
			if err != nil || len(raw) != len(d) {
				errs = append(errs, fmt.Errorf("line %d: want sha256: and 64 hex digits", n))
				continue
			}
			d = digest(raw)
		}
		l := line{Infer, false, each}
		words := f[1:]
		if len(words) > 0 && !quota.IsLimit(words[0]) && !strings.HasPrefix(words[0], priority) {
			l.scopes = 0
			for word := range strings.SplitSeq(words[0], ",") {
				switch word {
				case "infer":
					l.scopes |= Infer
				case "manage":
					l.scopes |= Manage
				default:
					errs = append(errs, fmt.Errorf("line %d: unknown scope: want infer, manage or infer,manage", n))
				}
			}
			words = words[1:]
		}
		for _, word := range words { // limits may stand within the name
			switch {
			case word == "infer" || word == "manage" || word == "infer,manage" || word == "manage,infer":
				errs = append(errs, fmt.Errorf("line %d: scopes stand right behind the key", n))
			case strings.HasPrefix(word, priority):
				if l.high = word == priority+"high"; !l.high {
					errs = append(errs, fmt.Errorf("line %d: priority: want priority=high or nothing", n))
				}
			case quota.IsLimit(word):
				if err := l.limits.Set(word); err != nil {
					errs = append(errs, fmt.Errorf("line %d: %w", n, err))
				}
			}
		}
		into[d] = l
	}
	return errors.Join(append(errs, sc.Err())...)
}

// priority begins the word that lets a key use the priority high.
const priority = "priority="

// AddLocal adds a key with both scopes for what needs a key even where none is configured. It does not count as
// configured. Call it before the set is used.
func (s *Set) AddLocal(key string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.local = key
	return s.readLocked()
}

// HasLocal reports whether AddLocal was called.
func (s *Set) HasLocal() bool { return s.local != "" }

// Configured reports whether an operator gave keys. Without any, what cannot run or read anything on the hosts is open.
func (s *Set) Configured() bool { return s.path != "" || s.admin != "" }

// Find returns a key; an unknown one has no scopes.
func (s *Set) Find(key []byte) Key {
	keys := s.keys.Load()
	if keys == nil {
		return Key{}
	}
	return (*keys)[sha256.Sum256(key)]
}

// Watch reads the file again whenever it changed, looking every interval (so a withdrawn key ends within it), until ctx
// ends. A file that cannot be read leaves the keys as they are.
func (s *Set) Watch(ctx context.Context, interval time.Duration, log *slog.Logger) {
	if s.path == "" {
		return
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		s.Look(log)
	}
}

// Look reads the file again if it has changed. A file that cannot be read leaves the keys as they are.
func (s *Set) Look(log *slog.Logger) {
	s.mu.Lock()
	defer s.mu.Unlock()
	data, err := os.ReadFile(s.path)
	if err == nil && string(data) == s.seen {
		return
	}
	if err := s.readLocked(); err != nil {
		log.Error("api keys stay as they are", "error", err)
		return
	}
	log.Info("api keys read again", "keys", len(*s.keys.Load()))
}

// From finds the key of a request: `Authorization: Bearer KEY`, `x-api-key: KEY`, or HTTP Basic with the key as
// password. nil when there is none.
func From(authorization, apiKey []byte) []byte {
	if len(apiKey) > 0 {
		return apiKey
	}
	scheme, rest, ok := bytes.Cut(authorization, []byte(" "))
	if !ok {
		return nil
	}
	rest = bytes.TrimSpace(rest)
	switch {
	case bytes.EqualFold(scheme, []byte("Bearer")):
		return rest
	case bytes.EqualFold(scheme, []byte("Basic")):
		plain, err := base64.StdEncoding.DecodeString(string(rest))
		if err != nil {
			return nil
		}
		_, password, _ := bytes.Cut(plain, []byte(":"))
		return password
	}
	return nil
}

// IsBasic reports whether the value of an Authorization header is HTTP Basic, which browsers send by themselves.
func IsBasic(authorization []byte) bool {
	scheme, _, _ := bytes.Cut(authorization, []byte(" "))
	return bytes.EqualFold(scheme, []byte("Basic"))
}

// New makes a key: "rv_" and 32 random bytes.
func New() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails
	return "rv_" + base64.RawURLEncoding.EncodeToString(b[:])
}

// Digest is the form of a key that the file of keys may hold in its place.
func Digest(key string) string {
	sum := sha256.Sum256([]byte(key))
	return "sha256:" + hex.EncodeToString(sum[:])
}
