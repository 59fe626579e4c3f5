package state

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Internals for the tests in package state_test.

// Client returns the store's own connection pool.
func (s *Store) Client() redis.UniversalClient { return s.rdb }

// Ping makes a call that changes nothing.
func (s *Store) Ping(ctx context.Context) error {
	return s.guard(ctx, func(ctx context.Context) error { return s.rdb.Ping(ctx).Err() })
}

// ParseURL parses Options.URL as Open does.
func ParseURL(url string) (*redis.UniversalOptions, error) {
	return universalOptions(Options{URL: url})
}

// Sources returns the files of the scripts by name.
func Sources() map[string]string {
	out := map[string]string{}
	files, _ := luaFiles.ReadDir("lua")
	for _, f := range files {
		if name, is := strings.CutSuffix(f.Name(), ".lua"); is {
			out[name] = luaSource(name)
		}
	}
	return out
}

// Plain reports whether the store found a server that does not know `#!lua`.
func (s *Store) Plain() bool { return s.plain.Load() }

// Breaker is a breaker by itself.
type Breaker struct{ guarded }

// NewBreaker returns a closed breaker.
func NewBreaker(log *slog.Logger) *Breaker { return &Breaker{guarded{log: log}} }

// Record records an outcome.
func (b *Breaker) Record(err error) error { return b.record(err) }

// Guard makes a call in the same way as every call of the store.
func (s *Store) Guard(ctx context.Context, call func(context.Context) error) error {
	return s.guard(ctx, call)
}

// FollowCredentialsEvery is FollowCredentials that reads for each connection made after every.
func FollowCredentialsEvery(read readCredentials, log *slog.Logger, every time.Duration) *Credentials {
	return &Credentials{read: read, log: log, fresh: every}
}
