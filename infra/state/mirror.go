package state

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"reveille/infra/policy"
)

// Events may be lost, so a mirror also polls at these intervals.
const (
	smallPoolEvery = 5 * time.Second  // reads a small pool
	summariesEvery = 15 * time.Second // reads what has changed in a large one
	rereadEvery    = 3 * time.Minute  // reads all of a large pool
	hostEvery      = 30 * time.Second // reads the host of a host's mirror, whose beats also report changes
)

// Mirror is a copy of the pool, or of one host, in memory. It takes over hosts that events carry and reads hosts that
// events only name; polling finds changes whose events were lost. Reading the mirror never waits. It is safe for
// concurrent use; run Run in one goroutine.
//
// It performs one read at a time and takes over no host older than its own, so the last result is the newest. A model's
// revision is never newer than the records of the hosts that have the model, so a decision based on hosts that were
// read at different times is refused if they contradict each other.
type Mirror struct {
	store   *Store
	host    string // the only host, "" for all
	onEvent func(Event)
	reading chan struct{} // capacity 1: held during a read, and while events are taken over

	current atomic.Pointer[Snapshot]
	dirty   chan struct{} // capacity 1: something is due

	mu           sync.Mutex
	changed      chan struct{}         // closed and replaced with every new snapshot
	readsStarted uint64                // number of complete reads started
	lastRead     uint64                // the last of them that succeeded
	lastReadAt   time.Time             // when it did
	dueHosts     map[string]bool       // hosts to read
	updates      map[string]hostUpdate // hosts carried by events
	dueAll       bool
	next         *hostRead // of hosts that callers wait for, not started; nil for none
}

// maxReadTogether bounds the hosts and models that calls read together, so that they stay far below pageHosts with the
// models' copies.
const maxReadTogether = 64

// hostRead is one read of some hosts for all who asked while the last read was in progress.
type hostRead struct {
	hosts, models map[string]bool
	done          chan struct{}
	s             *Snapshot // and err: set before done is closed
	err           error
}

// hostUpdate is the last event that carried a host.
type hostUpdate struct {
	event Event
	at    time.Time
}

// NewMirror creates a mirror of the pool. onEvent, if not nil, receives every event (kinds of Event, and "sync") on one
// goroutine. It must not block.
func NewMirror(store *Store, onEvent func(Event)) *Mirror { return NewHostMirror(store, "", onEvent) }

// NewHostMirror creates a mirror of one host, which receives only the events of that host and of the whole pool.
func NewHostMirror(store *Store, host string, onEvent func(Event)) *Mirror {
	m := &Mirror{
		store: store, host: host, onEvent: onEvent, reading: make(chan struct{}, 1), dirty: make(chan struct{}, 1), changed: make(chan struct{}),
		dueHosts: map[string]bool{}, updates: map[string]hostUpdate{},
	}
	m.current.Store(&Snapshot{Hosts: map[string]*HostRecord{}, revisions: map[string]uint64{}})
	return m
}

// Snapshot returns the newest copy; before the first one it is empty with a zero Taken. It may combine hosts that were
// read at different times; Taken and NowMS are those of the last read.
func (m *Mirror) Snapshot() *Snapshot { return m.current.Load() }

// Changed returns a channel that is closed once there is a snapshot newer than the current one.
func (m *Mirror) Changed() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changed
}

