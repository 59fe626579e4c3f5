package host

import (
	"context"
	"maps"
	"slices"

	"reveille/infra/policy"
)

// Forgotten is the outcome of ForgetConversations.
type Forgotten struct {
	Copies int // copies of models that are unloaded
	Open   int // their open requests, which finish first

	at uint64
}

// ForgetConversations makes the host forget what it computed of a model's conversations before at, a time of the pool's
// clock (state.ForgetConversations). An empty model stands for all language models. An engine can hold more than its
// slots, so each copy is unloaded without being saved: it takes no new requests, and its open ones finish like those of
// a retired copy. A call with the same or an earlier time returns the outcome of the first.
func (h *Host) ForgetConversations(model string, at uint64) Forgotten {
	if h.cfg.Forget != nil {
		h.cfg.Forget(model, at) // first, so that engines prepared from now on hold nothing
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if f := h.forgotten[model]; f.at >= at {
		return f
	}
	f := Forgotten{at: at}
	for _, r := range h.residents {
		if (model == "" || r.id == model) && r.model.Type == policy.LLM && !r.isRetired() && !r.forgetting {
			r.forgetting = true
			clear(r.reservations) // waiters request another load
			h.notifyIdleLocked(r)
			f.Copies++
			f.Open += len(r.open)
		}
	}
	h.forgotten[model] = f
	h.log.Info("forgetting conversations", "model", model, "copies", f.Copies, "open", f.Open)
	h.notify()
	return f
}

// refreshForgotten forgets what the pool was asked to forget through other hosts and gateways.
func (h *Host) refreshForgotten(ctx context.Context) error {
	all, err := h.store.Forgotten(ctx)
	if err != nil {
		return err
	}
	for _, model := range slices.Sorted(maps.Keys(all)) {
		h.ForgetConversations(model, all[model])
	}
	return nil
}
