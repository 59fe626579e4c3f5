// Package keys checks API keys, of a file, of flags, and of Redis. A key is stored and looked up only by its SHA-256
// digest, so that no comparison depends on secret bytes, and unknown, withdrawn and missing keys take the same path to
// the same response.
//
// The key file has one key per line: the key, of at least 8 characters, or sha256: and the 64 hex digits of its digest;
// then its scopes, infer and manage, separated by commas (default infer); then limits such as requests=60/m (package
// quota), priority=high if its requests may ask for that, priority=low or priority=background if all have it,
// models=PATTERN,… if it may use these alone, cloud=yes if it may use models in a cloud, and expires=DATE; then a name
// for people. Blank lines and lines that start with # are ignored. The file is read again when it changes. Redis has
// the digest and what follows the key in a line: see [Set.SetStored].
package keys

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"reveille/gateway/quota"
	"reveille/infra/catalog"
	"reveille/infra/jsonscan"
)

// Scopes is a set of permissions of a key.
type Scopes uint8

// Scopes of a key.
const (
	Infer Scopes = 1 << iota
	Manage
)

type digest [sha256.Size]byte

// Key is a valid key.
type Key struct {
	Digest           [sha256.Size]byte // of its text
	Scopes           Scopes
	Account          *quota.Account          // kept as long as the key, however often the file is read
	MaxPriority      string                  // the highest that its requests can have: high, low, background, or "" for normal
	models           []string                // patterns; empty: all
	isCloud          func(model string) bool // of the models that it may not use because they are in a cloud; nil: none
	expires          time.Time               // zero: never
	limitedOrExpires bool                    // it expires, or its limits differ from the defaults
}

// Priority returns the priority of a request that asks for one: high, low, background, or "" for normal.
func (k *Key) Priority(asked []byte) string {
	switch p := string(asked); {
	case k.MaxPriority == "background", p == "background":
		return "background"
	case k.MaxPriority == "low", p == "low":
		return "low"
	case p == "high":
		return k.MaxPriority
	}
	return ""
}

// Limited reports whether the key may use some models only.
func (k *Key) Limited() bool { return len(k.models) > 0 }

// Visible returns those of the models that the key may use.
func (k *Key) Visible(models []string) []string {
	return slices.DeleteFunc(slices.Clone(models), func(id string) bool { return !k.Allows(id) })
}

// Allows reports whether the key may use a model, by its id.
func (k *Key) Allows(model string) bool {
	if k.isCloud != nil && k.isCloud(model) {
		return false
	}
	if !k.Limited() {
		return true
	}
	return slices.ContainsFunc(k.models, func(pattern string) bool { return catalog.MatchPattern(pattern, model) })
}

// Set is the set of valid keys. Make it with Open. It is safe for concurrent use.
type Set struct {
	path     string
	admin    string
	local    string // see AddLocal
	defaults quota.Limits
	keys     atomic.Pointer[map[digest]Key]

	mu      sync.Mutex              // held while keys change
	seen    string                  // the text last read
	file    map[digest]grant        // the file's keys when it was last valid
	stored  map[digest]grant        // kept in Redis; a key of the file or the flags comes first
	revoked map[digest]bool         // once seen, they stay revoked
	isCloud func(model string) bool // see SetCloud
	pool    quota.Pool              // whose gateways divide the limits; nil: this gateway counts alone

	// Keys that were withdrawn within the last hour, the longest time of a rate. A key that comes back, as when an
	// editor has emptied the file before writing it, has not gained anything.
	withdrawn map[digest]withdrawal
}

type withdrawal struct {
	account *quota.Account
	at      time.Time
}

// Open reads the file at path ("" for none) and adds admin ("" for none) as a key with both scopes. each are the limits
// of every key whose line sets no others.
func Open(path, admin string, each quota.Limits) (*Set, error) {
	s := &Set{path: path, admin: admin, defaults: each, withdrawn: map[digest]withdrawal{}}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s, s.readLocked()
}

// readLocked reads the file. If it is not valid, its keys stay as they were.
func (s *Set) readLocked() error {
	if s.path != "" {
		data, err := os.ReadFile(s.path)
		if err != nil {
			return fmt.Errorf("api keys: %w", err)
		}
		s.seen = string(data)
		file := map[digest]grant{}
		if err := parse(data, s.defaults, file); err != nil {
			return fmt.Errorf("api keys %s: %w", s.path, err)
		}
		s.file = file
	}
	s.mergeLocked()
	return nil
}

