package host

import (
	"context"
	"fmt"
)

// retire closes a copy whose catalog entry changed or whose conversations must be forgotten. Its open requests can
// finish, within Config.RetireTimeout, while the model's next copy already serves. So that both can be resident, the
// old copy gets the key "<model>~<pid>", which no model can have. A copy without open requests is stopped immediately.
// A reserved copy is left for a later pass.
func (h *Host) retire(ctx context.Context, r *resident, reason string) {
	h.redisMu.Lock()
	h.mu.Lock()
	if !r.isLoaded() || len(r.reservations) > 0 {
		h.mu.Unlock()
		h.redisMu.Unlock()
		return
	}
	r.setStatus(leaving)
	if len(r.open) > 0 {
		delete(h.residents, r.key)
		r.key = fmt.Sprintf("%s~%d", r.id, r.engine.PID())
		r.pinned, r.loadPin = false, nil
		h.residents[r.key] = r
	}
	rekeyed, open := r.isRetired(), len(r.open)
	h.mu.Unlock()
	if rekeyed {
		h.publishDirtyLocked(ctx) // under the new key first, so that the process always has a record
		if !h.mustRegister {
			h.noteWriteErrorLocked(h.store.DropModel(ctx, h.cfg.Name, h.generation, r.id, reason, false))
		}
	}
	h.redisMu.Unlock()
	h.log.Info("retiring a copy, its open requests finish first", "reason", reason, "model", r.id, "pid", r.engine.PID(), "open", open)
	h.startUnload(ctx, nil, h.cfg.RetireTimeout, r)
}

// copies returns the residents of a model: the current one and the retired ones.
func (h *Host) copies(model string) []*resident {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []*resident
	for _, r := range h.residents {
		if r.id == model {
			out = append(out, r)
		}
	}
	return out
}
