package state

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"reveille/infra/breaker"
)

// corruptEvery is the least interval between two log lines about a corrupt store.
const corruptEvery = time.Minute

// guarded refuses calls at once while Redis is unreachable, so that no call waits for a certain timeout. It logs one
// line per change of state. It is safe for concurrent use.
type guarded struct {
	breaker.Breaker
	log *slog.Logger

	mu   sync.Mutex
	told time.Time // last log line about a corrupt store
}

// record records a call's outcome and returns the error for the caller: nil, redis.Nil, or an error that is
// ErrUnavailable. It is also ErrCorrupt if Redis accepted the call and failed in it.
func (b *guarded) record(err error) error {
	failed := err != nil && unavailable(err)
	switch changed := b.Record(failed); {
	case changed && failed:
		b.log.Warn(cmp.Or(setupFault(err), "Redis does not answer"), "error", err)
	case changed:
		b.log.Info("state store is back")
	}
	switch {
	case failed:
		if fault := setupFault(err); fault != "" {
			err = fmt.Errorf("%s: %w", fault, err)
		}
		return &unavailableError{err}
	case err == nil || errors.Is(err, redis.Nil):
		return err
	}
	return b.corrupt(err)
}

// corrupt returns the error for a call with an unusable answer.
func (b *guarded) corrupt(err error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if time.Since(b.told) > corruptEvery {
		b.told = time.Now()
		b.log.Error("state store is corrupt: delete the pool's keys that have a wrong type or content", "error", err)
	}
	return &unavailableError{fmt.Errorf("%w: %w", ErrCorrupt, err)}
}

type unavailableError struct{ cause error }

func (e *unavailableError) Error() string   { return ErrUnavailable.Error() + ": " + e.cause.Error() }
func (e *unavailableError) Unwrap() []error { return []error{ErrUnavailable, e.cause} }

// unavailable reports whether err means that Redis could not take the call, rather than answered it.
func unavailable(err error) bool {
	if errors.Is(err, redis.Nil) {
		return false
	}
	var re redis.Error
	if !errors.As(err, &re) {
		return true // timeouts, refused connections, an exhausted pool
	}
	for _, p := range []string{"READONLY", "OOM", "MISCONF", "LOADING", "MASTERDOWN", "TRYAGAIN", "BUSY", "NOREPLICAS",
		"max number of clients", "NOSCRIPT"} {
		if redis.HasErrorPrefix(err, p) {
			return true
		}
	}
	return setupFault(err) != ""
}

// setupFaults are answers of a Redis that is set up in another way than its URL says.
var setupFaults = []struct{ prefix, say string }{
	{"NOAUTH", "Redis wants a password, and its URL has none"},
	{"Protocol error: unauthenticated", "Redis wants a password, and its URL has none"},
	{"WRONGPASS", "Redis does not accept the user and password of its URL"},
	{"invalid password", "Redis does not accept the user and password of its URL"},
	{"AUTH", "Redis has no password, and its URL has one"},
	{"Client sent AUTH", "Redis has no password, and its URL has one"},
	{"NOPERM", "the user of Redis may not run a command or use a key or channel that is needed"},
	{"ACL failure in script", "the user of Redis may not run a command or use a key or channel that is needed"},
	{"The user executing the script", "the user of Redis may not run a command or use a key or channel that is needed"},
	{"Unknown Redis command called from script", "Redis does not have a command that is needed; Redis 6.2 and later have all"},
	{"DB index", "Redis has no database with the number at the end of its URL"},
	{"invalid DB index", "Redis has no database with the number at the end of its URL"},
	{"SELECT", "a Redis Cluster has no database but 0: take the number off the end of its URL"},
	{"MOVED", "Redis is a Cluster: add ?cluster=true to its URL"},
	{"ASK", "Redis is a Cluster: add ?cluster=true to its URL"},
	{"CROSSSLOT", "Redis is a Cluster: add ?cluster=true to its URL"},
	{"CLUSTERDOWN", "the Redis Cluster is down or has no slots yet"},
	{"unknown command", "Redis does not have a command that is needed; Redis 6.2 and later have all"},
	{"EXECABORT", "Redis refused a command that is needed"},
}

// setupFault returns what is wrong with how Redis is set up, or "".
func setupFault(err error) string {
	for _, f := range setupFaults {
		if redis.HasErrorPrefix(err, f.prefix) {
			return f.say
		}
	}
	return ""
}
