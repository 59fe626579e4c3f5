package host

import (
	"time"

	"reveille/infra/policy"
	"reveille/infra/state"
)

// A reservation keeps a model for a gateway that waited for the load of a ticket: the model serves one of its requests
// before it may be evicted (rule 7).
type reservation struct{ ticket, gateway string }

// reservations are those of one model. Host.mu guards them; the zero value has none.
type reservations struct {
	due map[reservation]time.Time // when each expires
	// asking has the tickets whose outcome is on its way to Redis, with the gateways that have come already. Until Redis
	// returns the waiters, any gateway that presents such a ticket is admitted.
	asking map[string]map[string]struct{}
}

func (d *reservations) any() bool { return len(d.due) > 0 || len(d.asking) > 0 }

func (d *reservations) count() int { return len(d.due) + len(d.asking) }

func (d *reservations) has(x reservation) bool {
	if _, ok := d.due[x]; ok {
		return true
	}
	_, ok := d.asking[x.ticket]
	return ok
}

// ask keeps the model for a ticket until its waiters are known.
func (d *reservations) ask(ticket string) {
	if d.asking == nil {
		d.asking = map[string]map[string]struct{}{}
	}
	if d.asking[ticket] == nil {
		d.asking[ticket] = map[string]struct{}{}
	}
}

// end ends one reservation.
func (d *reservations) end(x reservation) {
	delete(d.due, x)
	if came := d.asking[x.ticket]; came != nil {
		came[x.gateway] = struct{}{}
	}
}

// answer reserves the model for the waiters that Redis returned and that have not come yet, until the given time.
func (d *reservations) answer(ticket string, waiting []string, until time.Time) {
	came, asked := d.asking[ticket]
	if !asked {
		return // given up meanwhile
	}
	delete(d.asking, ticket)
	for _, g := range waiting {
		if _, ok := came[g]; !ok {
			if d.due == nil {
				d.due = map[reservation]time.Time{}
			}
			d.due[reservation{ticket, g}] = until
		}
	}
}

// expire drops the reservations that have ended by now.
func (d *reservations) expire(now time.Time) {
	for x, until := range d.due {
		if !now.Before(until) {
			delete(d.due, x)
		}
	}
}

// reserveFor keeps the model for the gateways that it was loaded for, at most Config.Reserve.
func (h *Host) reserveFor(r *resident, ticket string, waiting []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r.reservations.answer(ticket, waiting, time.Now().Add(h.cfg.Reserve))
	if len(r.reservations.due) > 0 {
		time.AfterFunc(h.cfg.Reserve, func() {
			h.mu.Lock()
			defer h.mu.Unlock()
			r.reservations.expire(time.Now())
			h.settleLocked(r)
		})
	}
	h.settleLocked(r)
}

// release ends the reservation of a gateway that does not wait any more.
func (h *Host) release(model, ticket, gateway string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r := h.residents[model]; r != nil {
		r.reservations.end(reservation{ticket, gateway})
		h.settleLocked(r)
	}
}

// reserveLocked notes that the model was loaded, or is used, for a ticket whose outcome is about to be published. An
// explicit load (one with options) has no request that follows it, so it reserves nothing.
func (r *resident) reserveLocked(t state.TicketRecord) {
	r.ticket, r.dirty = t.ID, true
	r.used = policy.Use(r.used, time.Now())
	if t.Options == "" {
		r.reservations.ask(t.ID)
	}
}
