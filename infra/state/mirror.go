package state

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// repairEvery is how often a mirror reads a snapshot although no event asked for it.
const repairEvery = 5 * time.Second

// Mirror is a copy of the pool in memory, kept by events and repaired by periodic snapshots. Reading it never waits.
// It is safe for concurrent use; run Run in one goroutine.
type Mirror struct {
	store *Store
	onEvt func(Event)

	current atomic.Pointer[Snapshot]
	dirty   chan struct{} // capacity 1: a refresh is due

	mu      sync.Mutex
	changed chan struct{} // closed and replaced with every new snapshot
	begun   uint64        // refreshes begun
	newest  uint64        // the refresh that current came from
}

// NewMirror makes a mirror. onEvent, if not nil, hears every event (kinds of Event, "sync" included) from one goroutine
// and must not block.
func NewMirror(store *Store, onEvent func(Event)) *Mirror {
	m := &Mirror{store: store, onEvt: onEvent, dirty: make(chan struct{}, 1), changed: make(chan struct{})}
	m.current.Store(&Snapshot{Hosts: map[string]*HostRecord{}})
	return m
}

// Snapshot is the newest copy; before the first it is empty with Taken zero.
func (m *Mirror) Snapshot() *Snapshot { return m.current.Load() }

// Changed returns a channel that is closed when a snapshot newer than the present one is there.
func (m *Mirror) Changed() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changed
}

// Refresh reads a snapshot and returns it, or one that is newer still. Of refreshes that overlap, the one begun last
// stays current: clocks and revisions cannot order them, since both may go back when another Redis takes over.
func (m *Mirror) Refresh(ctx context.Context) (*Snapshot, error) {
	m.mu.Lock()
	m.begun++
	turn := m.begun
	m.mu.Unlock()
	s, err := m.store.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if turn < m.newest {
		return m.current.Load(), nil
	}
	m.newest = turn
	m.current.Store(s)
	close(m.changed)
	m.changed = make(chan struct{})
	return s, nil
}

// Run keeps the mirror until ctx ends.
func (m *Mirror) Run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() {
		m.store.Listen(ctx, func(e Event) {
			if m.onEvt != nil {
				m.onEvt(e)
			}
			m.notify()
		})
	})
	m.notify()
	tick := time.NewTicker(repairEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			wg.Wait()
			return
		case <-tick.C:
		case <-m.dirty:
		}
		_, _ = m.Refresh(ctx) // the breaker logs; the next event, tick or reconnection tries again
	}
}

func (m *Mirror) notify() {
	select {
	case m.dirty <- struct{}{}:
	default:
	}
}
