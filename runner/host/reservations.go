package host

import (
	"time"

	"reveille/infra/policy"
	"reveille/infra/state"
)

// A reservation keeps a model for a gateway whose requests waited for a ticket's load: the model serves them before it
// can be evicted (rule 7). A reservation without a gateway covers all gateways while the ticket's outcome is being
// written to Redis, which returns the waiters. Until then every request with the ticket is admitted.
type reservation struct{ ticket, gateway string }

// arrivalWait is how long a model is kept for the rest of a gateway's requests after the first has arrived. The gateway
// sends all of them at the same time.
const arrivalWait = time.Second

// pending is what a reservation still waits for.
type pending struct {
	requests int       // still expected; 0: unknown until the first arrives, which tells it; allServed: none
	until    time.Time // zero: no end yet
}

// allServed marks a reservation whose requests have all arrived or left before the ticket's waiters are known, so that
// resolve does not reserve for them again.
const allServed = -1

// reservations are the reservations of one model. Host.mu guards them.
type reservations map[reservation]pending

func (rs reservations) unresolved(ticket string) bool {
	_, ok := rs[reservation{ticket: ticket}]
	return ok && ticket != ""
}

func (rs reservations) has(x reservation) bool {
	_, ok := rs[x]
	return ok || rs.unresolved(x.ticket)
}

// countArrival counts one of the requests that waited at a reservation's gateway. It returns the reservation's new
// expiry, or the zero time if that did not change.
func (rs reservations) countArrival(x reservation, waiters int, now time.Time) (expires time.Time) {
	p := rs[x]
	if x.gateway == "" || !rs.has(x) || p.requests == allServed {
		return time.Time{}
	}
	if p.requests == 0 {
		p.requests = max(waiters, 1)
	}
	if p.requests--; p.requests == 0 {
		rs.remove(x)
		return time.Time{}
	}
	if soon := now.Add(arrivalWait); p.until.IsZero() || soon.Before(p.until) {
		p.until, expires = soon, soon
	}
	rs[x] = p
	return expires
}

// remove ends a reservation, even if requests are still expected.
func (rs reservations) remove(x reservation) {
	if x.gateway == "" {
		return
	}
	delete(rs, x)
	if rs.unresolved(x.ticket) {
		rs[x] = pending{requests: allServed}
	}
}

// resolve reserves the model, until the given time, for the waiters that Redis returned and that have not arrived yet.
func (rs reservations) resolve(ticket string, waiting []string, until time.Time) {
	if !rs.unresolved(ticket) {
		return // dropped meanwhile
	}
	kept := reservations{}
	for _, g := range waiting {
		x := reservation{ticket, g}
		p, ok := rs[x]
		if !ok {
			p.until = until
		}
		if p.requests != allServed {
			kept[x] = p
		}
	}
	for x := range rs {
		if x.ticket == ticket {
			delete(rs, x)
		}
	}
	for x, p := range kept {
		rs[x] = p
	}
}

// expire drops the reservations that have expired.
func (rs reservations) expire(now time.Time) {
	for x, p := range rs {
		if !p.until.IsZero() && !now.Before(p.until) && !rs.unresolved(x.ticket) {
			delete(rs, x)
		}
	}
}

// reserveFor reserves the model for the gateways that it was loaded for, for at most Config.Reserve.
func (h *Host) reserveFor(r *resident, ticket string, waiting []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r.reservations.resolve(ticket, waiting, time.Now().Add(h.cfg.Reserve))
	if len(r.reservations) > 0 {
		h.expireAfter(r, arrivalWait)
		h.expireAfter(r, h.cfg.Reserve)
	}
	h.notifyIdleLocked(r)
}

// expireAfter drops, after d, the reservations of a model that have expired by then.
func (h *Host) expireAfter(r *resident, d time.Duration) {
	time.AfterFunc(d, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		r.reservations.expire(time.Now())
		h.notifyIdleLocked(r)
	})
}

// releaseReservation ends the reservation of a gateway that no longer waits.
func (h *Host) releaseReservation(model, ticket, gateway string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r := h.residents[model]; r != nil {
		r.reservations.remove(reservation{ticket, gateway})
		h.notifyIdleLocked(r)
	}
}

// reserveLocked reserves the model for the waiters of a ticket whose outcome is about to be published. An explicit load
// (one with options) reserves nothing, because no request follows it.
func (r *resident) reserveLocked(t state.TicketRecord) {
	if state.ParseNumber(t.ID) > state.ParseNumber(r.ticket) { // a restored Redis may have old ones
		r.ticket = t.ID
	}
	r.dirty = true
	r.used = policy.Later(r.used, time.Now())
	if t.Options == "" {
		r.reservations[reservation{ticket: t.ID}] = pending{}
	}
}
