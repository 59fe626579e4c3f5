package policy

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestParseDevices(t *testing.T) {
	tests := []struct {
		in   string
		want Devices
		bad  bool
	}{
		{"", 0, false}, {"cpu", CPU, false}, {"gpu npu", GPU | NPU, false}, {"NPU,gpu", GPU | NPU, false},
		{"cpu|gpu|cpu", CPU | GPU, false}, {"tpu", 0, true}, {"gpu;npu", 0, true},
	}
	for _, tt := range tests {
		got, err := ParseDevices(tt.in)
		if got != tt.want || (err != nil) != tt.bad {
			t.Errorf("ParseDevices(%q) = %v, %v", tt.in, got, err)
		}
	}
	if d := GPU | NPU; !d.Has(NPU) || d.Has(CPU|GPU) || !d.Overlaps(CPU|GPU) || d.Overlaps(CPU) {
		t.Error("set operations")
	}
}

func TestParseLimits(t *testing.T) {
	tests := []struct {
		in   string
		want Limits
		out  string
	}{
		{"1", Uniform(1), "1"},
		{"-1", Uniform(-1), "-1"},
		{"4", Uniform(4), "4"},
		{"5 2 4", Limits{5, 2, 4, 1, 1, 1}, "5 2 4 1 1 1"},
		{"5,-1", Limits{5, -1, 1, 1, 1, 1}, "5 -1 1 1 1 1"},
		{"1 2 3 4 5 6", Limits{1, 2, 3, 4, 5, 6}, "1 2 3 4 5 6"},
	}
	for _, tt := range tests {
		got, err := ParseLimits(tt.in)
		if err != nil || got != tt.want || got.String() != tt.out {
			t.Errorf("ParseLimits(%q) = %v, %v", tt.in, got, err)
		}
	}
	for _, in := range []string{"", "0", "1 0", "-2", "x", "1 2 3 4 5 6 7", "1.5", "1;2"} {
		if got, err := ParseLimits(in); err == nil {
			t.Errorf("ParseLimits(%q) = %v, want an error", in, got)
		}
	}
	if n := Uniform(3).Of("video"); n != 0 || Type("video").Valid() || !TTS.Valid() {
		t.Errorf("unknown type has %d slots", n)
	}
}

func TestRuntimeSettingOverridesLimits(t *testing.T) {
	flags := Uniform(1)
	for text, want := range map[string]string{
		"": "1", "3": "3", "-1": "-1", `{"llm":2,"image":-1}`: "2 1 1 1 -1 1", "{}": "1", "0": "1", `{"llm":0}`: "1", "invalid": "1", "null": "1",
		`{"llm":2,"x":1}`: "1", "1.5": "1", "1000001": "1", `"3"`: "1",
	} {
		got, err := flags.Override([]byte(text))
		if got.String() != want || (err == nil) != (text == "{}" || got != flags) {
			t.Errorf("%q: %s, %v, want %s", text, got, err, want)
		}
	}
}

// TestRefusalsHaveMessagesForClients: the sentence names no host; Explain does.
func TestRefusalsHaveMessagesForClients(t *testing.T) {
	s := Snapshot{Hosts: []Host{
		{Name: "secret-1", State: Ready, Limits: Uniform(1), Residents: []Resident{{ID: "p", Type: LLM, State: ModelLoaded, Pinned: true}}},
		{Name: "secret-2", State: Asleep, Devices: GPU, Budget: map[Devices]int64{GPU: 5}},
		{Name: "secret-3", State: Asleep, Devices: CPU},
	}}
	for _, avoid := range []map[string]string{nil, {"secret-1": "no capacity"}, {"secret-1": "", "secret-2": ""}} {
		r := Place(s, Model{ID: "m", Type: LLM, Devices: GPU, Memory: 9}, avoid).Refusal
		if r == nil || strings.Contains(r.Error(), "secret") || !strings.Contains(r.Explain(), "secret-3 no_device") {
			t.Errorf("avoiding %v: %v", avoid, r)
		}
	}
	for _, c := range []Code{TooLarge, SlotsPinned, NoNPUSeat, NoSlot, NoDevice, NoHost, Avoided} {
		if r := (&Refusal{Code: c, Model: "m"}); r.Error() == "" || r.Reason().Code != c || r.Reason().String() == string(c) {
			t.Errorf("%s: %q", c, r.Error())
		}
	}
}

