package state

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Events may be lost, so a mirror also looks by itself.
const (
	repairEvery = 5 * time.Second  // at a small pool; at what has changed in a large one
	rereadEvery = time.Minute      // at each host of a large pool
	hostEvery   = 15 * time.Second // at the host of a host's mirror, which beats also tell of changes
)

// Mirror is a copy of the pool in memory, or of one host. The revision of a model in it is never newer than the records of the
// hosts that have the model, so a decision made on hosts that were read at different times is refused if they contradict each other. An event has it read the host again that the event names; what an event
// was lost of is found at intervals. Reading it never waits. It is safe for concurrent use; run Run in one goroutine.
type Mirror struct {
	store *Store
	host  string // the only one, "" for all
	onEvt func(Event)

	current atomic.Pointer[Snapshot]
	dirty   chan struct{} // capacity 1: something is due

	mu      sync.Mutex
	changed chan struct{}     // closed and replaced with every new snapshot
	begun   uint64            // reads begun
	whole   uint64            // the newest read of the whole pool
	parts   map[string]uint64 // newer reads of hosts and of models' revisions, by the name of the revision
	unnamed int               // hosts of the pool that have no proper name

	due      map[string]bool // hosts to be read
	dueWhole bool
}

// NewMirror makes a mirror of the pool. onEvent, if not nil, hears every event (kinds of Event, "sync" included) from one
// goroutine and must not block.
func NewMirror(store *Store, onEvent func(Event)) *Mirror { return NewHostMirror(store, "", onEvent) }

// NewHostMirror makes a mirror of one host, which hears only the events of that host and of the whole pool.
func NewHostMirror(store *Store, host string, onEvent func(Event)) *Mirror {
	m := &Mirror{
		store: store, host: host, onEvt: onEvent, dirty: make(chan struct{}, 1), changed: make(chan struct{}),
		parts: map[string]uint64{}, due: map[string]bool{},
	}
	m.current.Store(&Snapshot{Hosts: map[string]*HostRecord{}, revisions: map[string]uint64{}})
	return m
}

// Snapshot is the newest copy; before the first it is empty with Taken zero. It may join hosts that were read at different
// times; Taken and NowMS are those of the last read.
func (m *Mirror) Snapshot() *Snapshot { return m.current.Load() }

// Changed returns a channel that is closed when a snapshot newer than the present one is there.
func (m *Mirror) Changed() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changed
}

// Refresh reads everything and returns a snapshot in which no host is older than that. Of reads that overlap, the one begun
// last counts for each host: clocks and revisions cannot order them, since both may go back when another Redis takes over.
func (m *Mirror) Refresh(ctx context.Context) (*Snapshot, error) {
	if m.host != "" {
		return m.RefreshHosts(ctx, []string{m.host})
	}
	turn := m.begin()
	s, err := m.store.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	return m.takeWhole(turn, s), nil
}

// RefreshHosts is Refresh for some hosts, and for those that have copies or loads of some models. Only after one of the two do
// decisions on these models carry a revision that is not stale.
func (m *Mirror) RefreshHosts(ctx context.Context, hosts []string, models ...string) (*Snapshot, error) {
	turn := m.begin()
	s, err := m.store.SnapshotOf(ctx, hosts, models)
	if err != nil {
		return nil, err
	}
	return m.takePart(turn, s), nil
}

func (m *Mirror) begin() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.begun++
	return m.begun
}

// takeWhole takes over a read of the whole pool, but for the hosts that a read begun later has shown.
func (m *Mirror) takeWhole(turn uint64, s *Snapshot) *Snapshot {
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.current.Load()
	if turn < m.whole {
		return old
	}
	m.whole, m.unnamed = turn, s.count-len(s.Hosts)
	maps.DeleteFunc(m.parts, func(_ string, read uint64) bool { return read < turn })
	for name := range m.parts {
		s.take(old, name)
	}
	if len(m.parts) > 0 {
		for name, rev := range s.revisions {
			if strings.HasPrefix(name, ofModel) {
				s.revisions[name] = min(rev, old.revisions[name])
			}
		}
	}
	m.publishLocked(s)
	return s
}

