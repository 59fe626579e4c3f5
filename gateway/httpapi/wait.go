package httpapi

import (
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"reveille/gateway/api"
	"reveille/gateway/quota"
	"reveille/gateway/scheduling"
	"reveille/infra/catalog"
)

// waitPolicy is how a client wants to wait for a cold model.
type waitPolicy struct {
	policy string        // block, fail or fallback
	limit  time.Duration // of the whole wait
}

// waitPolicyOf reads x-cold-wait and x-wait-timeout. hold is the longest possible wait; a client can only shorten it.
func waitPolicyOf(h *fasthttp.RequestHeader, hold time.Duration) (waitPolicy, error) {
	p := waitPolicy{policy: "block", limit: hold}
	switch v := h.Peek(api.HeaderColdWait); string(v) {
	case "", "block":
	case "fail":
		p.policy = "fail"
	case "fallback":
		p.policy = "fallback"
	default:
		return p, api.Newf(api.InvalidType, "'%s' must be block, fail or fallback.", api.HeaderColdWait).WithParam(api.HeaderColdWait)
	}
	if v := h.Peek(api.HeaderWaitTimeout); len(v) > 0 {
		s, err := strconv.ParseFloat(string(v), 64)
		if err != nil || !(s >= 0) {
			return p, api.Newf(api.InvalidType, "'%s' must be a number of seconds.", api.HeaderWaitTimeout).WithParam(api.HeaderWaitTimeout)
		}
		if s < hold.Seconds() {
			p.limit = time.Duration(s * float64(time.Second))
		}
	}
	return p, nil
}

// routing is how an exchange gets an endpoint: how long it may wait, what it waits for, and the outcome.
type routing struct {
	wait        waitPolicy
	waiter      atomic.Pointer[scheduling.Waiter] // while it waits at the gate
	endpoint    scheduling.Endpoint
	hasEndpoint bool // endpoint is the one to send to next
	info        scheduling.LoadInfo
	cold        bool   // it waited for a load
	loadCharged bool   // no further load is charged to its account
	loadDenied  bool   // its account had no load left
	state       string // of the model when the request arrived
	shown       string // the last stage of the load that the client was shown as reasoning
	host        string // that the head of the response names
	ahead       int    // maximum number of requests ahead in the queue
	refusals    refusals
}

// fallbackFor returns the first of a cold model's fallbacks that is loaded or in a cloud, if the client or the model's
// entry wants one rather than a wait, else the model itself. For a request in the background that can be any loaded
// model of the type. It runs before all that depends on the model.
func (c *inferenceCall) fallbackFor(m *catalog.Model) *catalog.Model {
	anyLoaded := c.background == catalog.BackgroundLoaded
	if m.FallbackWhen != catalog.WhenWaking && string(c.Ctx.Request.Header.Peek(api.HeaderColdWait)) != "fallback" && !anyLoaded {
		return m
	}
	warm := func(id string) bool { _, ok := c.s.cfg.Gate.Endpoint(id); return ok }
	if warm(m.ID) {
		return m
	}
	cat := c.s.cfg.Catalog()
	for _, id := range m.Fallback {
		next, known := cat.Model(id)
		if known && (warm(id) || next.Cloud && c.background == "") && next.Type == m.Type && c.Key.Allows(id) {
			return next
		}
	}
	if anyLoaded {
		for _, next := range cat.Models {
			if next.Type == m.Type && !next.Cloud && warm(next.ID) && c.Key.Allows(next.ID) {
				return next
			}
		}
	}
	return m
}

// wakeReplaced starts the load of a model whose fallback serves the request, so that later requests find it loaded.
func (c *inferenceCall) wakeReplaced() {
	m := c.replaced
	if m == nil || m.FallbackWhen != catalog.WhenWaking || c.passive || c.s.registry.StateOf(m.ID) != "unloaded" {
		return
	}
	if w, err := c.s.cfg.Gate.Enter(scheduling.WaitRequest{Model: m.ID, DontWait: true, Priority: c.priority(), Account: c.Account}); err == nil {
		_, _, _ = w.Result()
	}
}

// failCold queues the load of a model that is not loaded and returns the error for a client that does not wait for it.
func (x *exchange) failCold() error {
	w, err := x.call.s.cfg.Gate.Enter(scheduling.WaitRequest{Model: x.call.model.ID, DontWait: true, Priority: x.call.priority(), Account: loadCharge{x.call.Account, x}})
	if err != nil {
		return err
	}
	x.routing.ahead = w.Ahead()
	_, _, err = w.Result()
	return err
}

// loadCharge charges the account of an exchange for its waits and for at most one load, however often it goes back to
// the gate, and for none if a load is already in progress.
type loadCharge struct {
	*quota.Account
	x *exchange
}

func (t loadCharge) CountLoad() error {
	if t.x.routing.loadCharged {
		return nil
	}
	var err error
	if c := t.x.call; c.s.registry.StateOf(c.model.ID) == "unloaded" {
		err = t.Account.CountLoad()
	}
	t.x.routing.loadCharged, t.x.routing.loadDenied = err == nil, err != nil
	return err
}

// recheckLoading checks again whether the model is loaded or loading, before a request is refused because its key has
// no load left: the mirror may be behind.
func (x *exchange) recheckLoading() bool {
	x.routing.loadDenied = false
	_, err := x.call.s.registry.Fresh()
	x.routing.loadCharged = err == nil && x.call.s.registry.StateOf(x.call.model.ID) != "unloaded"
	return x.routing.loadCharged
}

