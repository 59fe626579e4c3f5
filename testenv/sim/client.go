package sim

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"

	"reveille/gateway/api"
	"reveille/gateway/scheduling"
	"reveille/infra/rpc"
	"reveille/runner/fairqueue"
	"reveille/runner/host"
	"reveille/testenv/check"
)

// client is one request: what the gateway's HTTP layer does with it, without HTTP.
type client struct {
	w         *world
	life      *gateLife
	id        string
	model     string
	limit     time.Duration // of the wait
	serve     time.Duration // how long the engine answers
	leave     <-chan time.Time
	priority  string // as in a request's header
	began     time.Time
	refused   int
	refusedBy []string // hosts

	repeated bool // after its engine died
	returned bool // by a runner, for another copy
}

// errLeft: the client went.
var errLeft = errors.New("left")

// request lets a client come.
func (w *world) request(g *gateway, model string, s Step) {
	life := g.current()
	w.mu.Lock()
	w.requests++
	id := "r" + strconv.Itoa(w.requests)
	w.mu.Unlock()
	if life == nil {
		return // nobody answers
	}
	c := &client{
		w: w, life: life, id: id, model: model, limit: s.For, serve: s.Serve, began: time.Now(),
	}
	if s.Leave > 0 {
		c.leave = time.After(s.Leave)
	}
	ask := check.Event{Kind: check.Ask, Request: id, Gateway: life.id, Model: model, For: s.For}
	if w.scenario.Priorities {
		switch chance(w.scenario.Seed, "priority", id) % 8 {
		case 0:
			c.priority = "high"
		case 1:
			c.priority = "low"
		case 2:
			c.priority, ask.Text = "background", "loaded"
		}
	}
	ask.Value = uint64(rpc.ParsePriority(c.priority))
	w.record(ask)
	w.clients.Go(func() {
		text := c.run()
		w.record(check.Event{Kind: check.Outcome, Request: id, Text: text})
	})
}

// run is the request from its arrival to its outcome.
func (c *client) run() string {
	if c.priority == "background" {
		return c.runInBackground()
	}
	endpoint, warm := c.life.gate.Endpoint(c.model)
	var load scheduling.LoadInfo
	var why string
	for {
		if !warm {
			if c.refused > 1 {
				time.Sleep(min(500*time.Millisecond, 20*time.Millisecond<<min(c.refused-2, 10)))
			}
			left := c.limit - time.Since(c.began)
			if why != "" && left <= 0 {
				return why
			}
			r, info, err := c.wait(max(left, time.Millisecond))
			if err != nil {
				return code(err)
			}
			endpoint, load = r, info
		}
		again, text := c.send(endpoint, load)
		if !again {
			return text
		}
		if c.returned {
			c.returned = false
			if endpoint, warm = c.life.gate.Endpoint(c.model); warm {
				load = scheduling.LoadInfo{}
				continue
			}
		}
		why, warm, load = text, false, scheduling.LoadInfo{}
		if !slices.Contains(c.refusedBy, endpoint.Host) {
			c.refusedBy = append(c.refusedBy, endpoint.Host)
		}
		c.refused++
	}
}

// runInBackground is run for a request that only takes a loaded model.
func (c *client) runInBackground() string {
	for time.Since(c.began) < c.limit {
		if endpoint, warm := c.life.gate.Endpoint(c.model); warm {
			if again, text := c.send(endpoint, scheduling.LoadInfo{}); !again {
				return text
			}
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-c.leave:
			return "left"
		case <-c.life.dead:
			return "reset"
		}
	}
	return api.Background.Code()
}

// wait waits at the gate.
func (c *client) wait(left time.Duration) (scheduling.Endpoint, scheduling.LoadInfo, error) {
	select {
	case <-c.life.dead:
		return scheduling.Endpoint{}, scheduling.LoadInfo{}, errReset
	default:
	}
	waiter, err := c.life.gate.Enter(scheduling.WaitRequest{Model: c.model, Refused: c.refusedBy, Limit: left, Priority: c.priority})
	if err != nil {
		return scheduling.Endpoint{}, scheduling.LoadInfo{}, err
	}
	select {
	case <-waiter.Done():
	case <-c.leave:
		waiter.Leave(false)
		return scheduling.Endpoint{}, scheduling.LoadInfo{}, errLeft
	case <-c.life.dead:
		return scheduling.Endpoint{}, scheduling.LoadInfo{}, errReset
	}
	select {
	case <-c.life.dead: // what it was told then reached nobody
		return scheduling.Endpoint{}, scheduling.LoadInfo{}, errReset
	default:
	}
	return waiter.Result()
}

var errReset = errors.New("reset")

