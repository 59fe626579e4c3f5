package state

import (
	"context"
	"errors"
	"sync"
	"time"
)

const (
	turnsAtOnce = 2               // owners whose large values are on their way
	turnWait    = 5 * time.Second // longest wait for a turn
)

// ErrNoTurn means that the large values of an owner, or of all owners, did not get a turn in time.
var ErrNoTurn = errors.New("too many large values are being read or written")

// turns gives owners turns to read and write large values: one for each owner, and few for all of them, so that an owner leaves
// room for the others and large values for the calls that keep the pool running. It is safe for concurrent use.
type turns struct {
	all    chan struct{}
	mu     sync.Mutex
	owners map[string]*owner
}

// owner is an owner with users: those that have its turn or wait for it.
type owner struct {
	turn  chan struct{}
	users int
}

func newTurns() *turns {
	return &turns{all: make(chan struct{}, turnsAtOnce), owners: map[string]*owner{}}
}

// take waits for a turn of the owner, which the caller must end. The error is ErrNoTurn, or ErrUnavailable and that of ctx.
func (t *turns) take(ctx context.Context, name string) (end func(), err error) {
	t.mu.Lock()
	o := t.owners[name]
	if o == nil {
		o = &owner{turn: make(chan struct{}, 1)}
		t.owners[name] = o
	}
	o.users++
	t.mu.Unlock()
	forget := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if o.users--; o.users == 0 {
			delete(t.owners, name)
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, turnWait, ErrNoTurn)
	defer cancel()
	for i, queue := range [...]chan struct{}{o.turn, t.all} {
		select {
		case queue <- struct{}{}:
		case <-ctx.Done():
			if i > 0 {
				<-o.turn
			}
			forget()
			if err := context.Cause(ctx); !errors.Is(err, ErrNoTurn) {
				return nil, &unavailableError{err} // as of any call
			}
			return nil, ErrNoTurn
		}
	}
	return func() {
		<-t.all
		<-o.turn
		forget()
	}, nil
}
