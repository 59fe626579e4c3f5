package policy

import (
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

// TestRefusalsForClients: the sentence names no host; Explain does.
func TestRefusalsForClients(t *testing.T) {
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

// TestUnknownsOfHosts: a host that never registered is judged by the runner's defaults; a model without an estimate
// counts as nothing.
func TestUnknownsOfHosts(t *testing.T) {
	fresh := Snapshot{Hosts: []Host{{Name: "h", State: Asleep}}}
	if p := Place(fresh, Model{ID: "m", Type: LLM, Devices: NPU}, nil); p.Host != "h" || !p.Wake {
		t.Errorf("never registered: %+v", p)
	}
	full := Host{
		Name: "h", State: Ready, Limits: Uniform(-1), Budget: map[Devices]int64{GPU: 10},
		Residents: []Resident{{ID: "r", Type: LLM, Devices: GPU, State: ModelLoaded, Memory: 12}},
	}
	if a := admit(full, Model{ID: "m", Type: LLM, Devices: GPU}, 0, 0); a.Decision != Load || a.Evict != nil {
		t.Errorf("unknown need: %+v", a)
	}
	if a := admit(Host{}, Model{ID: "m", Type: LLM}, 0, 0); a.Decision != Refuse || a.Refusal.Code != NoSlot {
		t.Errorf("no limits: %+v", a)
	}
}

// TestReloadReplacesItsOwnCopy: one host never holds two copies of a model, however much room it has.
func TestReloadReplacesItsOwnCopy(t *testing.T) {
	h := Host{Name: "h", State: Ready, Limits: Uniform(-1), Residents: []Resident{
		{ID: "m", Type: LLM, State: ModelLoaded, Pinned: true}, {ID: "o", Type: LLM, State: ModelLoaded},
	}}
	if a := admit(h, Model{ID: "m", Type: LLM}, 0, 0); a.Decision != Load || !slices.Equal(a.Evict, []string{"m"}) {
		t.Errorf("got %+v, want m stopped alone", a)
	}
}

func TestIdleDefaults(t *testing.T) {
	host := Host{Name: "h", State: Ready, UpSince: epoch.Add(-time.Hour)}
	loaded := host
	loaded.Residents = []Resident{{ID: "m", Type: LLM, State: ModelLoaded, Used: epoch.Add(-time.Minute)}}
	unknown := host
	unknown.Residents = []Resident{{ID: "m", Type: LLM, State: ModelLoaded}}
	tests := []struct {
		name          string
		host          Host
		d             Defaults
		unload, sleep int
	}{
		{"never", loaded, Defaults{-1, -1, -1}, 0, 0},
		{"at once", loaded, Defaults{}, 1, 0},
		{"not yet", loaded, Defaults{Idle: 61 * time.Second}, 0, 0},
		{"unknown last use", unknown, Defaults{}, 0, 0},
		{"host at once", host, Defaults{}, 0, 1},
		{"host never", host, Defaults{HostIdle: -1}, 0, 0},
		{"host up too short", host, Defaults{HostMinUp: 2 * time.Hour}, 0, 0},
		{"host without activity since it is up", host, Defaults{HostIdle: time.Hour}, 0, 1},
		{"unknown start", Host{Name: "h", State: Ready, Active: epoch.Add(-time.Hour)}, Defaults{}, 0, 0},
	}
	for _, tt := range tests {
		p := Idle(Snapshot{Hosts: []Host{tt.host}}, epoch, tt.d)
		if len(p.Unload) != tt.unload || len(p.Sleep) != tt.sleep {
			t.Errorf("%s: %+v", tt.name, p)
		}
	}
}