// refusals counts the runners' refusals that sent the exchange back to the gate.
type refusals struct {
	n     int
	hosts []string   // that refused, crashed or could not be reached
	why   *api.Error // the last one, for the client if no time is left to retry
	pause time.Time  // no try before then

	sentBack int // how often it was sent on to another copy instead
}

// maxSentBack is how often a request is sent on from copy to copy without a pause.
const maxSentBack = 10

// Pauses between refusals grow from firstPause to maxPause. The first refusal causes none: the mirror was
// behind, and the gate has newer data.
const (
	firstPause = 20 * time.Millisecond
	maxPause   = 500 * time.Millisecond
)

// retryAtGate sends the exchange back to the gate after a refusal, an unreachable runner or a crash. The client gets
// why when its time is over, or immediately if the request neither loads the model nor waits for it.
func (x *exchange) retryAtGate(why *api.Error) error {
	x.uncountOpen()
	x.try.promptTokens = 0
	if x.call.passive && x.call.background != catalog.BackgroundWait {
		return why
	}
	x.routing.hasEndpoint = false
	x.routing.info.Ticket = ""
	x.routing.refusals.why = why
	if !slices.Contains(x.routing.refusals.hosts, x.routing.endpoint.Host) {
		x.routing.refusals.hosts = append(x.routing.refusals.hosts, x.routing.endpoint.Host)
	}
	if x.routing.refusals.n++; x.routing.refusals.n > 1 {
		x.routing.refusals.pause = time.Now().Add(min(maxPause, firstPause<<min(x.routing.refusals.n-2, 10)))
	}
	return errRetry
}

// retryElsewhere sends the exchange to the least loaded copy, after its runner has sent it back because another has
// room. The time that it waited for its turn does not count as a wait for the model.
func (x *exchange) retryElsewhere() error {
	x.routing.wait.limit += time.Since(x.try.sent)
	e, ok := x.call.s.cfg.Gate.Endpoint(x.call.model.ID)
	if x.routing.refusals.sentBack++; !ok || x.routing.refusals.sentBack > maxSentBack { // its copies have gone meanwhile
		return x.retryAtGate(x.errNotReady())
	}
	x.uncountOpen()
	x.try.promptTokens = 0
	x.routing.endpoint, x.routing.info.Ticket = e, ""
	return errRetry
}

// errNotReady is what the client gets if its time is over after a refusal.
func (x *exchange) errNotReady() *api.Error {
	return api.Newf(api.ModelLoading, "The model '%s' is not ready yet. Retry the request.", x.call.model.ID)
}

// acquireEndpoint leaves the endpoint that respond found in the mirror, or else waits for one at the gate. It returns
// false if there is none by the given time. The zero time leaves only the request's own limit.
func (x *exchange) acquireEndpoint(until time.Time) (bool, error) {
	if x.routing.hasEndpoint {
		return true, nil
	}
	if in, err := x.waitOutPause(until); !in || err != nil {
		return false, err
	}
	w, left := x.routing.waiter.Load(), x.routing.wait.limit-time.Since(x.call.Began)
	if w == nil && x.routing.refusals.why != nil && left <= 0 {
		return false, x.routing.refusals.why
	}
	if x.call.background != "" {
		return x.awaitLoaded(until)
	}
	if w == nil {
		var err error
		ask := scheduling.WaitRequest{Model: x.call.model.ID, Refused: x.routing.refusals.hosts, Limit: max(left, time.Millisecond), Priority: x.call.priority(), Account: loadCharge{x.call.Account, x}}
		w, err = x.call.s.cfg.Gate.Enter(ask)
		if x.routing.loadDenied && x.recheckLoading() {
			w, err = x.call.s.cfg.Gate.Enter(ask)
		}
		if err != nil {
			x.routing.ahead = x.call.s.cfg.Gate.Waiting()[x.call.model.ID]
			return false, err
		}
		x.routing.cold, x.routing.ahead = true, max(x.routing.ahead, w.Ahead())
		x.call.observed.beginWait()
		x.routing.waiter.Store(w)
		if x.try.link.Cause() != nil { // abandoned before it could see the waiter
			w.Leave(false)
		}
	}
	if in := waitFor(w.Done(), until); !in {
		return false, nil
	}
	endpoint, info, err := w.Result()
	x.routing.waiter.Store(nil)
	x.call.observed.endWait(info, err)
	waited := x.routing.info.Waited + info.Waited
	if err != nil {
		x.routing.info.Waited = waited
		if cause := x.try.link.Cause(); cause != nil {
			return false, cause
		}
		return false, err
	}
	x.routing.endpoint, x.routing.info, x.routing.hasEndpoint = endpoint, info, true
	x.routing.info.Waited = waited
	x.routing.cold = info.Cold
	return true, nil
}

// waitOutPause waits until the pause after a refusal ends. It returns false if until comes first.
func (x *exchange) waitOutPause(until time.Time) (bool, error) {
	d := time.Until(x.routing.refusals.pause)
	if d <= 0 {
		return true, nil
	}
	in := until.IsZero() || !until.Before(x.routing.refusals.pause)
	if !in {
		d = max(0, time.Until(until))
	}
	time.Sleep(d) // at most maxPause, so a client that leaves is noticed soon
	return in, x.try.link.Cause()
}

// waitFor waits for done until the given time; the zero time means no limit.
func waitFor(done <-chan struct{}, until time.Time) bool {
	if until.IsZero() {
		<-done
		return true
	}
	t := time.NewTimer(time.Until(until))
	defer t.Stop()
	select {
	case <-done:
		return true
	case <-t.C:
		return false
	}
}
