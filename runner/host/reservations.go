package host

import (
	"time"

	"reveille/infra/policy"
	"reveille/infra/state"
)

// A reservation keeps a model for a gateway whose requests waited for a ticket's load: the model serves them before it
// may be evicted (rule 7).
type reservation struct{ ticket, gateway string }

// arriveWithin is how long a model is kept for the rest of a gateway's requests after the first of them arrived: the
// gateway sends them all at once.
const arriveWithin = time.Second

// pending is what a reservation still waits for.
type pending struct {
	requests int // 0: unknown before the first
	until    time.Time
}

// arrived counts the arrival of one of several waiters.
func (p pending) arrived(waiters int, now time.Time) pending {
	if p.requests == 0 {
		p.requests = max(waiters, 1)
	}
	p.requests--
	if soon := now.Add(arriveWithin); p.until.IsZero() || soon.Before(p.until) {
		p.until = soon
	}
	return p
}

// reservations are those of one model. Host.mu guards them. The zero value has none.
type reservations struct {
	due map[reservation]pending
	// unresolved holds the tickets whose outcome is being written to Redis, with the gateways that have already presented
	// them. Until Redis returns the waiters, any gateway that presents such a ticket is admitted.
	unresolved map[string]map[string]pending
}

func (d *reservations) any() bool { return len(d.due) > 0 || len(d.unresolved) > 0 }

func (d *reservations) count() int { return len(d.due) + len(d.unresolved) }

func (d *reservations) has(x reservation) bool {
	if _, ok := d.due[x]; ok {
		return true
	}
	_, ok := d.unresolved[x.ticket]
	return ok
}

// reserveUnresolved keeps the model for a ticket until its waiters are known.
func (d *reservations) reserveUnresolved(ticket string) {
	if d.unresolved == nil {
		d.unresolved = map[string]map[string]pending{}
	}
	if d.unresolved[ticket] == nil {
		d.unresolved[ticket] = map[string]pending{}
	}
}

// arrive counts one of the requests that waited at a reservation's gateway. It returns when the reservation now expires,
// or the zero time if that did not change.
func (d *reservations) arrive(x reservation, waiters int, now time.Time) (expires time.Time) {
	if was, ok := d.due[x]; ok {
		p := was.arrived(waiters, now)
		if p.requests == 0 {
			delete(d.due, x)
		} else {
			d.due[x] = p
		}
		if p.requests > 0 && p.until != was.until {
			expires = p.until
		}
	}
	if arrivals := d.unresolved[x.ticket]; arrivals != nil {
		if p, ok := arrivals[x.gateway]; !ok || p.requests > 0 {
			arrivals[x.gateway] = p.arrived(waiters, now)
		}
	}
	return expires
}

// end ends a reservation, even if requests are still expected.
func (d *reservations) end(x reservation) {
	delete(d.due, x)
	if arrivals := d.unresolved[x.ticket]; arrivals != nil {
		arrivals[x.gateway] = pending{}
	}
}

// resolve reserves the model, until the given time, for the waiters that Redis returned and that have not arrived yet.
func (d *reservations) resolve(ticket string, waiting []string, until time.Time) {
	arrivals, asked := d.unresolved[ticket]
	if !asked {
		return // given up meanwhile
	}
	delete(d.unresolved, ticket)
	for _, g := range waiting {
		p, here := arrivals[g]
		if !here {
			p.until = until
		} else if p.requests == 0 {
			continue
		}
		if d.due == nil {
			d.due = map[reservation]pending{}
		}
		d.due[reservation{ticket, g}] = p
	}
}

// expire drops the reservations that have ended by now.
func (d *reservations) expire(now time.Time) {
	for x, p := range d.due {
		if !now.Before(p.until) {
			delete(d.due, x)
		}
	}
}

// reserveFor reserves the model for the gateways that it was loaded for, for at most Config.Reserve.
func (h *Host) reserveFor(r *resident, ticket string, waiting []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r.reservations.resolve(ticket, waiting, time.Now().Add(h.cfg.Reserve))
	if len(r.reservations.due) > 0 {
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
		r.reservations.reserveUnresolved(t.ID)
	}
}