// mergeLocked builds the set of valid keys from those in Redis, in the file and in the flags.
func (s *Set) mergeLocked() {
	read := map[digest]grant{}
	maps.Copy(read, s.stored)
	maps.Copy(read, s.file)
	if s.admin != "" {
		read[sha256.Sum256([]byte(s.admin))] = grant{scopes: Infer | Manage, maxPriority: "high", cloud: true, limits: s.defaults}
	}
	if s.local != "" {
		read[sha256.Sum256([]byte(s.local))] = grant{scopes: Infer | Manage, maxPriority: "high", cloud: true}
	}
	var old map[digest]Key
	if p := s.keys.Load(); p != nil {
		old = *p
	}
	keys := make(map[digest]Key, len(read))
	now := time.Now()
	for d, k := range old {
		if _, stays := read[d]; !stays {
			s.withdrawn[d] = withdrawal{k.Account, now}
		}
	}
	maps.DeleteFunc(s.withdrawn, func(_ digest, w withdrawal) bool { return now.Sub(w.at) > time.Hour })
	for d, l := range read {
		bounded := !l.expires.IsZero() || l.limits != s.defaults && l.limits != (quota.Limits{})
		k := Key{d, l.scopes, cmp.Or(old[d].Account, s.withdrawn[d].account), l.maxPriority, l.models, nil, l.expires, bounded}
		if !l.cloud {
			k.isCloud = s.isCloud
		}
		delete(s.withdrawn, d)
		if k.Account == nil {
			k.Account = quota.New(l.limits)
			if s.pool != nil {
				k.Account.JoinPool(s.pool, accountID(d))
			}
		} else {
			k.Account.SetLimits(l.limits)
		}
		keys[d] = k
	}
	s.keys.Store(&keys)
}

// grant is what a key may do.
type grant struct {
	scopes      Scopes
	maxPriority string
	limits      quota.Limits
	models      []string
	cloud       bool
	expires     time.Time
	name        string
}

// parse parses the file. Errors give line numbers but never quote a line.
func parse(data []byte, each quota.Limits, into map[digest]grant) error {
	data = jsonscan.TrimMark(data)
	if bytes.IndexByte(data, 0) >= 0 {
		return errors.New("the file is not text in UTF-8: save it as UTF-8")
	}
	var errs []error
	lines := map[digest]int{}
	sc := bufio.NewScanner(bytes.NewReader(data))
	for n := 1; sc.Scan(); n++ {
		f := strings.Fields(sc.Text())
		if len(f) == 0 || strings.HasPrefix(f[0], "#") {
			continue
		}
		if !isKey(f[0]) {
			errs = append(errs, fmt.Errorf("line %d: a key has at least %d letters, digits and other visible characters of ASCII, "+
				"and starts with a letter or digit; `gateway key` makes one", n, minKey))
			continue
		}
		d := digest(sha256.Sum256([]byte(f[0])))
		var err error
		if hexed, ok := strings.CutPrefix(f[0], "sha256:"); ok {
			if d, err = parseDigest(hexed); err != nil {
				errs = append(errs, fmt.Errorf("line %d: %w", n, err))
				continue
			}
		}
		if lines[d] > 0 {
			errs = append(errs, fmt.Errorf("lines %d and %d have the same key", lines[d], n))
			continue
		}
		lines[d] = n
		if into[d], err = parseGrant(f[1:], each); err != nil {
			errs = append(errs, fmt.Errorf("line %d: %w", n, err))
		}
	}
	return errors.Join(append(errs, sc.Err())...)
}

// minKey keeps a word of a note, such as TODO, from becoming a key.
const minKey = 8

// isKey reports whether a word can be a key.
func isKey(word string) bool {
	for i := range len(word) {
		if c := word[i]; c <= ' ' || c > '~' || i == 0 && !isAlphanumeric(c) {
			return false
		}
	}
	return len(word) >= minKey
}