// TestUnknownLimitsOfHostsCountAsDefaults: a host that never registered is judged by the runner's defaults; a model
// without an estimate counts as nothing.
func TestUnknownLimitsOfHostsCountAsDefaults(t *testing.T) {
	fresh := Snapshot{Hosts: []Host{{Name: "h", State: Asleep}}}
	if p := Place(fresh, Model{ID: "m", Type: LLM, Devices: NPU}, nil); p.Host != "h" || !p.Wake {
		t.Errorf("never registered: %+v", p)
	}
	full := Host{
		Name: "h", State: Ready, Limits: Uniform(-1), Budget: map[Devices]int64{GPU: 10},
		Residents: []Resident{{ID: "r", Type: LLM, Devices: GPU, State: ModelLoaded, Memory: 12}},
	}
	if a := admit(full, Model{ID: "m", Type: LLM, Devices: GPU}, 0, 0); a.Decision != DecideLoad || a.Evict != nil {
		t.Errorf("unknown need: %+v", a)
	}
	if a := admit(Host{}, Model{ID: "m", Type: LLM}, 0, 0); a.Decision != DecideRefuse || a.Refusal.Code != NoSlot {
		t.Errorf("no limits: %+v", a)
	}
}

// TestReloadReplacesItsOwnCopy: one host never holds two copies of a model, however much room it has.
func TestReloadReplacesItsOwnCopy(t *testing.T) {
	h := Host{Name: "h", State: Ready, Limits: Uniform(-1), Residents: []Resident{
		{ID: "m", Type: LLM, State: ModelLoaded, Pinned: true}, {ID: "o", Type: LLM, State: ModelLoaded},
	}}
	if a := admit(h, Model{ID: "m", Type: LLM}, 0, 0); a.Decision != DecideLoad || !slices.Equal(a.Evict, []string{"m"}) {
		t.Errorf("got %+v, want m stopped alone", a)
	}
}

func TestIdleDefaultsApplyWithoutOwnTimes(t *testing.T) {
	host := Host{Name: "h", State: Ready, UpSince: epoch.Add(-time.Hour)}
	hostWith := func(idle time.Duration) Host { h := host; h.Idle = idle; return h }
	loaded := host
	loaded.Residents = []Resident{{ID: "m", Type: LLM, State: ModelLoaded, Used: epoch.Add(-time.Minute)}}
	unknown := host
	unknown.Residents = []Resident{{ID: "m", Type: LLM, State: ModelLoaded}}
	tests := []struct {
		name          string
		host          Host
		d             SweepSettings
		unload, sleep int
	}{
		{"never", loaded, SweepSettings{-1, -1, -1}, 0, 0},
		{"at once", loaded, SweepSettings{}, 1, 0},
		{"not yet", loaded, SweepSettings{Idle: 61 * time.Second}, 0, 0},
		{"unknown last use", unknown, SweepSettings{}, 0, 0},
		{"host at once", host, SweepSettings{}, 0, 1},
		{"host never", host, SweepSettings{HostIdle: -1}, 0, 0},
		{"host with its own time", hostWith(3 * time.Hour), SweepSettings{HostIdle: 0}, 0, 0},
		{"host with its own short time", hostWith(time.Second), SweepSettings{HostIdle: -1}, 0, 1},
		{"host up too short", host, SweepSettings{HostMinUp: 2 * time.Hour}, 0, 0},
		{"hosts stay up for ever", host, SweepSettings{HostMinUp: -1}, 0, 0},
		{"host without activity since it is up", host, SweepSettings{HostIdle: time.Hour}, 0, 1},
		{"unknown start", Host{Name: "h", State: Ready, Active: epoch.Add(-time.Hour)}, SweepSettings{}, 0, 0},
	}
	for _, tt := range tests {
		p := Idle(Snapshot{Hosts: []Host{tt.host}}, epoch, tt.d)
		if len(p.Unload) != tt.unload || len(p.Sleep) != tt.sleep {
			t.Errorf("%s: %+v", tt.name, p)
		}
	}
}

