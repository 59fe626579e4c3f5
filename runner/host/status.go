package host

import (
	"slices"

	"reveille/infra/policy"
)

// status is a stage in a resident's life. Host.mu guards it; only resident.setStatus changes it.
type status int

const (
	starting status = iota // its engine is starting
	serving                // takes requests
	closed                 // takes only requests that it is reserved for: a load waits for its slot
	claimed                // takes only requests that it is reserved for; only the load in progress, which has claimed its slot, can reopen it
	leaving                // takes only requests that it is reserved for; it is unloaded when its open requests have ended
	stopping               // takes no request: its engine is being stopped, or dead
)

// transitions lists the statuses that may follow each status.
var transitions = map[status][]status{
	starting: {serving, stopping},
	serving:  {closed, claimed, leaving, stopping},
	closed:   {serving, claimed, leaving, stopping},
	claimed:  {serving, leaving, stopping},
	leaving:  {stopping},
}

// setStatus changes the status and marks the record for writing. It does nothing if that transition is not allowed.
func (r *resident) setStatus(next status) {
	if slices.Contains(transitions[r.status], next) {
		r.status, r.dirty = next, true
	}
}

// isLoaded reports whether it is neither starting nor leaving.
func (r *resident) isLoaded() bool {
	return r.status == serving || r.status == closed || r.status == claimed
}

// modelState returns the state as listings show it. Redis gets a closed or claimed model as draining (recordLocked), so that
// gateways send it nothing.
func (r *resident) modelState() policy.ModelState {
	switch {
	case r.status == starting:
		return policy.ModelLoading
	case r.isLoaded():
		return policy.ModelLoaded
	}
	return policy.ModelDraining
}