// Refresh reads everything and returns a snapshot in which nothing is older than the call. Calls during a read share
// the next one.
func (m *Mirror) Refresh(ctx context.Context) (*Snapshot, error) {
	if m.host != "" {
		return m.RefreshHosts(ctx, []string{m.host})
	}
	m.mu.Lock()
	asked := m.readsStarted
	m.mu.Unlock()
	select {
	case m.reading <- struct{}{}:
		defer func() { <-m.reading }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	m.mu.Lock()
	shared := m.lastRead > asked
	m.mu.Unlock()
	if shared {
		return m.Snapshot(), nil
	}
	return m.readAll(ctx)
}

// RefreshHosts is Refresh for some hosts, and for those that have copies or loads of some models. Only after it or
// Refresh does a decision about these models carry a revision that is not stale. Calls during a read share the next.
func (m *Mirror) RefreshHosts(ctx context.Context, hosts []string, models ...string) (*Snapshot, error) {
	m.mu.Lock()
	r := m.next
	if r == nil || len(r.hosts)+len(r.models)+len(hosts)+len(models) > maxReadTogether {
		r = &hostRead{hosts: map[string]bool{}, models: map[string]bool{}, done: make(chan struct{})}
		m.next = r
		go m.readTogether(context.WithoutCancel(ctx), r)
	}
	for _, host := range hosts {
		r.hosts[host] = true
	}
	for _, model := range models {
		r.models[model] = true
	}
	m.mu.Unlock()
	select {
	case <-r.done:
		return r.s, r.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// readTogether carries out a read when those before it have ended. The store bounds how long each takes.
func (m *Mirror) readTogether(ctx context.Context, r *hostRead) {
	m.reading <- struct{}{}
	defer func() { <-m.reading }()
	m.mu.Lock()
	if m.next == r {
		m.next = nil
	}
	m.mu.Unlock()
	r.s, r.err = m.readHosts(ctx, slices.Collect(maps.Keys(r.hosts)), slices.Collect(maps.Keys(r.models)))
	close(r.done)
}

// readHosts reads some hosts. The caller holds reading.
func (m *Mirror) readHosts(ctx context.Context, hosts, models []string) (*Snapshot, error) {
	part, err := m.store.SnapshotOf(ctx, hosts, models)
	if err != nil {
		return nil, err
	}
	old := m.Snapshot()
	if m.host == "" && part.Epoch != old.Epoch {
		return m.readAll(ctx) // it is another pool now, or was never read
	}
	s := *part
	s.Saved, s.Runtime = old.Saved, old.Runtime
	s.Hosts, s.revisions = maps.Clone(old.Hosts), maps.Clone(old.revisions)
	maps.Copy(s.revisions, part.revisions)
	s.names = old.names
	for name, h := range part.Hosts {
		if s.Hosts[name] == nil {
			s.names = nil
		}
		s.Hosts[name] = h
	}
	for _, host := range part.gone {
		delete(s.Hosts, host)
		s.names = nil
	}
	s.names = s.Names()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.host == "" && s.count != len(s.Hosts) {
		m.dueAll = true
		m.notify()
	}
	m.publishLocked(&s)
	return &s, nil
}

// readAll reads the whole pool.
// REQUIRES: the caller holds reading.
func (m *Mirror) readAll(ctx context.Context) (*Snapshot, error) {
	m.mu.Lock()
	m.readsStarted++
	turn := m.readsStarted
	m.mu.Unlock()
	s, err := m.store.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lastRead, m.lastReadAt = turn, time.Now()
	m.publishLocked(s)
	return s, nil
}

func (m *Mirror) publishLocked(s *Snapshot) {
	m.current.Store(s)
	close(m.changed)
	m.changed = make(chan struct{})
}

// Run updates the mirror until ctx ends.
func (m *Mirror) Run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() {
		m.store.Listen(ctx, m.host, func(e Event) {
			if m.onEvent != nil {
				m.onEvent(e)
			}
			m.handleEvent(e)
		})
	})
	m.ScheduleRead()
	look := time.NewTimer(m.pollInterval())
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			wg.Wait()
			return
		case <-look.C:
			m.scheduleDue(ctx)
			look.Reset(m.pollInterval())
		case <-m.dirty:
		}
		m.readDue(ctx)
	}
}

// pollInterval returns the polling interval.
func (m *Mirror) pollInterval() time.Duration {
	switch {
	case m.host != "":
		return hostEvery
	case m.Snapshot().Large():
		return summariesEvery
	default:
		return smallPoolEvery
	}
}

