package policy

import (
	"slices"
	"strings"
)

// A Decision is what happens to a load now.
type Decision string

// The decisions.
const (
	DecideLoad   Decision = "load"   // stop Evict in order, wait for each process to be gone, then load
	DecideWait   Decision = "wait"   // ask again when a model of WaitFor changes
	DecideRefuse Decision = "refuse" // fail the ticket with Refusal
)

// Admission is what must happen on a host before a model can be loaded.
type Admission struct {
	Decision  Decision
	Evict     []string  // idle victims to stop before the load, in order; only with DecideLoad
	Close     []string  // busy victims that take no new request from now on; only with DecideWait
	WaitFor   []string  // busy or stopping models whose slot or memory is needed; only with DecideWait
	Refusal   *Refusal  // only with DecideRefuse
	GPUMemory GPUMemory // what the model takes from each of its GPUs; nil: no GPUs were chosen
	Reason    Reason
}

// admission turns the victims of a load, or its refusal, into a decision.
//
// Rules 1, 3, 4, 7, 8 and 9 (infra/docs/rules.md) hold for every result: nothing busy, reserved, kept or pinned is evicted;
// with DecideLoad, once Evict is gone, the model fits the type's limit, the NPU and the memory of its devices. Evicting
// idle victims is preferred to waiting. The load waits for models that are already stopping rather than stop one more.
// With several busy models to choose from it waits for the first in byEvictionOrder, and once that is closed, the
// choice stays until an idle one turns up. No model is stopped while the load still has to wait for another.
//
// fair means that the load has waited long enough for its victims. They are closed, so that new requests queue behind
// the load (rule 4). A victim that is loading or reserved is not closed until it has served the request it was loaded
// for, because that request could not reach it otherwise.
//
// If the model is already resident, the load replaces that copy, pinned, kept or not: it is a reload with other options.
func admission(victims []Resident, refusal *Refusal, fair bool) Admission {
	if refusal != nil {
		return Admission{Decision: DecideRefuse, Refusal: refusal, Reason: refusal.Reason()}
	}
	if len(victims) == 0 {
		return Admission{Decision: DecideLoad, Reason: Reason{Code: FreeSlot}}
	}
	a := Admission{Decision: DecideLoad}
	busy := false
	for _, v := range victims {
		if v.State != ModelDraining && !v.Busy() {
			continue
		}
		a.Decision = DecideWait
		a.WaitFor = append(a.WaitFor, v.ID)
		busy = busy || v.State != ModelDraining
		if fair && isClosable(v) {
			a.Close = append(a.Close, v.ID)
		}
	}
	switch {
	case a.Decision == DecideLoad:
		a.Evict = names(victims)
		a.Reason = Reason{Code: IdleVictim, Detail: "stops " + strings.Join(a.Evict, ", ")}
	case busy:
		a.Reason = Reason{Code: BusyVictim, Detail: "waits for " + strings.Join(a.WaitFor, ", ")}
	default:
		a.Reason = Reason{Code: Stopping, Detail: "waits for " + strings.Join(a.WaitFor, ", ")}
	}
	return a
}

// isClosable reports whether closing r now would help: it is open, serves requests, and is neither reserved nor kept.
func isClosable(r Resident) bool {
	return r.State == ModelLoaded && r.InFlight > 0 && !r.Reserved && !r.Kept && !r.Closed
}

// closedExcept lists, in ByUse order, the closed models of h that stay and are not among the victims.
func closedExcept(h *Host, victims []Resident) []string {
	var out []Resident
	for _, r := range h.Residents {
		if r.Closed && r.State != ModelDraining && !contains(victims, r.ID) {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, ByUse)
	return names(out)
}

// ClearAll returns which models to stop to empty h after a load failed (rule 6), before the one retry. idle lists the
// idle models to stop immediately. waitFor lists the busy ones, which take new requests for at most --fair-after and
// stop when they are idle, and those already stopping. Both are in ByUse order. The retry may start when all of them
// are gone. A reserved model in waitFor still serves the request it was loaded for (rule 7).
//
// except, the model whose load failed, is left out. Pinned models stay: rule 6 asks for every model, but by rule 8 only
// the operator may unload a pinned one, and a failed load of another model must not override that.
func ClearAll(h Host, except string) (idle, waitFor []string) {
	rs := slices.Clone(h.Residents)
	slices.SortFunc(rs, ByUse)
	for _, r := range rs {
		switch {
		case r.ID == except:
		case r.State == ModelDraining:
			waitFor = append(waitFor, r.ID)
		case r.Pinned:
		case r.Busy():
			waitFor = append(waitFor, r.ID)
		default:
			idle = append(idle, r.ID)
		}
	}
	return idle, waitFor
}
