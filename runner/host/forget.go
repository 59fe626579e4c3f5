package host

import (
	"context"
	"maps"
	"slices"

	"reveille/infra/policy"
)

// Forgotten is the outcome of a call to ForgetConversations.
type Forgotten struct {
	Copies int // of models, which are unloaded
	Open   int // their open requests, which finish first

	at uint64
}

// ForgetConversations has nothing that was computed of a model's conversations before a time of the pool
// (state.ForgetConversations) used again, "" for all language models. An engine may hold more than its slots, so each copy is unloaded
// without being saved: it takes no new request from now on, and its open ones finish as those of a retired copy. A call
// with the same or an earlier time returns the outcome of the first.
func (h *Host) ForgetConversations(model string, at uint64) Forgotten {
	if h.cfg.Forget != nil {
		h.cfg.Forget(model, at) // first: what is prepared from now on holds nothing
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if f := h.forgotten[model]; f.at >= at {
		return f
	}
	f := Forgotten{at: at}
	for _, r := range h.residents {
		if (model == "" || r.id == model) && r.model.Type == policy.LLM && !r.retired() && !r.forget {
			r.forget = true
			clear(r.reservations) // waiters request another load
			h.notifyIdleLocked(r)
			f.Copies++
			f.Open += len(r.open)
		}
	}
	h.forgotten[model] = f
	h.log.Info("conversations are forgotten", "model", model, "copies", f.Copies, "open", f.Open)
	h.notify()
	return f
}

// refreshForgotten does what other hosts and gateways had the pool forget.
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
