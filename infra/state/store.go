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
	"golang.org/x/time/rate"
)

// Options of a Store.
type Options struct {
	URL     string        // redis://, rediss:// or unix://; several hosts separated by commas, or ?cluster=true, are a Cluster; ?master_name= a Sentinel
	Pool    string        // the deployment's name; default "main"
	Secret  []byte        // the pool's runner secret: signs the catalog and encrypts stored responses
	Timeout time.Duration // per call; default: the URL's read_timeout, or else 150 ms
	Log     *slog.Logger  // default: discard
	Now     func() int64  // ms since the epoch for scripts, simulations only; nil means Redis' own clock

	// Credentials replace the user and password of the URL; nil keeps those.
	Credentials *Credentials

	// Unverified accepts a catalog whatever its signature, for programs that only display it.
	Unverified bool

	// Dial makes the connections, whatever host the URL names; simulations only. Nil uses the network.
	Dial func(ctx context.Context) (net.Conn, error)
}

// Store is the pool's state in Redis. It is safe for concurrent use. Calls end within Options.Timeout. They return
// ErrUnavailable if Redis cannot respond.
type Store struct {
	rdb        redis.UniversalClient
	responses  redis.UniversalClient // separate connections for stored responses, with longer timeouts
	keys       keys
	plain      atomic.Bool // see script.run
	secret     []byte
	unverified bool
	sealer     *sealer
	breaker    guarded
	timeout    time.Duration
	newest     atomic.Uint64 // highest ticket that Acquire returned
	now        func() int64
}

const defaultTimeout = 150 * time.Millisecond

// Open creates a Store. It does not wait for Redis: the first call does. The caller must Close it.
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
	large := *uo
	large.ReadTimeout = max(uo.ReadTimeout, responseTimeout)
	large.WriteTimeout, large.PoolTimeout, large.PoolSize = large.ReadTimeout, large.ReadTimeout, responseConnections
	s := &Store{
		rdb: newClient(uo), responses: newClient(&large), keys: newKeys(o.Pool),
		breaker: guarded{log: o.Log, corruptLog: rate.Sometimes{Interval: corruptEvery}},
		timeout: uo.ReadTimeout, now: o.Now, secret: o.Secret, unverified: o.Unverified,
	}
	s.sealer, err = newSealer(o.Secret, o.Pool)
	return s, err
}

// Close ends all connections.
func (s *Store) Close() error { return errors.Join(s.rdb.Close(), s.responses.Close()) }

// IsAvailable reports whether the last calls reached Redis. It makes no call.
func (s *Store) IsAvailable() bool { return !s.breaker.Open() }

// guard runs one call with the breaker and the timeout.
func (s *Store) guard(ctx context.Context, call func(context.Context) error) error {
	return s.guardFor(ctx, s.timeout, call)
}

func (s *Store) guardFor(ctx context.Context, timeout time.Duration, call func(context.Context) error) error {
	if !s.breaker.Allow() {
		return ErrUnavailable
	}
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := call(limited)
	if err != nil && isExpired(ctx) {
		return unavailableError(err) // the caller's end says nothing about Redis
	}
	return s.breaker.record(err)
}

// isExpired reports whether ctx has ended. A connection's deadline, taken from ctx, may fire a moment before ctx's own
// timer.
func isExpired(ctx context.Context) bool {
	at, limited := ctx.Deadline()
	return ctx.Err() != nil || limited && !time.Now().Before(at)
}

// eval runs the script lua/NAME.lua, with the time as its first argument.
func (s *Store) eval(ctx context.Context, name string, args ...any) (out any, err error) {
	err = s.guard(ctx, func(ctx context.Context) (err error) {
		out, err = s.run(ctx, s.rdb, name, args...)
		return err
	})
	return out, err
}

func (s *Store) run(ctx context.Context, c redis.UniversalClient, name string, args ...any) (any, error) {
	now := int64(0)
	if s.now != nil {
		now = s.now()
	}
	args = append([]any{now}, args...)
	sc := scripts()[name]
	out, err := sc.run(ctx, c, &s.plain, s.keys.prefix, args...).Result()
	if redis.HasErrorPrefix(err, "READONLY") {
		// A demoted primary refused before any effect, and its connection was dropped: ask its successor.
		out, err = sc.run(ctx, c, &s.plain, s.keys.prefix, args...).Result()
	}
	if name != "snapshot" {
		s.breaker.writesRefused.Store(redis.HasErrorPrefix(err, "MISCONF"))
	}
	if foreign := redis.HasErrorPrefix(err, wrongFormat); foreign || err == nil {
		s.breaker.foreign.Store(foreign)
	}
	return out, err
}

// hash reads a hash, empty if there is none.
func (s *Store) hash(ctx context.Context, key string) (out map[string]string, err error) {
	err = s.guard(ctx, func(ctx context.Context) (err error) {
		out, err = s.rdb.HGetAll(ctx, key).Result()
		return err
	})
	return out, err
}

// evalStatus runs a script of which only the status matters.
func (s *Store) evalStatus(ctx context.Context, script string, args ...any) error {
	_, err := s.evalList(ctx, script, args...)
	return err
}

// evalList runs a script that returns its status, or a list whose first item it is, and returns the rest.
func (s *Store) evalList(ctx context.Context, script string, args ...any) ([]string, error) {
	out, err := s.eval(ctx, script, args...)
	if err != nil {
		return nil, err
	}
	words := toStrings(out)
	if len(words) == 0 {
		return nil, errors.New("state script returned no status")
	}
	return words[1:], errorOf(words[0])
}

// evalJSON runs a script that returns JSON and decodes it into v.
func (s *Store) evalJSON(ctx context.Context, v any, script string, args ...any) error {
	out, err := s.eval(ctx, script, args...)
	if err != nil {
		return err
	}
	text, _ := out.(string)
	if err := json.Unmarshal([]byte(text), v); err != nil {
		return fmt.Errorf("state script returned invalid JSON: %w", err)
	}
	return nil
}

// toStrings returns the items of a list, or a single text as one.
func toStrings(v any) []string {
	if word, ok := v.(string); ok {
		return []string{word}
	}
	l := list(v)
	out := make([]string, len(l))
	for i, x := range l {
		out[i] = text(x)
	}
	return out
}

// object encodes a map of strings as JSON for scripts, `{}` if it is empty.
func object(m map[string]string) string {
	if len(m) == 0 {
		return "{}"
	}
	b, _ := json.Marshal(m) // cannot fail for a map of strings
	return string(b)
}

// FormatBool encodes a bool as records store it.
func FormatBool(b bool) string {
	if b {
		return "1"
	}
	return "0"
}
