package state_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"reveille/infra/state"
	"reveille/testenv"
	"reveille/testenv/kit"
)

// vault keeps one user's password, as Secrets Manager does.
type vault struct {
	mu       sync.Mutex
	password string
	away     bool
}

func (v *vault) read(context.Context) (string, string, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.away {
		return "", "", errors.New("the vault is away")
	}
	return "pool", v.password, nil
}

func (v *vault) set(password string, away bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.password, v.away = password, away
}

// A password is rotated as AWS rotates it: Redis takes both, then the secret changes, then Redis takes the new one
// alone. Calls go on all the while and none fails; a connection that is made afterwards has the new password.
func TestRotation(t *testing.T) {
	t.Run("one node", func(t *testing.T) {
		addr := testenv.Redis(t)
		node := redis.NewClient(&redis.Options{Addr: addr})
		t.Cleanup(func() { _ = node.Close() })
		rotate(t, "redis://"+addr, node)
	})
	t.Run("cluster", func(t *testing.T) { // with TLS, as ElastiCache Serverless
		c := testenv.StartRedisCluster(t)
		rotate(t, c.EndpointURL()+"&skip_verify=true", c.Node(t, 0), c.Node(t, 1), c.Node(t, 2))
	})
}

func rotate(t *testing.T, url string, nodes ...*redis.Client) {
	acl := func(rules ...any) {
		t.Helper()
		for _, n := range nodes {
			must(t, n.Do(t.Context(), append([]any{"ACL", "SETUSER"}, rules...)...).Err())
		}
	}
	acl("pool", "on", ">first", "~rv:*", "~mm:*", "&rv:*", "+@all", "-@admin", "-@dangerous") // as terraform grants it

	v := &vault{password: "first"}
	credentials := state.FollowCredentialsEvery(v.read, slog.New(slog.DiscardHandler), 10*time.Millisecond)
	s, err := state.Open(state.Options{URL: url, Timeout: 10 * time.Second, Credentials: credentials})
	must(t, err)
	t.Cleanup(func() { _ = s.Close() })
	must(t, s.Ping(t.Context()))

	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	var calls atomic.Int64
	for range 40 { // more than the pool has connections
		work.Go(func() {
			for ctx.Err() == nil {
				if _, err := s.Snapshot(t.Context()); err != nil {
					t.Error("a call failed:", err)
					return
				}
				calls.Add(1)
			}
		})
	}
	more := func() {
		t.Helper()
		goal := calls.Load() + 200
		kit.Within(t, time.Minute, "calls go on", func() bool { return calls.Load() >= goal || t.Failed() })
	}
	more()
	v.set("", true) // nothing changes while the secret cannot be read
	more()
	for _, next := range []struct{ old, password string }{{"first", "second"}, {"second", "third"}} {
		acl("pool", ">"+next.password)
		v.set(next.password, false)
		time.Sleep(time.Second) // AWS waits longer: nobody is about to send the old one
		more()
		acl("pool", "<"+next.old)
		more()
	}
	cancel()
	work.Wait()

	// A connection that is made now has the last password, and what was rotated away opens nothing.
	fresh, err := state.Open(state.Options{URL: url, Timeout: 10 * time.Second, Credentials: credentials})
	must(t, err)
	t.Cleanup(func() { _ = fresh.Close() })
	must(t, fresh.Ping(t.Context()))
	stale, err := state.Open(state.Options{URL: strings.Replace(url, "://", "://pool:first@", 1), Timeout: 10 * time.Second})
	must(t, err)
	t.Cleanup(func() { _ = stale.Close() })
	if err := stale.Ping(t.Context()); err == nil {
		t.Error("the first password still opens Redis")
	}
}
