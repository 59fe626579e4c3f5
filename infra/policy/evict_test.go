package policy

import (
	"maps"
	"slices"
	"testing"
	"time"
)

// Under Cost the model with the cheapest reload is evicted, on a host and between hosts. Under LRU all values are the
// same.
func TestEvictionByCost(t *testing.T) {
	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	host := func(name string, e Eviction, price float64, reload map[string]time.Duration) Host {
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
	for e, victim := range map[Eviction]string{LRU: "big", Cost: "small"} {
		h := host("a", e, 1, map[string]time.Duration{"big": time.Minute, "small": time.Second})
		if got := admit(h, want, 0, time.Second).Evict; !slices.Equal(got, []string{victim}) {
			t.Errorf("%s evicts %v, want %s", e, got, victim)
		}
	}
	for e, name := range map[Eviction]string{LRU: "a", Cost: "b"} {
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
	for text, want := range map[string]Eviction{"": LRU, "lru": LRU, "cost": Cost} {
		if e, err := ParseEviction(text); e != want || err != nil {
			t.Errorf("%q: %v %v", text, e, err)
		}
	}
	if _, err := ParseEviction("random"); err == nil {
		t.Error("random is taken")
	}
}
