package state

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/time/rate"

	"reveille/infra/breaker"
)

// corruptEvery is the least interval between two log lines about a corrupt store.
const corruptEvery = time.Minute

// guarded refuses calls immediately while Redis is unreachable, so that no call waits for a timeout that is sure to
// come. It logs one line per change of state. It is safe for concurrent use.
type guarded struct {
	breaker.Breaker
	log *slog.Logger

	foreign       atomic.Bool // the pool has another format, as the last script has found
	writesRefused atomic.Bool // Redis refuses all writes (MISCONF), also heartbeats, as of the last script that writes

	corruptLog rate.Sometimes // bounds log lines about a corrupt store
}

// record records a call's outcome and returns the error for the caller: nil, redis.Nil, or an error that is
// ErrUnavailable. It is also ErrCorrupt if Redis accepted the call and failed in it.
func (b *guarded) record(err error) error {
	failed := err != nil && unavailable(err)
	fault, refused := refusal(err)
	// Only scripts check the format: in a pool of another one, the success of a plain command means nothing.
	switch changed := (failed || !b.foreign.Load()) && b.Record(failed); {
	case changed && refused:
		b.log.Warn(cmp.Or(fault, "Redis refuses calls"), "error", err)
	case changed && failed:
		b.log.Warn("Redis unavailable", "error", err)
	case changed:
		b.log.Info("Redis available")
	}
	switch {
	case failed:
		if fault != "" {
			err = fmt.Errorf("%s: %w", fault, err)
		}
		return unavailableError(err)
	case err == nil || errors.Is(err, redis.Nil):
		return err
	}
	b.corruptLog.Do(func() {
		b.log.Error("the pool's state in Redis is corrupt: delete its keys with a wrong type or content", "error", err)
	})
	return unavailableError(fmt.Errorf("%w: %w", ErrCorrupt, err))
}

func unavailableError(cause error) error { return fmt.Errorf("%w: %w", ErrUnavailable, cause) }

// unavailable reports whether err means that Redis could not take the call, rather than that it returned an error.
func unavailable(err error) bool {
	var re redis.Error
	_, refused := refusal(err)
	return refused || !errors.Is(err, redis.Nil) && !errors.As(err, &re) // timeouts, refused connections, an exhausted pool
}

// wrongFormat is the prefix of script errors for a program of another version.
const wrongFormat = "FORMAT"

// refusals are errors with which Redis refuses all calls. say names the misconfiguration, "" for a temporary state.
var refusals = []struct {
	say      string
	prefixes []string
}{
	{"Redis is full: raise its maxmemory", []string{"OOM"}},
	{"Redis cannot write to disk and refuses changes", []string{"MISCONF"}},
	{"", []string{"READONLY", "LOADING", "MASTERDOWN", "TRYAGAIN", "BUSY", "NOREPLICAS", "max number of clients", "NOSCRIPT"}},
	{"the pool is used by programs of another version: end them all, delete its key format, then start programs of one version, runners first",
		[]string{wrongFormat}},
	{"Redis requires a password, but its URL has none", []string{"NOAUTH", "Protocol error: unauthenticated"}},
	{"Redis rejects the user or password of its URL", []string{"WRONGPASS", "invalid password"}},
	{"Redis has no password, but its URL has one", []string{"AUTH", "Client sent AUTH"}},
	{"the user of Redis may not run a command or use a key or channel that is needed",
		[]string{"NOPERM", "ACL failure in script", "The user executing the script"}},
	{"Redis does not have a command that is needed; Redis 6.2 and later have all",
		[]string{"Unknown Redis command called from script", "unknown command"}},
	{"Redis refused a command that is needed", []string{"EXECABORT"}},
	{"Redis has no database with the number at the end of its URL", []string{"DB index", "invalid DB index"}},
	{"a Redis Cluster has no database but 0: take the number off the end of its URL", []string{"SELECT"}},
	{"Redis is not a Cluster: take cluster=true off its URL", []string{"This instance has cluster support disabled"}},
	{"Redis is a Cluster: add ?cluster=true to its URL", []string{"MOVED", "ASK", "CROSSSLOT"}},
	{"the Redis Cluster is down or has no slots yet", []string{"CLUSTERDOWN"}},
}

// refusal reports whether err is one of refusals, and what is set up wrong.
func refusal(err error) (say string, refused bool) {
	for _, r := range refusals {
		for _, prefix := range r.prefixes {
			if redis.HasErrorPrefix(err, prefix) {
				return r.say, true
			}
		}
	}
	return "", false
}
