package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Code names a decision as a lower-case identifier. The set is small and fixed, so that a code can be a metric label.
type Code string

// Codes of admissions and placements.
const (
	FreeSlot   Code = "free_slot"   // no model needs to be evicted
	IdleVictim Code = "idle_victim" // idle models are evicted first
	AfterQueue Code = "after_queue" // no busy model needs to be evicted, but loads are queued before it
	BusyVictim Code = "busy_victim" // waits for open requests, a reservation or a load to end
	Stopping   Code = "stopping"    // waits for models that are already stopping, but for no busy one
	Behind     Code = "behind"      // waits behind an earlier ticket
	OneLoad    Code = "one_load"    // waits because another model is being loaded
	WakeHost   Code = "wake_host"   // the host is asleep
	WakingHost Code = "waking_host" // the host is waking
	StopFirst  Code = "stop_first"  // the host is about to sleep: it stops, then wakes again
	LostHost   Code = "lost_host"   // the host's heartbeat is missing; no better host is left
)

// Codes of sweeps.
const (
	ModelIdle Code = "model_idle"
	CopySpare Code = "copy_spare" // the model's other copies can serve its requests
	HostIdle  Code = "host_idle"
)

// Codes of refusals. Avoided and HasCopy occur only in Refusal.Hosts. Waiting can help if pins are removed, an avoided
// host recovers, a copy serves, or other programs release memory.
const (
	SlotsPinned Code = "slots_pinned" // only pinned models hold what the load needs
	TooLarge    Code = "too_large"    // needs more memory than the device has when the host is empty
	NoNPUSeat   Code = "no_npu_seat"  // the host declares NPU seats and has none for the type
	NoSlot      Code = "no_slot"      // the host's limit for the type is 0
	NoDevice    Code = "no_device"    // the host lacks a device the model uses
	NoHost      Code = "no_host"      // no host of the pool can take the model
	Avoided     Code = "avoided"      // the caller asked not to use the host
	HasCopy     Code = "has_copy"     // the host has the model or a ticket for it
)

// A Reason is why a decision was made: Code for metrics and tests, Detail for operators. Detail can contain names of
// models and hosts and is not meant for clients.
type Reason struct {
	Code   Code
	Detail string
}

// String returns "code: detail", or only the code.
func (r Reason) String() string {
	if r.Detail == "" {
		return string(r.Code)
	}
	return string(r.Code) + ": " + r.Detail
}

// A Refusal is why a model cannot be loaded. Only the fields that concern its code are set.
type Refusal struct {
	Code   Code
	Model  string
	Type   Type
	Limit  int      // for SlotsPinned: slots of the type, or NPU seats if Device is NPU
	Device Devices  // device that lacks memory or seats, or that the host lacks
	Need   int64    // bytes the model needs on Device
	Budget int64    // bytes Device offers to models
	Others int64    // bytes that other programs use, without which Device would offer more
	Used   int64    // bytes of Budget that pinned models use
	UsedBy []string // pinned models in the way, by name
	Parts  string   // what Need consists of, as text; "" if unknown

	// GPUs names the GPUs concerned, such as "gpu:0, gpu:1"; "" means all GPUs of the host. For NoDevice it is what the
	// model asks for and the host cannot give: "device gpu:2" or "2 GPUs".
	GPUs string
	// Hosts gives the reason of each host considered. Only Place sets it.
	Hosts []HostRefusal
}

// withParts describes what a need consists of.
func withParts(parts string) string {
	if parts == "" {
		return ""
	}
	return " (" + parts + ")"
}

// withOthers describes what other programs use.
func withOthers(others int64) string {
	if others <= 0 {
		return ""
	}
	return fmt.Sprintf(", while other programs use %d", others)
}

// onGPUs names the GPUs to which an amount refers.
func onGPUs(gpus string) string {
	if gpus == "" {
		return ""
	}
	return " on " + gpus
}

// A HostRefusal is one host's part in a Refusal of the whole pool.
type HostRefusal struct {
	Host   string
	Reason Reason
}

// Error returns a sentence for the client. It names models, types and bytes, never a host.
func (r *Refusal) Error() string {
	switch r.Code {
	case TooLarge:
		return fmt.Sprintf("model %s needs %d bytes of %s memory%s, more than the %d a host has%s%s", r.Model, r.Need, r.Device, withParts(r.Parts), r.Budget, onGPUs(r.GPUs), withOthers(r.Others))
	case SlotsPinned:
		by := strings.Join(r.UsedBy, ", ")
		switch {
		case r.Need > 0:
			return fmt.Sprintf("model %s needs %d bytes of %s memory%s, but pinned models (%s) use %d of %d%s%s", r.Model, r.Need, r.Device, withParts(r.Parts), by, r.Used, r.Budget, onGPUs(r.GPUs), withOthers(r.Others))
		case r.Device != 0:
			return fmt.Sprintf("no %s seat for %s model %s: used by pinned models: %s", r.Device, r.Type, r.Model, by)
		}
		return fmt.Sprintf("all %d slots of type %s are used by pinned models: %s", r.Limit, r.Type, by)
	case NoNPUSeat:
		return fmt.Sprintf("no npu seat for models of type %s", r.Type)
	case NoSlot:
		return fmt.Sprintf("no slot for models of type %s", r.Type)
	case NoDevice:
		return fmt.Sprintf("model %s needs %s", r.Model, cmp.Or(r.GPUs, "device "+r.Device.String()))
	case NoHost:
		if len(r.Hosts) > 0 && !slices.ContainsFunc(r.Hosts, func(h HostRefusal) bool { return h.Reason.Code != NoDevice }) {
			needs := strings.TrimPrefix(r.Hosts[0].Reason.Detail, "model "+r.Model+" ")
			return fmt.Sprintf("no host can take model %s: it %s", r.Model, needs)
		}
		return fmt.Sprintf("no host can take model %s now", r.Model)
	}
	return fmt.Sprintf("model %s refused: %s", r.Model, r.Code)
}

// Explain returns Error with the reason of every host, for operators.
func (r *Refusal) Explain() string {
	if len(r.Hosts) == 0 {
		return r.Error()
	}
	parts := make([]string, len(r.Hosts))
	for i, h := range r.Hosts {
		parts[i] = h.Host + " " + h.Reason.String()
	}
	return r.Error() + " (" + strings.Join(parts, "; ") + ")"
}

// Reason returns the refusal as the reason of a decision.
func (r *Refusal) Reason() Reason { return Reason{Code: r.Code, Detail: r.Error()} }