// Under Cost the model with the cheapest reload is evicted, on a host and between hosts. Under LRU all values are the
// same.
func TestCheapestModelIsEvictedByCost(t *testing.T) {
	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	host := func(name string, e EvictionPolicy, price float64, reload map[string]time.Duration) Host {
		h := Host{Name: name, State: Ready, Devices: GPU, Limits: Uniform(len(reload))}
		for _, id := range slices.Sorted(maps.Keys(reload)) {
			used := at.Add(-time.Minute)
			h.Residents = append(h.Residents, Resident{
				ID: id, Type: LLM, Devices: GPU, State: ModelLoaded, Used: used, Value: e.Value(reload[id], price, at.Sub(used)),
			})
		}
		return h
	}
	want := Model{ID: "new", Type: LLM, Devices: GPU}
	for e, victim := range map[EvictionPolicy]string{LRU: "big", Cost: "small"} {
		h := host("a", e, 1, map[string]time.Duration{"big": time.Minute, "small": time.Second})
		if got := admit(h, want, 0, time.Second).Evict; !slices.Equal(got, []string{victim}) {
			t.Errorf("%s evicts %v, want %s", e, got, victim)
		}
	}
	for e, name := range map[EvictionPolicy]string{LRU: "a", Cost: "b"} {
		s := Snapshot{Now: at, Hosts: []Host{
			host("a", e, 4, map[string]time.Duration{"x": time.Minute}), host("b", e, 1, map[string]time.Duration{"y": time.Minute}),
		}}
		if got := Place(s, want, nil).Host; got != name {
			t.Errorf("%s places on %s, want %s", e, got, name)
		}
	}
	if Cost.Value(time.Minute, 1, time.Hour) >= Cost.Value(time.Minute, 1, time.Minute) {
		t.Error("a model unused for longer is worth as much")
	}
	for text, want := range map[string]EvictionPolicy{"": LRU, "lru": LRU, "cost": Cost} {
		if e, err := ParseEvictionPolicy(text); e != want || err != nil {
			t.Errorf("%q: %v %v", text, e, err)
		}
	}
	if _, err := ParseEvictionPolicy("random"); err == nil {
		t.Error("random is taken")
	}
}

func TestNextStartsTheFirstPossibleTicket(t *testing.T) {
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
				Ticket: "t", Unblocked: true, For: []string{"busy"}, Reason: Reason{BusyVictim, "waits for busy"},
			}}},
		},
		{
			"since in the future counts as now",
			host([]Resident{busy}, Ticket{ID: "t", Model: llm("a"), Since: epoch.Add(time.Hour)}),
			QueueDecision{Again: epoch.Add(fair), Waits: []Waiting{{
				Ticket: "t", Unblocked: true, For: []string{"busy"}, Reason: Reason{BusyVictim, "waits for busy"},
			}}},
		},
		{
			"a stopping victim needs no timer",
			host([]Resident{{ID: "going", Type: LLM, State: ModelDraining}}, Ticket{ID: "t", Model: llm("a")}),
			QueueDecision{Waits: []Waiting{{
				Ticket: "t", Unblocked: true, For: []string{"going"}, Reason: Reason{Stopping, "waits for going"},
			}}},
		},
		{
			"a reload waits for its own copy only",
			host([]Resident{busy}, Ticket{ID: "t", Model: llm("busy")}),
			QueueDecision{Again: epoch.Add(fair), Waits: []Waiting{{
				Ticket: "t", Unblocked: true, For: []string{"busy"}, Reason: Reason{BusyVictim, "waits for busy"},
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
				{Ticket: "t1", Unblocked: true, For: []string{"busy"}, Reason: Reason{BusyVictim, "waits for busy"}},
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

func TestNextRefusesTicketsAtAnyPosition(t *testing.T) {
	h := Host{
		Name: "h", State: Ready, Limits: Uniform(1), Loading: "a",
		Residents: []Resident{{ID: "a", Type: LLM, State: ModelLoading}, {ID: "p", Type: TTS, State: ModelLoaded, Pinned: true}},
		Queue:     []Ticket{{ID: "t1", Model: Model{ID: "b", Type: LLM}}, {ID: "t2", Model: Model{ID: "q", Type: TTS}}},
	}
	s := Next(h, epoch, time.Second)
	if s.Ticket != "t2" || s.Admission.Decision != DecideRefuse || s.Admission.Refusal.Code != SlotsPinned || len(s.Overtakes) != 0 {
		t.Errorf("got %+v, want t2 refused", s)
	}
}
