package app

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"reveille/infra/catalog"
	"reveille/infra/state"
	"reveille/testenv"
	"reveille/testenv/imds"
	"reveille/testenv/kit"
)

func TestSlotOfPod(t *testing.T) {
	for pod, want := range map[string]string{"gpu-0": "gpu-1", "models-gpu-11": "gpu-12", "gpu": "", "gpu-01": "", "gpu-x": ""} {
		if got, err := slotOfPod("gpu", pod); got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v; want %q", pod, got, err, want)
		}
	}
}

// Each machine of a group is a host of its own: it waits for the models file, and registers as its slot, also after its
// runner was started again. A machine of another group waits.
func TestMachinesOfAGroup(t *testing.T) {
	addr := testenv.Redis(t)
	s := settings(t, addr)
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	if err := rdb.Set(t.Context(), "rv:{main}:epoch", "1", 0).Err(); err != nil { // a pool that has been there for long
		t.Fatal(err)
	}
	store, err := state.Open(state.Options{URL: s.RedisURL, Secret: []byte(s.RunnerSecret), Timeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	machines := func() map[string]string {
		out := map[string]string{}
		snap, err := store.Snapshot(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		for name, h := range snap.Hosts {
			if h.State == "ready" {
				out[name] = h.Machine()
			}
		}
		return out
	}
	c, _, err := catalog.Parse("models.yaml", []byte("hosts:\n  gpu: {driver: asg, group: g, max: 2, devices: [cpu]}\n"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := c.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	published := time.AfterFunc(time.Second, func() {
		_, _ = store.PutCatalog(context.Background(), c.Version, text, nil)
	})
	defer published.Stop()
	start := func(machine string) func() error {
		own := s
		own.Host, own.StateDir, own.InstanceSettings = "gpu", t.TempDir(), InstanceSettings{Instance: "aws", Slot: slotInstance}
		t.Setenv(imds.Endpoint, imds.Start(t, map[string]string{imds.InstanceID: machine}).URL)
		_, end := running(t, own)
		kit.Eventually(t, machine+" registers", func() bool {
			for _, m := range machines() {
				if m == machine {
					return true
				}
			}
			return false
		})
		return end
	}
	report := func(machine, failed string) error {
		t.Setenv(imds.Endpoint, imds.Start(t, map[string]string{imds.InstanceID: machine}).URL)
		return Report(t.Context(), ReportSettings{Redis: s.Redis, Host: "gpu", Slot: slotInstance, RunnerSecret: s.RunnerSecret, Failed: failed})
	}
	if err := report("i-1", ""); err != nil { // before the runner, which then has the same host
		t.Error(err)
	}
	if err := report("i-2", "no engines"); err != nil {
		t.Error(err)
	}
	snap, err := store.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]state.Boot{"gpu-1": {State: state.Booting}, "gpu-2": {State: state.BootFailed, Reason: "no engines"}} {
		if snap.Hosts[name] == nil {
			t.Fatalf("no machine has claimed %s", name)
		}
		if got := snap.Hosts[name].Boot(); got.State != want.State || got.Reason != want.Reason {
			t.Errorf("boot of %s: %+v, want %+v", name, got, want)
		}
	}
	endFirst, endSecond := start("i-1"), start("i-2")
	if err := endFirst(); err != nil {
		t.Error(err)
	}
	defer start("i-1")()
	defer endSecond()
	if got := machines(); len(got) != 2 || got["gpu-1"] != "i-1" || got["gpu-2"] != "i-2" {
		t.Errorf("hosts and their machines: %v", got)
	}
}