func isAlphanumeric(c byte) bool { return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z' }

func parseDigest(hexed string) (d digest, err error) {
	raw, err := hex.DecodeString(hexed)
	if err != nil || len(raw) != len(d) {
		return d, errors.New("want sha256: and 64 hex digits")
	}
	return digest(raw), nil
}

// misspelled matches a word that can only be meant as a limit.
var misspelled = regexp.MustCompile(`^(models|cloud|expires|priority|requests|tokens|loads|budget|open|waiting)[^\pL\pN]`)

// parseGrant parses what follows a key in its line. Errors quote nothing.
func parseGrant(words []string, each quota.Limits) (grant, error) {
	g := grant{scopes: Infer, limits: each}
	var errs []error
	if len(words) > 0 && !isSetting(words[0]) {
		g.scopes = 0
		for word := range strings.SplitSeq(words[0], ",") {
			switch word {
			case "infer":
				g.scopes |= Infer
			case "manage":
				g.scopes |= Manage
			default:
				errs = append(errs, errors.New("unknown scope: want infer, manage or infer,manage"))
			}
		}
		words = words[1:]
	}
	var name []string
	given := map[string]bool{}
	for _, word := range words { // limits may appear within the name
		if word == "infer" || word == "manage" || word == "infer,manage" || word == "manage,infer" {
			errs = append(errs, errors.New("scopes must directly follow the key"))
			continue
		}
		if !isSetting(word) {
			if misspelled.MatchString(word) {
				errs = append(errs, errors.New("a limit is written with an equals sign, such as models=qwen*"))
			}
			name = append(name, word)
			continue
		}
		of, value, _ := strings.Cut(word, "=")
		if given[of] {
			errs = append(errs, errors.New("a limit is given twice"))
		}
		given[of] = true
		switch of {
		case "priority":
			if g.maxPriority = value; value != "high" && value != "low" && value != "background" {
				errs = append(errs, errors.New("priority: want priority=high, priority=low, priority=background or nothing"))
			}
		case "models":
			g.models = strings.Split(value, ",")
			for _, pattern := range g.models {
				if pattern == "" || !catalog.ValidPattern(pattern) {
					errs = append(errs, errors.New("models: want names or patterns with * and commas, such as models=qwen*,gemma-3"))
				}
			}
		case "cloud":
			if g.cloud = value == "yes"; !g.cloud && value != "no" {
				errs = append(errs, errors.New("cloud: want cloud=yes or cloud=no"))
			}
		case "expires":
			var err error
			if g.expires, err = time.Parse(time.RFC3339, value); err != nil {
				if g.expires, err = time.Parse(time.DateOnly, value); err != nil {
					errs = append(errs, errors.New("expires: want a date such as 2030-01-31, or a time such as 2030-01-31T12:00:00Z"))
				}
			}
		default:
			if err := g.limits.Set(word); err != nil {
				errs = append(errs, err)
			}
		}
	}
	g.name = strings.Join(name, " ")
	return g, errors.Join(errs...)
}

// isSetting reports whether a word has the form of a limit or another setting, valid or not.
func isSetting(word string) bool { return strings.Contains(word, "=") }

// AddLocal adds a key with both scopes, for parts of the program that need a key even if none is configured. It does
// not count as configured. Call it before the set is used.
func (s *Set) AddLocal(key string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.local = key
	return s.readLocked()
}

// SetCloud says which models only keys with cloud=yes may use, by their id. Call it before the set is used.
func (s *Set) SetCloud(isCloud func(model string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.isCloud = isCloud
	s.mergeLocked()
}

// HasLocal reports whether AddLocal was called.
func (s *Set) HasLocal() bool { return s.local != "" }

// Configured reports whether an operator has configured keys. Without any, every route is open that cannot run programs
// or read files on the hosts.
func (s *Set) Configured() bool { return s.path != "" || s.admin != "" }

// Find returns a key; an unknown one has no scopes.
func (s *Set) Find(key []byte) Key { return s.FindDigest(sha256.Sum256(key)) }

// FindDigest is Find by the digest of a key's text.
func (s *Set) FindDigest(d [sha256.Size]byte) Key {
	k := (*s.keys.Load())[d]
	if !k.expires.IsZero() && !time.Now().Before(k.expires) {
		return Key{}
	}
	return k
}

// Withdrawn reports whether a request's key, by its digest, is not valid any more. Without configured keys none is
// needed.
func (s *Set) Withdrawn(d [sha256.Size]byte) bool {
	return s.Configured() && s.FindDigest(d).Scopes == 0
}

// Watch checks the file every interval until ctx ends and reads it again if it has changed, so a withdrawn key stays
// valid for at most interval. If the file cannot be read, the keys stay as they are.
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
		s.Reload(log)
	}
}

// Reload reads the file again if it has changed. If the file cannot be read, the keys stay as they are.
func (s *Set) Reload(log *slog.Logger) {
	s.mu.Lock()
	defer s.mu.Unlock()
	data, err := os.ReadFile(s.path)
	if err == nil && string(data) == s.seen {
		return
	}
	if err := s.readLocked(); err != nil {
		log.Error("could not read the API key file; keeping the keys in use", "error", err)
		return
	}
	log.Info("API keys reloaded", "keys", len(*s.keys.Load()))
}

// FromAuthorization returns the key of an Authorization header: `Bearer KEY`, or HTTP Basic with the key as password.
// It returns nil if there is none.
func FromAuthorization(authorization []byte) []byte {
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

// New generates a key: "rv_" followed by 32 random bytes, encoded.
func New() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails
	return "rv_" + base64.RawURLEncoding.EncodeToString(b[:])
}

// Digest returns the form of a key that the key file may hold instead of the key.
func Digest(key string) string {
	sum := sha256.Sum256([]byte(key))
	return "sha256:" + hex.EncodeToString(sum[:])
}
