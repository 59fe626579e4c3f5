package state

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// Options of a Store.
type Options struct {
	URL     string        // redis://, rediss:// or unix://; several hosts separated by commas, or ?cluster=true, are a Cluster; ?master_name= a Sentinel
	Pool    string        // the deployment's name; default "main"
	Secret  []byte        // the pool's runner secret: what others act on is signed with it, see Store.Refused
	Timeout time.Duration // of one call; default: the URL's read_timeout, or else 150 ms
	Log     *slog.Logger  // default: discard
	Now     func() int64  // ms since the epoch for scripts, simulations only; nil: Redis' own clock

	// Unverified takes records however they are signed: for programs that only show them.
	Unverified bool

	// Dial makes the connections, whatever host the URL names; simulations only. nil: over the network.
	Dial func(ctx context.Context) (net.Conn, error)
}

// Store is the pool's state in Redis. It is safe for concurrent use. Calls end within Options.Timeout; a Redis that
// cannot answer is ErrUnavailable.
type Store struct {
	rdb     redis.UniversalClient
	keys    keys
	scripts scripts
	signer  *signer
	breaker breaker
	timeout time.Duration
	newest  atomic.Uint64 // highest ticket that Acquire returned
	now     func() int64
	log     *slog.Logger
}

const defaultTimeout = 150 * time.Millisecond

// Open makes a Store. It does not wait for Redis: the first call does. Close it when done.
func Open(o Options) (*Store, error) {
	o.Pool = cmp.Or(o.Pool, "main")
	if !validPool(o.Pool) {
		return nil, fmt.Errorf("pool %q: braces, colons and white space are not allowed", o.Pool)
	}
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	uo, err := universalOptions(o)
	if err != nil {
		return nil, err
	}
	s := &Store{
		rdb: newClient(uo), keys: newKeys(o.Pool), scripts: newScripts(), breaker: breaker{log: o.Log},
		timeout: uo.ReadTimeout, now: o.Now, log: o.Log,
	}
	s.signer = newSigner(o.Secret, o.Pool, o.Unverified, s.reportRefused)
	return s, nil
}

// Close ends all connections.
func (s *Store) Close() error { return s.rdb.Close() }

// Up reports whether the last calls reached Redis. It makes no call.
func (s *Store) Up() bool { return s.breaker.up() }

// guard runs one call under the breaker and the time-out.
func (s *Store) guard(ctx context.Context, call func(context.Context) error) error {
	if !s.breaker.allow() {
		return ErrUnavailable
	}
	limited, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	err := call(limited)
	if err != nil && over(ctx) {
		return &unavailableError{err} // the caller's end says nothing of Redis
	}
	return s.breaker.record(err)
}

// over reports whether ctx has ended. A connection's deadline, taken from ctx, may fire a moment before its timer does.
func over(ctx context.Context) bool {
	at, limited := ctx.Deadline()
	return ctx.Err() != nil || limited && !time.Now().Before(at)
}

// eval runs one script with the time put in front of its arguments.
func (s *Store) eval(ctx context.Context, sc *script, args ...any) (any, error) {
	now := int64(0)
	if s.now != nil {
		now = s.now()
	}
	args = append([]any{now}, args...)
	var out any
	err := s.guard(ctx, func(ctx context.Context) error {
		var err error
		out, err = sc.run(ctx, s.rdb, s.keys.prefix, args...).Result()
		if redis.HasErrorPrefix(err, "READONLY") {
			// A primary was demoted. It refused before any effect and its connection is dropped: ask its successor.
			out, err = sc.run(ctx, s.rdb, s.keys.prefix, args...).Result()
		}
		return err
	})
	return out, err
}

// evalWord runs a script that answers one word.
func (s *Store) evalWord(ctx context.Context, sc *script, args ...any) error {
	out, err := s.eval(ctx, sc, args...)
	if err != nil {
		return err
	}
	word, _ := out.(string)
	return errorOf(word)
}

// evalWords runs a script that answers a list whose first item is its status, and returns the rest.
func (s *Store) evalWords(ctx context.Context, sc *script, args ...any) ([]string, error) {
	out, err := s.eval(ctx, sc, args...)
	if err != nil {
		return nil, err
	}
	words := toStrings(out)
	if len(words) == 0 {
		return nil, errors.New("state script answered nothing")
	}
	return words[1:], errorOf(words[0])
}

// evalJSON runs a script that answers JSON and decodes it into v.
func (s *Store) evalJSON(ctx context.Context, v any, sc *script, args ...any) error {
	out, err := s.eval(ctx, sc, args...)
	if err != nil {
		return err
	}
	text, _ := out.(string)
	if err := json.Unmarshal([]byte(text), v); err != nil {
		return fmt.Errorf("state script answered no JSON: %w", err)
	}
	return nil
}

func toStrings(v any) []string {
	l := list(v)
	out := make([]string, len(l))
	for i, x := range l {
		out[i] = text(x)
	}
	return out
}

// object is JSON of a map of strings, `{}` for none: what scripts decode.
func object(m map[string]string) string {
	if len(m) == 0 {
		return "{}"
	}
	b, _ := json.Marshal(m) // a map of strings always marshals
	return string(b)
}

// Flag is how a record says yes or no.
func Flag(b bool) string {
	if b {
		return "1"
	}
	return "0"
}
