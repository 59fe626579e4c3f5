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

// resident is a copy of a model that holds a slot: loading, loaded, or being stopped. Host.mu guards every field that
// changes.
type resident struct {
	id        string // the model's
	recipe    *recipe.Recipe
	options   recipe.Options
	plan      plan.Plan
	memory    int64
	gpuMemory policy.GPUMemory // the part of memory on each GPU; nil: no GPUs were chosen
	catalog   *catalog.Catalog // from which it was loaded
	gone      chan struct{}    // closed when the process has ended and the slot is free

	key        string // among the host's residents and in Redis: id, or another key once retired
	model      *catalog.Model
	checked    *catalog.Catalog // the newest catalog that its entry was compared with
	status     status
	forgetting bool // its conversations must be forgotten: it takes no new request, and is unloaded as soon as it is loaded
	pinned     bool
	loadPin    *bool     // a load's pin setting, until this copy is unloaded or a management call changes it; nil: none
	engine     Engine    // nil while loading
	used       time.Time // last use, by this host's clock
	needed     time.Time // when it was loaded, or more than half of the requests that it serves at a time were last open
	reported   time.Time // the last use reported to Redis
	inRedis    time.Time // last use as Redis has it, zero if unknown
	loaded     time.Time
	loadTime   time.Duration // how long the load took
	makesRoom  bool          // it was loaded for work in the background, and only that has used it: min_loaded does not keep it
	usedBehind time.Time     // when a request in the background last ended
	ticket     string        // the latest load ticket that it satisfied

	open         map[*Ref]struct{}
	background   map[*Ref]struct{} // open requests for which no unload waits
	reservations reservations
	idleWaiters  []chan struct{} // closed when the model is no longer busy

	stopReason string // why it is being stopped; "" until then
	evicted    bool   // it is being stopped to make room for another model
	dirty      bool   // its record in Redis must be written
}

// clockError is longer than two calls to Redis take with the default timeout. Uses whose times differ by less keep the
// order in which this host saw them.
const clockError = time.Second

// lastUse returns the last use by which victims are chosen: what Redis has, or a use not reported to it yet.
func (r *resident) lastUse() time.Time {
	if r.inRedis.IsZero() || r.used.After(r.reported) || r.inRedis.Sub(r.used).Abs() < clockError {
		return r.used
	}
	return r.inRedis
}

func (r *resident) isBusy() bool { return len(r.open) > 0 || len(r.reservations) > 0 }

// keptUntil returns when a loaded model may make room for others. A retired copy always may.
func (r *resident) keptUntil() time.Time {
	if r.makesRoom || r.isRetired() {
		return time.Time{}
	}
	return r.loaded.Add(r.checked.MinLoaded(r.model))
}

// keepLocked ends makesRoom, because not only work in the background uses the model.
func (r *resident) keepLocked() {
	r.dirty = r.dirty || r.makesRoom
	r.makesRoom = false
}

// isRetired reports whether a newer copy may take its place, so that it only finishes its requests.
func (r *resident) isRetired() bool { return r.key != r.id }

// acceptsAll reports whether the model takes any request, reserved or not.
func (r *resident) acceptsAll() bool {
	return r.status == serving && !r.forgetting
}

// view returns the resident as package policy sees it. It shows a victim of the current load as draining. It shows a
// retired copy as loaded while it is busy: it can serve for an hour, so policy evicts idle models rather than wait for
// it.
func (r *resident) view() policy.Resident {
	v := policy.Resident{
		ID: r.key, Type: r.model.Type, Devices: r.model.Devices, State: r.modelState(), Pinned: r.pinned, InFlight: len(r.open),
		Reserved: len(r.reservations) > 0, Closed: r.status > serving, Used: r.used, Memory: r.memory, GPUMemory: r.gpuMemory,
	}
	switch {
	case r.status == claimed:
		v.State = policy.ModelDraining
	case r.isRetired() && r.isBusy():
		v.State = policy.ModelLoaded
	}
	return v
}

// ErrCut is the cause of requests that an unload cuts off.
var ErrCut = errors.New("model is being unloaded")

// Ref is one request's reference to an engine, which is not stopped before Release unless the request was cut.
type Ref struct {
	Engine Engine
	Model  *catalog.Model

	host     *Host
	resident *resident
	cut      func(error) // nil when none was given, or once called
}

