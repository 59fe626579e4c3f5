package manage

import (
	"testing"

	"reveille/infra/catalog"
	"reveille/infra/policy"
	"reveille/infra/state"
)

// A host of the driver wol that serves is unproven until Wake-on-LAN has woken it.
func TestUnprovenHosts(t *testing.T) {
	cat, _, err := catalog.Parse("models.yaml", []byte(`
hosts:
  lan: {driver: wol, mac: "00:11:22:33:44:55", devices: [cpu]}
  own: {driver: exec, devices: [cpu], commands: {wake: [x], sleep: [x]}}
`))
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		host     string
		state    policy.HostState
		proven   string
		unproven bool
	}{
		"serves":           {"lan", policy.Ready, "", true},
		"was woken":        {"lan", policy.Ready, "1", false},
		"is asleep":        {"lan", policy.Asleep, "", false},
		"of another kind":  {"own", policy.Ready, "", false},
		"not in the file":  {"old", policy.Ready, "", false},
		"is being drained": {"lan", policy.Draining, "", false},
	} {
		h := &state.HostRecord{Name: tc.host, State: tc.state, Fields: map[string]string{"proven": tc.proven}}
		for _, r := range runnersOf(&state.Snapshot{Hosts: map[string]*state.HostRecord{tc.host: h}}, cat) {
			if r.ID == tc.host && r.Unproven != tc.unproven {
				t.Errorf("a host that %s: unproven %v", name, r.Unproven)
			}
		}
	}
}
