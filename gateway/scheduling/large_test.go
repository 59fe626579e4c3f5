package scheduling

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/policy"
	"reveille/infra/state"
)

// TestLargePoolSpreads: in a large pool, models choose different hosts among the first with a free slot. Each model
// always chooses the same host, and another once that host has changed too fast. The choice is one that the whole pool
// allows.
func TestLargePoolSpreads(t *testing.T) {
	text := "models:\n"
	for i := range 40 {
		text += fmt.Sprintf("  m%d: {type: llm, recipe: standin, device: cpu, memory: 10}\n", i)
	}
	c, _, err := catalog.Parse("models.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	const hosts, full = 400, 70
	s := &state.Snapshot{NowMS: t0.UnixMilli(), Taken: t0, Hosts: map[string]*state.HostRecord{}}
	for i := range hosts {
		h := &state.HostRecord{Name: fmt.Sprintf("h%03d", i), State: policy.Ready, Devices: "cpu", Limits: "1", Addr: "a:1", Models: map[string]*state.ModelRecord{}}
		if i < full { // busy
			h.Models["other"] = &state.ModelRecord{ID: "other", Host: h.Name, State: policy.ModelLoaded, Type: "llm", Device: "cpu", InFlight: 1}
		}
		s.Hosts[h.Name] = h
	}
	chosen := map[string]bool{}
	for i := range 40 {
		n := &acquisition{model: fmt.Sprint("m", i)}
		host, v := n.chooseHost(s, c, nil, time.Time{}, "")
		if v != nil || host < "h070" || host > "h085" {
			t.Fatalf("%s goes to %q, %+v", n.model, host, v)
		}
		if again, _ := n.chooseHost(s, c, nil, time.Time{}, ""); again != host {
			t.Errorf("%s goes to %s and then to %s", n.model, host, again)
		}
		chosen[host] = true
		n.changedHosts = []string{host}
		if other, _ := n.chooseHost(s, c, nil, time.Time{}, ""); other == host || other < "h070" || other > "h086" {
			t.Errorf("%s goes to %s although %s changes too fast", n.model, other, host)
		}
		if other, _ := n.chooseHost(s, c, []string{host}, time.Time{}, ""); other == host {
			t.Errorf("%s goes to %s, which is avoided", n.model, other)
		}
	}
	stays := &acquisition{model: "m0"}
	if host, _ := stays.chooseHost(s, c, nil, time.Time{}, "h399"); host != "h399" {
		t.Errorf("a host that was read and has a free slot is left for %s", host)
	}
	if host, _ := stays.chooseHost(s, c, nil, time.Time{}, "h010"); host < "h070" {
		t.Errorf("%s has no free slot", host)
	}
	knows := &acquisition{model: "m0", saved: map[string]int64{"h010": 9000, "h300": 10, "h301": 20}}
	if host, _ := knows.chooseHost(s, c, nil, time.Time{}, ""); host != "h301" {
		t.Errorf("it goes to %s, not where most of its conversations are saved and a slot is free", host)
	}
	if len(chosen) < 10 {
		t.Errorf("40 models went to %d hosts", len(chosen))
	}
	for _, h := range s.Hosts {
		h.Models["other"] = &state.ModelRecord{ID: "other", Host: h.Name, State: policy.ModelLoaded, Type: "llm", Device: "cpu", UsedMS: t0.UnixMilli()}
	}
	s.Hosts["h333"].Models["other"].UsedMS--
	n := &acquisition{model: "m1"}
	if host, v := n.chooseHost(s, c, nil, time.Time{}, ""); v != nil || host != "h333" {
		t.Errorf("without a free slot it goes to %q, %+v, not where the victim was used longest ago", host, v)
	}
	if names := s.Names(); len(names) != hosts || !slices.IsSorted(names) {
		t.Errorf("%d names", len(names))
	}
}
