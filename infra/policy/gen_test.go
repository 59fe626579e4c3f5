package policy

import (
	"fmt"
	"time"

	"pgregory.net/rapid"
)

var epoch = time.Date(2024, 5, 1, 12, 0, 0, 0, time.UTC)

// Generators draw from few names, types and sizes, so that collisions and ties are common.

func genDevices() *rapid.Generator[Devices] {
	return rapid.SampledFrom([]Devices{CPU, GPU, GPU, NPU, GPU | NPU})
}

func genType() *rapid.Generator[Type] { return rapid.SampledFrom([]Type{LLM, LLM, Embedding, Audio}) }

func genModel(id string) *rapid.Generator[Model] {
	return rapid.Custom(func(t *rapid.T) Model {
		return Model{
			ID: id, Type: genType().Draw(t, "type"), Devices: genDevices().Draw(t, "devices"),
			Memory: rapid.Int64Range(0, 12).Draw(t, "memory"), Pinned: rapid.IntRange(0, 9).Draw(t, "pinned") == 0,
			Max: rapid.IntRange(0, 3).Draw(t, "max"),
		}
	})
}

func genResident(id string) *rapid.Generator[Resident] {
	return rapid.Custom(func(t *rapid.T) Resident {
		m := genModel(id).Draw(t, "model")
		r := Resident{
			ID: id, Type: m.Type, Devices: m.Devices, Memory: m.Memory, Pinned: m.Pinned, State: ModelLoaded,
			Used: epoch.Add(-time.Duration(rapid.IntRange(0, 5).Draw(t, "used")) * time.Minute),
			Idle: time.Duration(rapid.IntRange(-1, 3).Draw(t, "idle")) * time.Minute,
		}
		switch rapid.IntRange(0, 9).Draw(t, "state") {
		case 0:
			r.State = ModelLoading
		case 1:
			r.State = ModelDraining
		case 2, 3:
			r.InFlight = rapid.IntRange(1, 3).Draw(t, "in flight")
			r.Closed = rapid.Bool().Draw(t, "closed")
		case 4:
			r.Reserved = true
		}
		return r
	})
}

func genLimits() *rapid.Generator[Limits] {
	return rapid.Custom(func(t *rapid.T) Limits {
		l := Uniform(1)
		for i := range l {
			l[i] = rapid.SampledFrom([]int{-1, 1, 1, 2, 3}).Draw(t, "limit")
		}
		return l
	})
}

// genHost draws a ready host with at most n residents.
func genHost(name string, n int) *rapid.Generator[Host] {
	return rapid.Custom(func(t *rapid.T) Host {
		h := Host{Name: name, State: Ready, Devices: CPU | GPU | NPU, Limits: genLimits().Draw(t, "limits")}
		h.UpSince = epoch.Add(-time.Duration(rapid.IntRange(0, 20).Draw(t, "up")) * time.Minute)
		h.Active = epoch.Add(-time.Duration(rapid.IntRange(0, 20).Draw(t, "active")) * time.Minute)
		if rapid.Bool().Draw(t, "seats?") {
			h.NPUSeats = map[Type]int{LLM: rapid.IntRange(1, 2).Draw(t, "llm seats"), Audio: 1}
		}
		if rapid.Bool().Draw(t, "budget?") {
			h.Budget = map[Devices]int64{GPU: rapid.Int64Range(4, 24).Draw(t, "gpu bytes"), NPU: 10}
		}
		for i := range rapid.IntRange(0, n).Draw(t, "residents") {
			h.Residents = append(h.Residents, genResident(fmt.Sprintf("r%d", i)).Draw(t, "resident"))
		}
		return h
	})
}

// genQueuedHost draws a ready host with residents and up to five tickets.
func genQueuedHost(name string) *rapid.Generator[Host] {
	return rapid.Custom(func(t *rapid.T) Host {
		h := genHost(name, 5).Draw(t, "host")
		for i := range rapid.IntRange(0, 5).Draw(t, "tickets") {
			k := Ticket{
				ID: fmt.Sprintf("t%d", i), Model: genModel(fmt.Sprintf("w%d", i)).Draw(t, "wanted"),
				Overtaken: rapid.IntRange(6, MaxOvertaken).Draw(t, "overtaken"),
			}
			if s := rapid.IntRange(0, 4).Draw(t, "since"); s > 0 {
				k.Since = epoch.Add(-time.Duration(s) * time.Second)
			}
			h.Queue = append(h.Queue, k)
		}
		return h
	})
}

func genSnapshot() *rapid.Generator[Snapshot] {
	return rapid.Custom(func(t *rapid.T) Snapshot {
		s := Snapshot{Now: epoch}
		for i := range rapid.IntRange(0, 5).Draw(t, "hosts") {
			h := genQueuedHost(fmt.Sprintf("h%d", i)).Draw(t, "host")
			h.State = rapid.SampledFrom([]HostState{Ready, Ready, Asleep, Waking, Draining, Lost}).Draw(t, "state")
			h.Leases = rapid.IntRange(0, 1).Draw(t, "leases")
			s.Hosts = append(s.Hosts, h)
		}
		return s
	})
}

// admitted is an admission with the closed models that are no longer victims.
type admitted struct {
	Admission
	Reopen []string
}

// admit returns the admission of a single load that has waited for the given time, as Next decides it for each load of
// a queue.
func admit(h Host, want Model, waited, fairAfter time.Duration) admitted {
	victims, cards, refusal := findVictims(&h, &want)
	a := admitted{admission(victims, refusal, waited >= fairAfter), closedExcept(&h, victims)}
	a.GPUMemory = cards
	return a
}
