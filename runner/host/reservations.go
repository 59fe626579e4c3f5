package host

import (
	"time"

	"reveille/infra/policy"
	"reveille/infra/state"
)

// A reservation keeps a model for a gateway whose requests waited for a ticket's load: the model serves them before it
// may be evicted (rule 7). Without a gateway it stands for all, while the ticket's outcome is being written to Redis, which
// returns the waiters: until then whoever presents the ticket is admitted.
type reservation struct{ ticket, gateway string }

// arriveWithin is how long a model is kept for the rest of a gateway's requests after the first of them arrived: the
// gateway sends them all at once.
const arriveWithin = time.Second

// pending is what a reservation still waits for.
type pending struct {
	requests int // 0: unknown before the first; served: none any more
	until    time.Time
}

// served is kept only until the ticket's waiters are known.
const served = -1

// reservations are those of one model. Host.mu guards them.
type reservations map[reservation]pending

func (d reservations) unresolved(ticket string) bool {
	_, ok := d[reservation{ticket: ticket}]
	return ok && ticket != ""
}

func (d reservations) has(x reservation) bool {
	_, ok := d[x]
	return ok || d.unresolved(x.ticket)
}

// arrive counts one of the requests that waited at a reservation's gateway. It returns when the reservation now expires,
// or the zero time if that did not change.
func (d reservations) arrive(x reservation, waiters int, now time.Time) (expires time.Time) {
	p := d[x]
	if x.gateway == "" || !d.has(x) || p.requests == served {
		return time.Time{}
	}
	if p.requests == 0 {
		p.requests = max(waiters, 1)
	}
	if p.requests--; p.requests == 0 {
		d.end(x)
		return time.Time{}
	}
	if soon := now.Add(arriveWithin); p.until.IsZero() || soon.Before(p.until) {
		p.until, expires = soon, soon
	}
	d[x] = p
	return expires
}

// end ends a reservation, even if requests are still expected.
func (d reservations) end(x reservation) {
	if x.gateway == "" {
		return
	}
	delete(d, x)
	if d.unresolved(x.ticket) {
		d[x] = pending{requests: served}
	}
}

// resolve reserves the model, until the given time, for the waiters that Redis returned and that have not arrived yet.
func (d reservations) resolve(ticket string, waiting []string, until time.Time) {
	if !d.unresolved(ticket) {
		return // given up meanwhile
	}
	stay := reservations{}
	for _, g := range waiting {
		x := reservation{ticket, g}
		p, ok := d[x]
		if !ok {
			p.until = until
		}
		if p.requests != served {
			stay[x] = p
		}
	}
	for x := range d {
		if x.ticket == ticket {
			delete(d, x)
		}
	}
	for x, p := range stay {
		d[x] = p
	}
}

// expire drops the reservations that have ended by now.
func (d reservations) expire(now time.Time) {
	for x, p := range d {
		if !p.until.IsZero() && !now.Before(p.until) && !d.unresolved(x.ticket) {
			delete(d, x)
		}
	}
}

// reserveFor reserves the model for the gateways that it was loaded for, for at most Config.Reserve.
func (h *Host) reserveFor(r *resident, ticket string, waiting []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r.reservations.resolve(ticket, waiting, time.Now().Add(h.cfg.Reserve))
	if len(r.reservations) > 0 {
		h.expireAfter(r, arriveWithin)
		h.expireAfter(r, h.cfg.Reserve)
	}
	h.notifyIdleLocked(r)
}

// expireAfter drops, after d, the reservations of a model that have ended by then.
func (h *Host) expireAfter(r *resident, d time.Duration) {
	time.AfterFunc(d, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		r.reservations.expire(time.Now())
		h.notifyIdleLocked(r)
	})
}

// release ends the reservation of a gateway that no longer waits.
func (h *Host) release(model, ticket, gateway string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r := h.residents[model]; r != nil {
		r.reservations.end(reservation{ticket, gateway})
		h.notifyIdleLocked(r)
	}
}

// reserveLocked reserves the model for a ticket that it was loaded or is used for and whose outcome is about to be
// published. An explicit load (one with options) reserves nothing, because no request follows it.
func (r *resident) reserveLocked(t state.TicketRecord) {
	r.ticket, r.dirty = t.ID, true
	r.used = policy.Use(r.used, time.Now())
	if t.Options == "" {
		r.reservations[reservation{ticket: t.ID}] = pending{}
	}
}
