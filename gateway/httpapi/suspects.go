package httpapi

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"sync"
	"time"

	"reveille/gateway/quota"
	"reveille/gateway/scheduling"
	"reveille/infra/relay"
	"reveille/infra/rpc"
	"reveille/infra/state"
)

// rivalWait bounds how long a request waits for rivals' requests to end.
const rivalWait = 15 * time.Second

// suspect is a constrained request that an engine holds, or held when its client left.
type suspect struct {
	engine  string
	at      *suspects // nil before it is sent
	account *quota.Account
	request string // its id
	sent    time.Time
}

// suspects are the constrained requests of one engine. While there are any, the gateway asks the engine's runner at
// intervals, and whenever a client leaves, whether the engine still computes. The runner kills one that does not. Open
// requests then fail as after a crash. Requests whose clients have already left are suspects, too.
type suspects struct {
	host   state.HostRecord // name and address
	model  string
	engine string        // host and model
	wake   chan struct{} // capacity 1: a client left

	// guarded by suspectList.mu
	open     map[*suspect]struct{}
	left     map[*quota.Account]*suspect // the first of each key since the last check
	checking map[*quota.Account]*suspect // the part of left that the check in progress covers
}

// suspectList holds the suspects of all engines. The zero value is ready; it is safe for concurrent use.
type suspectList struct {
	mu       sync.Mutex
	byEngine map[string]*suspects
	waiting  []*suspect    // for rivals' requests to end, in order of arrival
	changed  chan struct{} // closed to make them check again; nil while none waits
}

// suspect records that the exchange's constrained request is sent to its endpoint. A key that may have caused a crash first
// waits until the engine holds no constrained request of a rival, so that another crash tells them apart.
func (x *exchange) suspect() {
	x.clearSuspect(false)
	l := &x.s.suspects
	p := &suspect{engine: engineName(x.endpoint, x.model.ID), account: x.Account, request: x.ID}
	l.mu.Lock()
	defer l.mu.Unlock()
	if x.hasRivalLocked(p) {
		x.awaitRivalsLocked(p)
	}
	if x.s.life.Err() != nil || x.link.Cause() != nil {
		return
	}
	e := l.byEngine[p.engine]
	if e == nil {
		e = x.watchLocked(p.engine)
	}
	p.at, p.sent = e, time.Now()
	x.suspected = p
	e.open[p] = struct{}{}
}

// watchLocked starts the record of the exchange's engine.
func (x *exchange) watchLocked(engine string) *suspects {
	s, l := x.s, &x.s.suspects
	e := &suspects{
		host: state.HostRecord{Name: x.endpoint.Host, Addr: x.endpoint.Addr}, model: x.model.ID, engine: engine, wake: make(chan struct{}, 1),
		open: map[*suspect]struct{}{}, left: map[*quota.Account]*suspect{},
	}
	if l.byEngine == nil {
		l.byEngine = map[string]*suspects{}
	}
	l.byEngine[engine] = e
	s.work.Go(func() { s.watchSuspects(e) })
	return e
}

// awaitRivalsLocked waits until no rival of p is at the engine or ahead of p, its client leaves, the server shuts down,
// or rivalWait has passed, because nobody is refused for what a rival does. It releases the lock meanwhile.
func (x *exchange) awaitRivalsLocked(p *suspect) {
	l := &x.s.suspects
	l.waiting = append(l.waiting, p)
	timeout := time.NewTimer(rivalWait)
	defer timeout.Stop()
	for over := false; !over && x.link.Cause() == nil && x.hasRivalLocked(p); {
		if l.changed == nil {
			l.changed = make(chan struct{})
		}
		changed := l.changed
		l.mu.Unlock()
		select {
		case <-changed:
		case <-timeout.C:
			over = true
		case <-x.s.life.Done():
			over = true
		}
		l.mu.Lock()
	}
	l.waiting = slices.DeleteFunc(l.waiting, func(other *suspect) bool { return other == p })
	l.changedLocked()
}