// send sends the request to a runner; again when no engine saw it.
func (c *client) send(endpoint scheduling.Endpoint, load scheduling.LoadInfo) (again bool, outcome string) {
	c.w.record(check.Event{Kind: check.Granted, Request: c.id, Host: endpoint.Host, Ticket: load.Ticket})
	background := c.priority == "background"
	endpoint.Begin(background)
	defer endpoint.End(background)
	time.Sleep(time.Duration(1+chance(c.w.scenario.Seed, "net", c.id)%5) * time.Millisecond)
	r := c.w.runner(endpoint.Addr)
	if r == nil || c.w.parted(c.life.n, r.n) {
		c.w.record(check.Event{Kind: check.Refused, Request: c.id, Host: endpoint.Host, Text: "unreachable"})
		return true, "host_unreachable"
	}
	life, conn := r.connect()
	if life == nil {
		c.w.record(check.Event{Kind: check.Refused, Request: c.id, Host: endpoint.Host, Text: "unreachable"})
		return true, "host_unreachable"
	}
	defer life.disconnect(conn)
	cut := make(chan struct{}, 1)
	var entering sync.Mutex // the checker hears that the request entered before it hears of what cuts it
	onCut := func(error) {
		entering.Lock()
		defer entering.Unlock()
		c.w.record(check.Event{Kind: check.Cut, Request: c.id})
		cut <- struct{}{}
	}
	admit := func() (*host.Ref, string) {
		if c.priority == "background" {
			return life.host.AcquireBackground(c.model, onCut)
		}
		return life.host.AcquireModel(c.model, load.Ticket, c.life.id, load.Waiters, onCut)
	}
	view := c.w.loading(life) // before, as a load that starts right after may take the place of a request in the background
	entering.Lock()
	pass, reason := admit()
	if reason != "" {
		entering.Unlock()
		c.w.record(check.Event{Kind: check.Refused, Request: c.id, Host: endpoint.Host, Text: reason})
		return true, api.ModelLoading.Code()
	}
	c.w.record(check.Event{Kind: check.Enter, Request: c.id, PID: pass.Engine.PID(), View: view})
	entering.Unlock()
	entered := time.Now()
	outcome, answered := c.answer(pass, cut, conn)
	if outcome == sentBack {
		c.limit += time.Since(entered)
		c.w.record(check.Event{Kind: check.SentBack, Request: c.id})
		pass.Release()
		c.returned = true
		return true, api.ModelLoading.Code()
	}
	c.w.record(check.Event{Kind: check.End, Request: c.id})
	pass.Release()
	if outcome == api.EngineCrashed.Code() {
		return c.crashed(answered), outcome
	}
	return false, outcome
}

// answer takes an engine's response to its end. answered reports whether the client has a byte of it; every second
// response comes as a whole.
func (c *client) answer(pass *host.Ref, cut <-chan struct{}, conn *call) (outcome string, answered bool) {
	first := c.serve
	if n := chance(c.w.scenario.Seed, "first", c.id); n%2 == 0 {
		first = c.serve * time.Duration(n%100) / 100
	}
	const never = 1000 * time.Hour
	bytes, whole := time.NewTimer(never), time.NewTimer(never) // they start with the request's turn
	defer bytes.Stop()
	defer whole.Stop()
	turn, leave := c.awaitTurn(pass.Engine.(*fake).turns)
	defer leave()
	for {
		select {
		case err := <-turn:
			if err != nil {
				return sentBack, false
			}
			bytes.Reset(first)
			whole.Reset(c.serve)
			c.w.record(check.Event{Kind: check.Turn, Request: c.id})
		case <-bytes.C:
			answered = true
			c.w.record(check.Event{Kind: check.Bytes, Request: c.id})
		case <-whole.C:
			return "ok", true
		case <-cut:
			return "cut", answered
		case <-pass.Engine.Done():
			select {
			case <-conn.gone: // with its runner
				return api.RunnerFailed.Code(), answered
			default:
			}
			return api.EngineCrashed.Code(), answered
		case <-conn.gone:
			return api.RunnerFailed.Code(), answered
		case <-c.leave:
			return "left", answered
		case <-c.life.dead:
			return "reset", answered
		}
	}
}

// sentBack is the outcome of a wait for a turn that the runner ended, as another copy has room.
const sentBack = "sent-back"

// awaitTurn waits for a turn at an engine: the channel gets nil with it, or why there is none. leave gives it back.
func (c *client) awaitTurn(turns *fairqueue.Queue) (turn <-chan error, leave func()) {
	got := make(chan error, 1)
	if turns == nil {
		got <- nil
		return got, func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	held := make(chan bool, 1)
	go func() {
		err := turns.Acquire(ctx, "", rpc.ParsePriority(c.priority))
		held <- err == nil
		if ctx.Err() == nil {
			got <- err
		}
	}()
	return got, func() {
		cancel()
		if <-held {
			turns.Release("")
		}
	}
}

// crashed reports whether the request is to be sent once more, as its engine died (gateway/httpapi does the same).
func (c *client) crashed(answered bool) bool {
	select {
	case <-c.life.drains:
		return false
	default:
	}
	if answered || c.repeated {
		return false
	}
	c.repeated = true
	c.w.record(check.Event{Kind: check.Repeat, Request: c.id})
	return true
}

// code is an error as the client reads it.
func code(err error) string {
	var e *api.Error
	switch {
	case errors.Is(err, errLeft), errors.Is(err, scheduling.ErrLeft):
		return "left"
	case errors.Is(err, errReset):
		return "reset"
	case errors.As(err, &e):
		return e.Code
	}
	return err.Error()
}
