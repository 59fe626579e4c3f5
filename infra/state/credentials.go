package state

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

// readCredentials reads the present user and password of Redis, wherever they are kept. The user may be "".
type readCredentials func(ctx context.Context) (user, password string, err error)

const (
	credentialsFresh = time.Minute      // until they are read again for a new connection
	credentialsRead  = 10 * time.Second // longest reading
)

var errNoCredentials = errors.New("the credentials of Redis have not been read yet")

// Credentials are a user and a password that may change while programs run. They are read for new connections, at most
// once a minute; connections in use stay authenticated. Several stores may share them. They are safe for concurrent
// use.
type Credentials struct {
	read  readCredentials
	log   *slog.Logger
	fresh time.Duration

	mu             sync.Mutex
	user, password string
	known          bool
	readingSince   time.Time     // of the last reading
	reading        chan struct{} // closed when it ends; nil unless one is in progress
}

// FollowCredentials returns what read returns now and later.
func FollowCredentials(read readCredentials, log *slog.Logger) *Credentials {
	return &Credentials{read: read, log: log, fresh: credentialsFresh}
}

// current returns the credentials for a new connection. If they are not fresh it waits for a reading until ctx ends,
// and then returns the last ones.
func (c *Credentials) current(ctx context.Context) (user, password string, err error) {
	c.mu.Lock()
	if c.reading == nil && time.Since(c.readingSince) > c.fresh {
		c.readingSince, c.reading = time.Now(), make(chan struct{})
		go c.refresh(c.reading) // not within ctx: a call is bounded more tightly than a reading
	}
	reading := c.reading
	c.mu.Unlock()
	if reading != nil {
		select {
		case <-reading:
		case <-ctx.Done():
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.known {
		return "", "", errNoCredentials
	}
	return c.user, c.password, nil
}

// refresh reads once. After a failure, the next connection reads again.
func (c *Credentials) refresh(done chan struct{}) {
	ctx, cancel := context.WithTimeout(context.Background(), credentialsRead)
	defer cancel()
	user, password, err := c.read(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	defer close(done)
	c.reading = nil
	if err != nil {
		c.readingSince = time.Time{}
		c.log.Error("could not read the Redis credentials; keeping the last ones", "error", err)
		return
	}
	c.user, c.password, c.known = user, password, true
}