// handleEvent records what an event makes due.
func (m *Mirror) handleEvent(e Event) {
	switch {
	case e.Kind == "sync", e.Host == "" && m.host == "":
		m.ScheduleRead()
	case m.host != "" && e.Kind == "settings": // affects no host
	default:
		host := cmp.Or(m.host, e.Host) // any host's event shows a change of the catalog
		m.mu.Lock()
		defer m.mu.Unlock()
		switch {
		case host == e.Host && len(e.Carries) > 0 && m.Snapshot().Hosts[host] != nil: // a new host is read
			m.updates[host] = hostUpdate{e, time.Now()}
			delete(m.dueHosts, host)
		case e.More: // the last event of the change has everything
			return
		default:
			m.dueHosts[host] = true
			delete(m.updates, host)
		}
		m.notify()
	}
}

// ScheduleRead has Run read everything soon.
func (m *Mirror) ScheduleRead() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dueAll = true
	m.notify()
}

// ExpectRevision makes a host's mirror read the host again if its revision is not the given one, which a beat returned.
func (m *Mirror) ExpectRevision(revision uint64) {
	if h := m.Snapshot().Hosts[m.host]; h == nil || h.revision != revision {
		m.ScheduleRead()
	}
}

// scheduleDue makes due what is read periodically. A small pool is read completely. Of a large one it reads hosts that
// have changed, were lost or have returned, and less often everything, since uses and counts of open requests change
// without a revision.
func (m *Mirror) scheduleDue(ctx context.Context) {
	s := m.Snapshot()
	m.mu.Lock()
	recent := time.Since(m.lastReadAt) < rereadEvery
	m.mu.Unlock()
	if !s.Large() || !recent {
		m.ScheduleRead()
		return
	}
	now, err := m.store.readSummaries(ctx)
	if err != nil || now.epoch != s.Epoch || now.pool != s.revisions[ofPool] || len(now.hosts) != len(s.Hosts) {
		m.ScheduleRead()
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for host, is := range now.hosts {
		if h := s.Hosts[host]; h == nil || (h.State == policy.Lost) != (is.State == policy.Lost) || h.revision != is.revision {
			m.dueHosts[host] = true
		}
	}
}

// readDue takes over the hosts that events carry and reads what is due. The breaker logs errors; everything is then due
// at the next event, poll or reconnection.
func (m *Mirror) readDue(ctx context.Context) {
	m.mu.Lock()
	all := m.dueAll || m.host == "" && len(m.dueHosts) > pageHosts
	hosts, arrived := slices.Collect(maps.Keys(m.dueHosts)), maps.Clone(m.updates)
	clear(m.dueHosts)
	clear(m.updates)
	m.dueAll = false
	m.mu.Unlock()
	if !all && len(arrived) > 0 {
		all = !m.applyUpdates(ctx, arrived)
	}
	var err error
	switch {
	case all:
		_, err = m.Refresh(ctx)
	case len(hosts) > 0:
		_, err = m.RefreshHosts(ctx, hosts)
	}
	if err != nil {
		m.mu.Lock()
		m.dueAll = true
		m.mu.Unlock()
	}
}

// applyUpdates puts the hosts that events carry into the snapshot, unless it has newer ones. It returns false if the
// events are from another pool than the one that was read, as after Redis lost its data.
func (m *Mirror) applyUpdates(ctx context.Context, arrived map[string]hostUpdate) bool {
	select {
	case m.reading <- struct{}{}:
		defer func() { <-m.reading }()
	case <-ctx.Done():
		return true
	}
	old := m.Snapshot()
	s := *old
	s.Hosts = maps.Clone(old.Hosts)
	for name, a := range arrived {
		part, err := carriedSnapshot(a.event)
		if err != nil || part.Epoch != old.Epoch || old.Taken.IsZero() {
			return false
		}
		if h, was := part.Hosts[name], old.Hosts[name]; h != nil && was != nil && h.isNotOlder(was) {
			s.Hosts[name] = h
			s.Revision = max(s.Revision, a.event.Rev)
			if part.NowMS > s.NowMS {
				s.NowMS, s.Taken, s.Catalog = part.NowMS, a.at, part.Catalog
			}
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.publishLocked(&s)
	return true
}

func (m *Mirror) notify() {
	select {
	case m.dirty <- struct{}{}:
	default:
	}
}
