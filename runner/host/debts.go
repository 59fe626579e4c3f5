package host

import (
	"time"

	"reveille/infra/policy"
	"reveille/infra/state"
)

// A debt is a place that a model owes: a gateway waited for the load that the ticket asked for, and one request of it is
// served before the model may go (rule 7).
type debt struct{ ticket, gateway string }

// debts are what one model owes. Host.mu guards them; the zero value owes nothing.
type debts struct {
	due map[debt]time.Time // until when, at most
	// asking holds the tickets whose outcome is on its way to Redis: who waits for them is not known yet, so they are
	// owed to everybody who names them; and who came already.
	asking map[string]map[string]struct{}
}

func (d *debts) any() bool { return len(d.due) > 0 || len(d.asking) > 0 }

func (d *debts) count() int { return len(d.due) + len(d.asking) }

func (d *debts) owes(x debt) bool {
	if _, ok := d.due[x]; ok {
		return true
	}
	_, ok := d.asking[x.ticket]
	return ok
}

// ask makes the model owe until it is known who waits for the ticket.
func (d *debts) ask(ticket string) {
	if d.asking == nil {
		d.asking = map[string]map[string]struct{}{}
	}
	if d.asking[ticket] == nil {
		d.asking[ticket] = map[string]struct{}{}
	}
}

// pay ends one debt.
func (d *debts) pay(x debt) {
	delete(d.due, x)
	if came := d.asking[x.ticket]; came != nil {
		came[x.gateway] = struct{}{}
	}
}

// answer is what Redis said to ask: those who wait and have not come yet are owed until the given time.
func (d *debts) answer(ticket string, waiting []string, until time.Time) {
	came, asked := d.asking[ticket]
	if !asked {
		return // given up meanwhile
	}
	delete(d.asking, ticket)
	for _, g := range waiting {
		if _, ok := came[g]; !ok {
			if d.due == nil {
				d.due = map[debt]time.Time{}
			}
			d.due[debt{ticket, g}] = until
		}
	}
}

// lapse drops what was due by now.
func (d *debts) lapse(now time.Time) {
	for x, until := range d.due {
		if !now.Before(until) {
			delete(d.due, x)
		}
	}
}

// answerDebt makes the model wait for the gateways that it was loaded for, at most Config.Reserve.
func (h *Host) answerDebt(r *resident, ticket string, waiting []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r.debts.answer(ticket, waiting, time.Now().Add(h.cfg.Reserve))
	if len(r.debts.due) > 0 {
		time.AfterFunc(h.cfg.Reserve, func() {
			h.mu.Lock()
			defer h.mu.Unlock()
			r.debts.lapse(time.Now())
			h.settleLocked(r)
		})
	}
	h.settleLocked(r)
}

// release ends what a model owes to a gateway that does not wait any more.
func (h *Host) release(model, ticket, gateway string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r := h.residents[model]; r != nil {
		r.debts.pay(debt{ticket, gateway})
		h.settleLocked(r)
	}
}

// oweLocked notes that the model was loaded, or is used, for a ticket whose outcome is about to be told. Who waits for an
// explicit load (one with options) has no request to send after it, so nothing is owed.
func (r *resident) oweLocked(t state.TicketRecord) {
	r.ticket, r.dirty = t.ID, true
	r.used = policy.Use(r.used, time.Now())
	if t.Options == "" {
		r.debts.ask(t.ID)
	}
}
