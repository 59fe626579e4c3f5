package policy

import (
	"reflect"
	"testing"
	"time"
)

func TestNext(t *testing.T) {
	const fair = 2 * time.Second
	llm := func(id string) Model { return Model{ID: id, Type: LLM, Devices: GPU} }
	busy := Resident{ID: "busy", Type: LLM, Devices: GPU, State: ModelLoaded, InFlight: 1}
	host := func(rs []Resident, q ...Ticket) Host {
		return Host{Name: "h", State: Ready, Devices: CPU | GPU, Limits: Uniform(1), Residents: rs, Queue: q}
	}
	loading := func(h Host, id string, typ Type) Host {
		h.Loading = id
		h.Residents = append(h.Residents, Resident{ID: id, Type: typ, Devices: GPU, State: ModelLoading, Reserved: true})
		return h
	}
	tests := []struct {
		name string
		host Host
		want QueueDecision
	}{
		{
			"victims are closed while another load is under way",
			loading(host([]Resident{busy}, Ticket{ID: "t", Model: llm("a"), Since: epoch.Add(-fair)}), "e", Embedding),
			QueueDecision{Close: []string{"busy"}, Waits: []Waiting{{
				Ticket: "t", Heads: true, For: []string{"busy"}, Reason: Reason{BusyVictim, "waits for busy"},
			}}},
		},
		{
			"since in the future counts as now",
			host([]Resident{busy}, Ticket{ID: "t", Model: llm("a"), Since: epoch.Add(time.Hour)}),
			QueueDecision{Again: epoch.Add(fair), Waits: []Waiting{{
				Ticket: "t", Heads: true, For: []string{"busy"}, Reason: Reason{BusyVictim, "waits for busy"},
			}}},
		},
		{
			"a stopping victim needs no timer",
			host([]Resident{{ID: "going", Type: LLM, State: ModelDraining}}, Ticket{ID: "t", Model: llm("a")}),
			QueueDecision{Waits: []Waiting{{
				Ticket: "t", Heads: true, For: []string{"going"}, Reason: Reason{Stopping, "waits for going"},
			}}},
		},
		{
			"a reload waits for its own copy only",
			host([]Resident{busy}, Ticket{ID: "t", Model: llm("busy")}),
			QueueDecision{Again: epoch.Add(fair), Waits: []Waiting{{
				Ticket: "t", Heads: true, For: []string{"busy"}, Reason: Reason{BusyVictim, "waits for busy"},
			}}},
		},
		{
			"a later load must not put itself in a victim's place",
			Host{
				Name: "h", State: Ready, Limits: Uniform(1), Budget: map[Devices]int64{GPU: 16},
				Residents: []Resident{
					{ID: "busy", Type: LLM, Devices: GPU, State: ModelLoaded, InFlight: 1, Memory: 8},
					{ID: "idle", Type: Image, Devices: GPU, State: ModelLoaded, Memory: 8},
				},
				Queue: []Ticket{
					{ID: "t1", Model: Model{ID: "big", Type: LLM, Devices: GPU, Memory: 16}},
					{ID: "t2", Model: Model{ID: "other", Type: Image, Devices: GPU, Memory: 8}},
				},
			},
			QueueDecision{Again: epoch.Add(fair), Waits: []Waiting{
				{Ticket: "t1", Heads: true, For: []string{"busy"}, Reason: Reason{BusyVictim, "waits for busy"}},
				{Ticket: "t2", Behind: "t1", Reason: Reason{Behind, "waits behind t1"}},
			}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := Next(tt.host, epoch, fair); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got  %+v\nwant %+v", got, tt.want)
			}
		})
	}
}

func TestNextRefusesAnywhere(t *testing.T) {
	h := Host{
		Name: "h", State: Ready, Limits: Uniform(1), Loading: "a",
		Residents: []Resident{{ID: "a", Type: LLM, State: ModelLoading}, {ID: "p", Type: TTS, State: ModelLoaded, Pinned: true}},
		Queue:     []Ticket{{ID: "t1", Model: Model{ID: "b", Type: LLM}}, {ID: "t2", Model: Model{ID: "q", Type: TTS}}},
	}
	s := Next(h, epoch, time.Second)
	if s.Ticket != "t2" || s.Admission.Decision != Refuse || s.Admission.Refusal.Code != SlotsPinned || len(s.Overtakes) != 0 {
		t.Errorf("got %+v, want t2 refused", s)
	}
}
