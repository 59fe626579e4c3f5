package models

import (
	"context"
	"errors"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"reveille/infra/state"
)

// tablesEvery is how often the run-time tables are read without an event.
const tablesEvery = 5 * time.Second

// settingTables are the tables that this package reads.
var settingTables = [...]state.Setting{state.SavedOptions, state.Pins, state.Aliases, state.Runtime, state.IdleTTL, state.APIKeys}

// Tables is a copy of the pool's run-time tables. Reading it never waits; run Run in one goroutine.
type Tables struct {
	store *state.Store
	dirty chan struct{} // capacity 1: read now

	// held, a lock for each table, during every read and write of it in the store, so that an older response never
	// replaces a newer one, and a slow read of one table does not hold up another: a revoked key must not wait
	held map[state.Setting]*sync.Mutex

	mu  sync.Mutex // while cur changes
	cur atomic.Pointer[map[state.Setting]map[string]string]

	// OnKeys is called with the API keys in Redis when they have changed; nil: nothing is.
	OnKeys func(table map[string]string)
}

func newTables(store *state.Store) *Tables {
	t := &Tables{store: store, dirty: make(chan struct{}, 1), held: map[state.Setting]*sync.Mutex{}}
	for _, name := range settingTables {
		t.held[name] = new(sync.Mutex)
	}
	t.cur.Store(&map[state.Setting]map[string]string{})
	return t
}

// Of returns a table as last read. The table is shared: do not change it.
func (t *Tables) Of(name state.Setting) map[string]string { return (*t.cur.Load())[name] }

// Read reads a table again and returns it; with an error, the previous copy.
func (t *Tables) Read(ctx context.Context, name state.Setting) (map[string]string, error) {
	t.held[name].Lock()
	defer t.held[name].Unlock()
	return t.readLocked(ctx, name)
}

func (t *Tables) readLocked(ctx context.Context, name state.Setting) (map[string]string, error) {
	got, err := t.store.All(ctx, name)
	if err != nil {
		return t.Of(name), err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if old, read := (*t.cur.Load())[name]; read && maps.Equal(old, got) {
		return old, nil // values derived from the old table stay valid
	}
	next := maps.Clone(*t.cur.Load())
	next[name] = got
	t.cur.Store(&next)
	if t.OnKeys != nil && name == state.APIKeys {
		t.OnKeys(got)
	}
	return got, nil
}

// Set writes one entry, or removes it for "", in the store and in the copy.
func (t *Tables) Set(ctx context.Context, name state.Setting, key, value string) error {
	t.held[name].Lock()
	defer t.held[name].Unlock()
	if err := t.store.Set(ctx, name, key, value); err != nil {
		return StoreError(err)
	}
	_, err := t.readLocked(ctx, name)
	if err != nil {
		return StoreError(err)
	}
	return nil
}

// notify asks for all tables to be read.
func (t *Tables) notify() {
	select {
	case t.dirty <- struct{}{}:
	default:
	}
}

// Run keeps the copy up to date until ctx ends.
func (t *Tables) Run(ctx context.Context) {
	tick := time.NewTicker(tablesEvery)
	defer tick.Stop()
	for {
		for _, name := range settingTables {
			if _, err := t.Read(ctx, name); errors.Is(err, state.ErrUnavailable) {
				break // the breaker logs; the next tick tries again
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-t.dirty:
		case <-tick.C:
		}
	}
}
