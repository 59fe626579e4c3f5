package host

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"reveille/infra/policy"
	"reveille/runner/plan"
)

// View is a host as it sees itself.
type View struct {
	Host       string      `json:"host"`
	Devices    string      `json:"devices"`
	Limits     string      `json:"max_loaded_models"`
	Generation uint64      `json:"generation"`
	Draining   bool        `json:"draining"`
	Loading    string      `json:"loading,omitempty"` // model
	Ticket     string      `json:"ticket,omitempty"`  // of the load in progress
	Models     []ModelView `json:"models"`
	Stats      Stats       `json:"stats"`
}

// ModelView is a model that holds a slot.
type ModelView struct {
	ID        string            `json:"id"`
	Type      string            `json:"type"`
	State     policy.ModelState `json:"state"`
	Closed    bool              `json:"closed"`
	Pinned    bool              `json:"pinned"`
	Retired   bool              `json:"retired,omitempty"` // replaced: it only finishes its open requests
	InFlight  int               `json:"in_flight"`
	Reserved  int               `json:"reserved"`
	PID       int               `json:"pid"`
	Used      time.Time         `json:"used"`
	Memory    int64             `json:"memory"`
	GPUMemory policy.GPUMemory  `json:"cards,omitempty"` // of Memory on each GPU, where GPUs are chosen
	Plan      plan.Plan         `json:"plan"`
	Command   string            `json:"cmd"`
}

// View describes the host now, models by name.
func (h *Host) View() View {
	generation := h.writableGeneration()
	h.mu.Lock()
	defer h.mu.Unlock()
	v := View{
		Host: h.cfg.Name, Devices: h.hardware.Devices.String(), Limits: h.settings.limits.String(), Generation: generation, Draining: h.draining,
		Models: make([]ModelView, 0, len(h.residents)), Stats: h.stats,
	}
	if h.loading != nil {
		v.Loading, v.Ticket = h.loading.spec.model.ID, h.loading.ticket.ID
	}
	for _, r := range h.residents {
		m := ModelView{
			ID: r.id, Type: string(r.model.Type), State: r.modelState(), Closed: r.status > serving, Retired: r.isRetired(), Pinned: r.pinned, InFlight: len(r.open), Reserved: len(r.reservations),
			Used: r.used, Memory: r.memory, GPUMemory: r.gpuMemory, Plan: r.plan,
		}
		if r.engine != nil {
			m.PID, m.Command = r.engine.PID(), r.engine.Command()
		}
		v.Models = append(v.Models, m)
	}
	slices.SortFunc(v.Models, func(a, b ModelView) int { return cmp.Or(strings.Compare(a.ID, b.ID), a.PID-b.PID) })
	return v
}

// EngineOf returns the engine of a loaded model, or nil.
func (h *Host) EngineOf(model string) Engine {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r := h.residents[model]; r != nil {
		return r.engine
	}
	return nil
}
