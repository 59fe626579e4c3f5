package app

import (
	"log/slog"
	"testing"

	"reveille/infra/catalog"
	"reveille/infra/placement"
	"reveille/infra/state"
	"reveille/testenv"
)

// A sleeping host that has left the models file gets no loads, although Redis still has its record: nothing says how to
// wake it.
func TestHostLeavesModelsFile(t *testing.T) {
	store, err := state.Open(state.Options{URL: "redis://" + testenv.MiniRedis(t).Addr()})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	for _, hosts := range []string{`a: {driver: local, devices: cpu}, b: {driver: wol, devices: cpu, mac: "00:11:22:33:44:55"}`, "a: {driver: local, devices: cpu}"} {
		c, _, err := catalog.Parse("models.yaml", []byte("hosts: {"+hosts+"}\nmodels:\n  m: {type: llm, recipe: standin, device: cpu}\n"))
		if err != nil {
			t.Fatal(err)
		}
		if !newLiveCatalog(c, store, nil, slog.New(slog.DiscardHandler)).publish(t.Context(), c) {
			t.Fatal("not published")
		}
		if token, err := store.ForceWake(t.Context(), "gw", "b"); err != nil || store.FailWake(t.Context(), "b", token, "no_capacity", "off") != nil {
			t.Fatal(token, err)
		}
		s, err := store.Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if pool := (placement.View{Catalog: c}).Pool(s); len(pool.Hosts) != len(c.Hosts) {
			t.Errorf("with the hosts %s: %+v", hosts, pool.Hosts)
		}
	}
}