// hasRivalLocked reports whether a request of a rival of p's key is at the engine or waits ahead of p.
func (x *exchange) hasRivalLocked(p *suspect) bool {
	rivals := x.s.crashes.Rivals(p.account, time.Now())
	if len(rivals) == 0 {
		return false
	}
	l := &x.s.suspects
	for _, key := range l.byEngine[p.engine].keysLocked() {
		if slices.Contains(rivals, key) {
			return true
		}
	}
	for _, other := range l.waiting {
		if other == p {
			break
		}
		if other.engine == p.engine && slices.Contains(rivals, other.account) {
			return true
		}
	}
	return false
}

// recheck makes the waiting requests check whether they may continue.
func (l *suspectList) recheck() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.changedLocked()
}

func (l *suspectList) changedLocked() {
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// clearSuspect records that the engine has finished the request, or that its client left earlier.
func (x *exchange) clearSuspect(clientLeft bool) {
	p := x.suspected
	if p == nil {
		return
	}
	x.suspected = nil
	e, l := p.at, &x.s.suspects
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(e.open, p)
	l.changedLocked()
	if !clientLeft {
		return
	}
	if _, already := e.left[p.account]; !already {
		e.left[p.account] = p
	}
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// keys returns the keys whose constrained requests the engine holds, or may still hold after their clients left.
func (l *suspectList) keys(e *suspects) []*quota.Account {
	l.mu.Lock()
	defer l.mu.Unlock()
	return e.keysLocked()
}

func (e *suspects) keysLocked() []*quota.Account {
	if e == nil {
		return nil
	}
	all := map[*quota.Account]struct{}{}
	for p := range e.open {
		all[p.account] = struct{}{}
	}
	for _, left := range []map[*quota.Account]*suspect{e.left, e.checking} {
		for key := range left {
			all[key] = struct{}{}
		}
	}
	return slices.Collect(maps.Keys(all))
}

// watchSuspects makes an engine's runner check it for as long as there are suspects.
func (s *Server) watchSuspects(e *suspects) {
	tick := time.NewTicker(s.cfg.CheckEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-e.wake:
		case <-s.life.Done():
			return
		}
		left, over := s.suspects.take(e)
		if over {
			return
		}
		crashed, err := s.lastCrash(e)
		if err != nil {
			s.log.Debug("engine not checked", "host", e.host.Name, "model", e.model, "error", err)
		}
		for _, p := range left {
			if p.sent.Before(crashed) {
				s.recordCrash(p)
			}
		}
		s.suspects.checked(e)
	}
}

// checked ends the check of those whose clients have left.
func (l *suspectList) checked(e *suspects) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.checking = nil
	l.changedLocked()
}

// take removes the suspects whose clients have left and returns them. over means that no suspect is left and e is
// forgotten.
func (l *suspectList) take(e *suspects) (left map[*quota.Account]*suspect, over bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	left, e.left, e.checking = e.left, map[*quota.Account]*suspect{}, e.left
	if over = len(left) == 0 && len(e.open) == 0; over {
		delete(l.byEngine, e.engine)
	}
	return left, over
}

// lastCrash makes an engine's runner check it and returns when it last crashed, or the zero time if not in the last
// minutes.
func (s *Server) lastCrash(e *suspects) (time.Time, error) {
	var call relay.Call
	defer context.AfterFunc(s.life, func() { call.Cancel(nil) })()
	resp, err := s.dir.Ask(&call, &e.host, rpc.PathCheck+e.model, "", "", s.cfg.FirstByte)
	if err != nil {
		return time.Time{}, err
	}
	defer resp.Close()
	body, err := resp.AppendBody(nil, maxErrorBody)
	if err != nil {
		return time.Time{}, err
	}
	var check rpc.Check
	if err := json.Unmarshal(body, &check); err != nil || check.CrashedMS == nil {
		return time.Time{}, err
	}
	return time.Now().Add(-time.Duration(*check.CrashedMS) * time.Millisecond), nil
}

// engineName names the engine that serves a model at an endpoint.
func engineName(r scheduling.Endpoint, model string) string { return r.Host + "/" + model }
