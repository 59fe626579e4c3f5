package state

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/redis/go-redis/v9/auth"
)

// readCredentials reads the present user and password of Redis, wherever they are kept. The user may be "".
type readCredentials func(ctx context.Context) (user, password string, err error)

const (
	credentialsFresh = time.Minute      // between two readings
	credentialsRetry = 5 * time.Second  // after one that failed
	credentialsRead  = 10 * time.Second // longest reading
	credentialsWait  = 5 * time.Second  // longest that a new connection waits for the first reading
)

var errNoCredentials = errors.New("the credentials of Redis have not been read yet")

// Credentials follow a user and a password that change while programs run: within a minute of a change new connections
// use the new ones, and the pooled ones authenticate again. Whatever changes them must let Redis accept the old ones
// until then. Several stores may share them. They are safe for concurrent use.
type Credentials struct {
	read readCredentials
	log  *slog.Logger
	end  context.CancelFunc
	done chan struct{}

	first     chan struct{} // closed once there are some
	mu        sync.Mutex
	current   auth.Credentials
	listeners map[auth.CredentialsListener]struct{}
}

// FollowCredentials begins to follow what read returns. The caller must Close it, after the stores that use it. It does not
// wait for the first reading; until then a connection fails.
func FollowCredentials(read readCredentials, log *slog.Logger) *Credentials {
	return followCredentials(read, log, credentialsFresh)
}

func followCredentials(read readCredentials, log *slog.Logger, every time.Duration) *Credentials {
	ctx, end := context.WithCancel(context.Background())
	c := &Credentials{
		read: read, log: log, end: end, done: make(chan struct{}),
		first: make(chan struct{}), listeners: map[auth.CredentialsListener]struct{}{},
	}
	go c.run(ctx, every)
	return c
}

// Close ends the readings. A nil Credentials may be closed.
func (c *Credentials) Close() {
	if c != nil {
		c.end()
		<-c.done
	}
}

func (c *Credentials) run(ctx context.Context, every time.Duration) {
	defer close(c.done)
	for {
		wait := every
		if err := c.refresh(ctx); err != nil && ctx.Err() == nil {
			c.log.Error("the credentials of Redis were not read; the last ones stay", "error", err)
			wait = min(every, credentialsRetry)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// refresh reads once, and tells every connection of new credentials.
func (c *Credentials) refresh(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, credentialsRead)
	defer cancel()
	user, password, err := c.read(ctx)
	if err != nil {
		return err
	}
	next := auth.NewBasicCredentials(user, password)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.current == nil:
		close(c.first)
	case c.current.RawCredentials() == next.RawCredentials():
		return nil
	default:
		c.log.Info("the credentials of Redis changed", "user", user)
	}
	c.current = next
	for l := range c.listeners {
		l.OnNext(next) // only marks its connection
	}
	return nil
}

// Subscribe implements auth.StreamingCredentialsProvider for the client library.
func (c *Credentials) Subscribe(l auth.CredentialsListener) (auth.Credentials, auth.UnsubscribeFunc, error) {
	select {
	case <-c.first:
	case <-c.done:
		return nil, nil, errNoCredentials
	case <-time.After(credentialsWait):
		return nil, nil, errNoCredentials
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.listeners[l] = struct{}{}
	return c.current, func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.listeners, l)
		return nil
	}, nil
}
