package host

import (
	"slices"

	"reveille/infra/policy"
)

// status is where a resident is in its life. Host.mu guards it; only resident.to changes it.
type status int

const (
	starting status = iota // its engine starts
	serving                // takes requests
	closed                 // takes only requests that it is reserved for: a load waits for its slot
	claimed                // the same; the load in progress has its slot, and alone opens it again
	draining               // the same; it is unloaded when its open requests have ended
	stopping               // takes no request: its engine is being stopped, or dead
)

// transitions are what may follow a status.
var transitions = map[status][]status{
	starting: {serving, stopping},
	serving:  {closed, claimed, draining, stopping},
	closed:   {serving, claimed, draining, stopping},
	claimed:  {serving, draining, stopping},
	draining: {stopping},
}

// to changes the status and has the record written, or changes nothing where that status may not follow.
func (r *resident) to(next status) {
	if slices.Contains(transitions[r.status], next) {
		r.status, r.dirty = next, true
	}
}

// isLoaded reports whether it is neither starting nor leaving.
func (r *resident) isLoaded() bool {
	return r.status == serving || r.status == closed || r.status == claimed
}

// modelState returns the state as listings show it.
func (r *resident) modelState() policy.ModelState {
	switch {
	case r.status == starting:
		return policy.ModelLoading
	case r.isLoaded():
		return policy.ModelLoaded
	}
	return policy.ModelDraining
}
