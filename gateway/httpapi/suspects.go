package httpapi

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"reveille/gateway/quota"
	"reveille/gateway/scheduling"
	"reveille/infra/relay"
	"reveille/infra/rpc"
	"reveille/infra/state"
)

// suspect is a constrained request that an engine has, or had when its client left.
type suspect struct {
	at      *suspects
	crashes *quota.Crashes // of its key
	request string         // its id
	sent    time.Time
}

// suspects are the constrained requests of one engine. While there are any, its runner is asked at intervals, and when a
// client leaves, whether the engine still computes. A runner ends an engine that does not; the requests that are open then
// hear of a crash, and those whose clients have left count as its cause as well.
type suspects struct {
	host   state.HostRecord // name and address
	model  string
	engine string        // names both
	wake   chan struct{} // capacity 1: a client left

	// guarded by suspectList.mu
	open map[*suspect]struct{}
	left map[*quota.Crashes]*suspect // the first of each key since the last check
}

// suspectList holds the suspects of all engines. The zero value is ready; it is safe for concurrent use.
type suspectList struct {
	mu       sync.Mutex
	byEngine map[string]*suspects
}

// suspect notes that the exchange's request, a constrained one, is sent to its route.
func (x *exchange) suspect() {
	x.unsuspect(false)
	s := x.s
	if s.life.Err() != nil {
		return
	}
	l := &s.suspects
	l.mu.Lock()
	defer l.mu.Unlock()
	name := engineName(x.route, x.model.ID)
	e := l.byEngine[name]
	if e == nil {
		e = &suspects{
			host: state.HostRecord{Name: x.route.Host, Addr: x.route.Addr}, model: x.model.ID, engine: name, wake: make(chan struct{}, 1),
			open: map[*suspect]struct{}{}, left: map[*quota.Crashes]*suspect{},
		}
		if l.byEngine == nil {
			l.byEngine = map[string]*suspects{}
		}
		l.byEngine[name] = e
		s.work.Go(func() { s.watchSuspects(e) })
	}
	x.suspected = &suspect{at: e, crashes: x.crashes(), request: x.id, sent: x.sent}
	e.open[x.suspected] = struct{}{}
}

// unsuspect notes that the engine is done with the request, or that its client left before.
func (x *exchange) unsuspect(clientLeft bool) {
	p := x.suspected
	if p == nil {
		return
	}
	x.suspected = nil
	e, l := p.at, &x.s.suspects
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(e.open, p)
	if !clientLeft {
		return
	}
	if _, already := e.left[p.crashes]; !already {
		e.left[p.crashes] = p
	}
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// watchSuspects has an engine checked for as long as there are suspects.
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
			continue
		}
		for _, p := range left {
			if p.sent.Before(crashed) {
				s.blame(p.crashes, e.engine, p.sent, p.request)
			}
		}
	}
}

// take takes out those whose clients have left. over: there is nobody to suspect any more, and e is forgotten.
func (l *suspectList) take(e *suspects) (left map[*quota.Crashes]*suspect, over bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	left, e.left = e.left, map[*quota.Crashes]*suspect{}
	if over = len(left) == 0 && len(e.open) == 0; over {
		delete(l.byEngine, e.engine)
	}
	return left, over
}

// lastCrash has an engine's runner check it, and returns when it last crashed, the zero time for not in the last minutes.
func (s *Server) lastCrash(e *suspects) (time.Time, error) {
	var call relay.Call
	defer context.AfterFunc(s.life, func() { call.Cancel(nil) })()
	resp, err := s.askRunner(&call, &e.host, rpc.PathCheck+e.model, "", "", s.cfg.FirstByte)
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

// engineName names the engine that serves a model at a route.
func engineName(r scheduling.Route, model string) string { return r.Host + "/" + model }