// takePart takes over a read of some hosts and revisions.
func (m *Mirror) takePart(turn uint64, part *Snapshot) *Snapshot {
	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.current.Load()
	s := *part
	s.Saved, s.Runtime = old.Saved, old.Runtime
	s.Hosts, s.revisions = maps.Clone(old.Hosts), maps.Clone(old.revisions)
	all := true
	for name := range part.revisions {
		if !strings.HasPrefix(name, ofModel) && !m.isNewLocked(turn, name) {
			all = false
		}
	}
	for name := range part.revisions {
		if m.isNewLocked(turn, name) && (all || !strings.HasPrefix(name, ofModel)) {
			m.parts[name] = turn
			s.take(part, name)
		}
	}
	if m.host == "" && (s.count-len(s.Hosts) != m.unnamed || s.Epoch != old.Epoch) {
		m.dueWhole = true
		m.notify()
	}
	m.publishLocked(&s)
	return &s
}

// isNewLocked reports whether a read of what a revision is of was begun after the one that is shown.
func (m *Mirror) isNewLocked(turn uint64, revision string) bool {
	return turn > max(m.whole, m.parts[revision])
}

// take takes over from another snapshot what a revision is of: a host, or only the revision.
func (s *Snapshot) take(from *Snapshot, revision string) {
	s.revisions[revision] = from.revisions[revision]
	host, is := strings.CutPrefix(revision, ofHost)
	if !is {
		return
	}
	if h := from.Hosts[host]; h != nil {
		s.Hosts[host] = h
	} else {
		delete(s.Hosts, host)
	}
}

func (m *Mirror) publishLocked(s *Snapshot) {
	m.current.Store(s)
	close(m.changed)
	m.changed = make(chan struct{})
}

// Run keeps the mirror until ctx ends.
func (m *Mirror) Run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() {
		m.store.Listen(ctx, m.host, func(e Event) {
			if m.onEvt != nil {
				m.onEvt(e)
			}
			m.heard(e)
		})
	})
	m.readAll()
	every := repairEvery
	if m.host != "" {
		every = hostEvery
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			wg.Wait()
			return
		case <-tick.C:
			m.repair(ctx)
		case <-m.dirty:
		}
		m.readDue(ctx)
	}
}

// heard notes what an event makes due.
func (m *Mirror) heard(e Event) {
	switch {
	case e.Kind == "sync", e.Kind == "settings" && m.host == "":
		m.readAll()
	case e.Kind == "settings": // none of a host's
	default:
		m.mu.Lock()
		if m.host != "" {
			m.due[m.host] = true // a change of the catalogue shows with any host
		} else if e.Host == "" {
			m.dueWhole = true
		} else {
			m.due[e.Host] = true
		}
		m.notify()
		m.mu.Unlock()
	}
}

// readAll makes everything due.
func (m *Mirror) readAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dueWhole = true
	m.notify()
}

// Expect has a host's mirror read the host again if that has another revision than the one given, which a beat brought.
func (m *Mirror) Expect(revision uint64) {
	if m.Snapshot().RevisionOf(m.host, "") != revision {
		m.readAll()
	}
}

// repair makes due what is to be read at an interval: a small pool whole; of a large one the hosts that have changed, and in turn
// all others, whose times and counts of open requests change without a revision.
func (m *Mirror) repair(ctx context.Context) {
	s := m.Snapshot()
	if !s.Large() {
		m.readAll()
		return
	}
	hosts, revisions, err := m.store.revisions(ctx)
	if err != nil || revisions[ofPool] != s.revisions[ofPool] || len(hosts) != len(s.Hosts) {
		m.readAll()
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	slices.SortFunc(hosts, func(a, b string) int { return cmp.Compare(m.parts[ofHost+a], m.parts[ofHost+b]) })
	turn := 1 + len(hosts)*int(repairEvery)/int(rereadEvery)
	for i, host := range hosts {
		if i < turn || s.Hosts[host] == nil || revisions[ofHost+host] != s.revisions[ofHost+host] {
			m.due[host] = true
		}
	}
}

// readDue reads what is due. The breaker logs errors; what is due stays so, and the next event, tick or reconnection tries again.
func (m *Mirror) readDue(ctx context.Context) {
	m.mu.Lock()
	whole := m.dueWhole || m.host == "" && len(m.due) > pageHosts
	hosts := slices.Collect(maps.Keys(m.due))
	clear(m.due)
	m.dueWhole = false
	m.mu.Unlock()
	var err error
	switch {
	case whole:
		_, err = m.Refresh(ctx)
	case len(hosts) > 0:
		_, err = m.RefreshHosts(ctx, hosts)
	}
	if err != nil {
		m.mu.Lock()
		m.dueWhole = true
		m.mu.Unlock()
	}
}

func (m *Mirror) notify() {
	select {
	case m.dirty <- struct{}{}:
	default:
	}
}
