package host

import (
	"context"
	"errors"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/policy"
	"reveille/infra/recipe"
	"reveille/infra/rpc"
	"reveille/runner/plan"
)

// resident is a model that holds a slot: loading, loaded, or being stopped. Host.mu guards every field that changes.
type resident struct {
	id        string // of its model
	recipe    *recipe.Recipe
	options   recipe.Options
	plan      plan.Plan
	memory    int64
	gpuMemory policy.GPUMemory // of memory on each GPU; nil: on all of the host's
	catalog   *catalog.Catalog // from which it was loaded
	gone      chan struct{}    // closed when the process has ended and the slot is free

	key      string // among the host's residents and in Redis: id, or another key once retired
	model    *catalog.Model
	checked  *catalog.Catalog // the newest catalogue that it was compared with
	status   status
	forget   bool // takes no new request: what it holds is forgotten, and it is unloaded as soon as it is loaded
	pinned   bool
	loadPin  *bool     // a load's pin setting, until this copy is unloaded or a management call changes it; nil: none
	engine   Engine    // nil while loading
	used     time.Time // last use
	told     time.Time // the one of them that Redis was told last
	inRedis  time.Time // last use as Redis has it, zero if unknown
	loaded   time.Time
	loadTime time.Duration // of the load
	ticket   string        // of the last load that it satisfied

	open         map[*Ref]struct{}
	reservations reservations
	idle         []chan struct{} // closed when the model is no longer busy

	reason   string // why it is being stopped
	eviction bool   // it is being stopped for another model
	dirty    bool   // its record in Redis must be written
}

// clockError is more than two calls to Redis take. Times of use that differ by less are in the order that this host saw.
const clockError = time.Second

// lastUse returns the last use by which victims are chosen: what Redis has, or a use that it has not been told of yet.
func (r *resident) lastUse() time.Time {
	if r.inRedis.IsZero() || r.used.After(r.told) || r.inRedis.Sub(r.used).Abs() < clockError {
		return r.used
	}
	return r.inRedis
}

func (r *resident) busy() bool { return len(r.open) > 0 || len(r.reservations) > 0 }

// retired reports whether its catalogue entry is outdated, so that it only finishes its requests.
func (r *resident) retired() bool { return r.key != r.id }

// serves reports whether the model takes any request.
func (r *resident) serves() bool {
	return r.status == serving && !r.forget
}

// view returns the resident as package policy sees it. It shows a victim of the current load as draining. It shows a
// retired copy as loaded while it is busy: it may serve for an hour, so policy evicts idle models rather than wait for
// it.
func (r *resident) view() policy.Resident {
	v := policy.Resident{
		ID: r.key, Type: r.model.Type, Devices: r.model.Devices, State: r.modelState(), Pinned: r.pinned, InFlight: len(r.open),
		Reserved: len(r.reservations) > 0, Closed: r.status > serving, Used: r.used, Memory: r.memory, GPUMemory: r.gpuMemory,
	}
	switch {
	case r.status == claimed:
		v.State = policy.ModelDraining
	case r.retired() && r.busy():
		v.State = policy.ModelLoaded
	}
	return v
}

// ErrCut is the cause of requests that an unload cuts.
var ErrCut = errors.New("model is being unloaded")

// Ref is one request's reference to an engine, which is not stopped before Release unless the request was cut.
type Ref struct {
	Engine Engine
	Model  *catalog.Model

	host     *Host
	resident *resident
	cut      func(error) // nil once called
	readOnly bool        // keeps the engine but does not count as a use
}

// Acquire admits a request to a model, or returns a refusal of infra/rpc that says why not. If the request must end
// early, cut is called, at most once and from another goroutine; it may be nil. ticket and gateway name the load that
// the request waited for, and waiters is how many of the gateway's requests waited; 0 means 1.
func (h *Host) Acquire(model, ticket, gateway string, waiters int, cut func(error)) (*Ref, string) {
	return h.admit(model, reservation{ticket, gateway}, waiters, cut, false)
}

// AcquireRead admits a request that only reads an engine's state. It keeps the model loaded, but does not count as a
// use.
func (h *Host) AcquireRead(model string, cut func(error)) (*Ref, string) {
	return h.admit(model, reservation{}, 0, cut, true)
}

func (h *Host) admit(model string, d reservation, waiters int, cut func(error), readOnly bool) (*Ref, string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.draining {
		return nil, rpc.RefusedDraining
	}
	r := h.residents[model]
	if r == nil || r.engine == nil || r.status == stopping || r.forget || !r.serves() && !r.reservations.has(d) {
		return nil, rpc.RefusedNotLoaded
	}
	ref := &Ref{Engine: r.engine, Model: r.model, host: h, resident: r, cut: cut, readOnly: readOnly}
	r.open[ref] = struct{}{}
	ref.useLocked()
	now := time.Now()
	if until := r.reservations.arrive(d, waiters, now); !until.IsZero() {
		h.expireAfter(r, until.Sub(now))
	}
	return ref, ""
}

// useLocked records a use of the model, unless the request only reads.
func (r *Ref) useLocked() {
	if !r.readOnly {
		r.resident.used = policy.Use(r.resident.used, time.Now())
		r.host.active = true
	}
}

// Release ends the request. Further calls do nothing.
func (r *Ref) Release() {
	h := r.host
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, in := r.resident.open[r]; !in {
		return
	}
	delete(r.resident.open, r)
	r.useLocked()
	h.notifyIdleLocked(r.resident)
}

// notifyIdleLocked wakes those who wait for the model to become idle.
func (h *Host) notifyIdleLocked(r *resident) {
	if r.busy() {
		return
	}
	for _, c := range r.idle {
		close(c)
	}
	r.idle = nil
	if len(h.waits) > 0 || r.status > serving {
		h.notify()
	}
}

// awaitIdle waits until the model is not busy, or ctx ends. A model that is closed for good then stays idle.
func (h *Host) awaitIdle(ctx context.Context, r *resident) error {
	h.mu.Lock()
	if !r.busy() {
		h.mu.Unlock()
		return nil
	}
	c := make(chan struct{})
	r.idle = append(r.idle, c)
	h.mu.Unlock()
	select {
	case <-c:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// cutAll ends the open requests of a model and admits no others.
func (h *Host) cutAll(r *resident, cause error) {
	h.mu.Lock()
	r.to(stopping)
	clear(r.reservations)
	var cuts []func(error)
	for p := range r.open {
		if p.cut != nil {
			cuts = append(cuts, p.cut)
			p.cut = nil
		}
	}
	h.notifyIdleLocked(r)
	h.mu.Unlock()
	for _, cut := range cuts {
		cut(cause)
	}
}