// AcquireModel admits a request to a loaded model, or returns the reason for the refusal, one of infra/rpc. If the
// request must end early, cut is called, at most once and from another goroutine; it can be nil. ticket and gateway
// name the load that the request waited for, and waiters is the number of the gateway's requests that waited; 0 means
// 1.
func (h *Host) AcquireModel(model, ticket, gateway string, waiters int, cut func(error)) (*Ref, string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	key := reservation{ticket, gateway}
	ref, refused := h.admitLocked(model, key, cut)
	if refused != "" {
		return nil, refused
	}
	r := ref.resident
	r.open[ref] = struct{}{}
	ref.useLocked()
	r.keepLocked()
	r.needLocked()
	now := time.Now()
	if until := r.reservations.countArrival(key, waiters, now); !until.IsZero() {
		h.expireAfter(r, until.Sub(now))
	}
	return ref, ""
}

// AcquireBackground admits a request that runs in the background, such as a monitor's. It is no use of the model, and
// an unload does not wait for it but cuts it.
func (h *Host) AcquireBackground(model string, cut func(error)) (*Ref, string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	ref, refused := h.admitLocked(model, reservation{}, cut)
	if refused == "" {
		ref.resident.background[ref] = struct{}{}
	}
	return ref, refused
}

// admitLocked returns the reference of a request that a loaded model takes, or the reason for its refusal.
func (h *Host) admitLocked(model string, key reservation, cut func(error)) (*Ref, string) {
	if h.draining {
		return nil, rpc.RefusedDraining
	}
	r := h.residents[model]
	if r == nil || r.engine == nil || r.status == stopping || r.forgetting || !r.acceptsAll() && !r.reservations.has(key) {
		return nil, rpc.RefusedNotLoaded
	}
	return &Ref{Engine: r.engine, Model: r.model, host: h, resident: r, cut: cut}, ""
}

// useLocked records a use of the model.
func (r *Ref) useLocked() {
	r.resident.used = policy.Later(r.resident.used, time.Now())
	r.host.active = true
}

// Release ends the request. Further calls do nothing.
func (r *Ref) Release() {
	h := r.host
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, ok := r.resident.background[r]; ok {
		delete(r.resident.background, r)
		r.resident.usedBehind = time.Now()
	}
	r.resident.needLocked()
	if _, ok := r.resident.open[r]; !ok {
		return
	}
	delete(r.resident.open, r)
	r.useLocked()
	h.notifyIdleLocked(r.resident)
}

// needLocked notes that the copy is needed if more than half of the requests that it serves at a time are open. It is
// called whenever that number has risen or is about to fall.
func (r *resident) needLocked() {
	if 2*len(r.open) > max(1, r.plan.Parallel) {
		r.needed = time.Now()
	}
}

// notifyIdleLocked wakes the goroutines that wait for the model to become idle.
func (h *Host) notifyIdleLocked(r *resident) {
	if r.isBusy() {
		return
	}
	for _, c := range r.idleWaiters {
		close(c)
	}
	r.idleWaiters = nil
	if len(h.waits) > 0 || r.status > serving {
		h.notify()
	}
}

// awaitIdle waits until the model is not busy, or ctx ends. If it admits no new requests, it stays idle.
func (h *Host) awaitIdle(ctx context.Context, r *resident) error {
	h.mu.Lock()
	if !r.isBusy() {
		h.mu.Unlock()
		return nil
	}
	c := make(chan struct{})
	r.idleWaiters = append(r.idleWaiters, c)
	h.mu.Unlock()
	select {
	case <-c:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// cutAll cuts the open requests of a model and admits no others.
func (h *Host) cutAll(r *resident, cause error) {
	h.mu.Lock()
	r.setStatus(stopping)
	clear(r.reservations)
	cuts := append(takeCuts(r.open), takeCuts(r.background)...)
	h.notifyIdleLocked(r)
	h.mu.Unlock()
	for _, cut := range cuts {
		cut(cause)
	}
}

// takeCuts returns what cuts requests, each once.
func takeCuts(refs map[*Ref]struct{}) (cuts []func(error)) {
	for ref := range refs {
		if ref.cut != nil {
			cuts = append(cuts, ref.cut)
			ref.cut = nil
		}
	}
	return cuts
}
