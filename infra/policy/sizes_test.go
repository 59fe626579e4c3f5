package policy_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"reveille/infra/policy"
)

// TestSizes plays random requests for twenty models of 4 to 60 GiB on hosts of 24, 48 and 80 GiB. A model that fits on
// some host is loaded, on a host whose budget holds it, and no budget is exceeded. It logs the evictions beside those of
// a reference that puts each model where the least memory stays free, and evicts the least recently used ones.
func TestSizes(t *testing.T) {
	const gib, seeds, requests = int64(1) << 30, 20, 500
	budgets := map[string]int64{"a": 24 * gib, "b": 48 * gib, "c": 80 * gib}
	evictions, reference := 0, 0
	for seed := range uint64(seeds) {
		rng := rand.New(rand.NewPCG(seed, 7))
		var models []policy.Model
		for i := range 20 {
			models = append(models, policy.Model{
				ID: fmt.Sprintf("m%d", i), Type: policy.LLM, Devices: policy.GPU, Memory: (4 + int64(i)*56/19) * gib, Max: 1,
			})
		}
		now := time.Unix(1_000_000, 0)
		var hosts []policy.Host
		for name, n := range budgets {
			hosts = append(hosts, policy.Host{
				Name: name, State: policy.Ready, Devices: policy.GPU, Limits: policy.Uniform(-1), Budget: map[policy.Devices]int64{policy.GPU: n},
			})
		}
		slices.SortFunc(hosts, func(a, b policy.Host) int { return int(budgets[a.Name] - budgets[b.Name]) })
		best := bestFit{free: []int64{24 * gib, 48 * gib, 80 * gib}, held: make([][]policy.Model, 3)}
		for range requests {
			now = now.Add(time.Second)
			want := models[int(float64(len(models))*rng.Float64()*rng.Float64())] // small ones more often
			reference += best.use(want)
			if used(hosts, want.ID, now) {
				continue
			}
			placed := policy.Place(policy.Snapshot{Now: now, Hosts: hosts}, want, nil)
			if placed.Host == "" {
				t.Fatalf("seed %d: %s of %d GiB is refused: %v", seed, want.ID, want.Memory/gib, placed.Refusal)
			}
			if want.Memory > budgets[placed.Host] {
				t.Fatalf("seed %d: %s of %d GiB is placed on %s", seed, want.ID, want.Memory/gib, placed.Host)
			}
			h := &hosts[slices.IndexFunc(hosts, func(h policy.Host) bool { return h.Name == placed.Host })]
			h.Queue = []policy.Ticket{{ID: "1", Model: want}}
			step := policy.Next(*h, now, time.Second)
			h.Queue = nil
			if step.Ticket != "1" || step.Admission.Decision != policy.Load {
				t.Fatalf("seed %d: %s on %s: %+v", seed, want.ID, h.Name, step)
			}
			evictions += len(step.Admission.Evict)
			h.Residents = slices.DeleteFunc(h.Residents, func(r policy.Resident) bool { return slices.Contains(step.Admission.Evict, r.ID) })
			h.Residents = append(h.Residents, policy.Resident{
				ID: want.ID, Type: want.Type, Devices: want.Devices, State: policy.ModelLoaded, Used: now, Memory: want.Memory,
			})
			sum := int64(0)
			for _, r := range h.Residents {
				sum += r.Memory
			}
			if sum > budgets[h.Name] {
				t.Fatalf("seed %d: %d bytes on %s", seed, sum, h.Name)
			}
		}
	}
	t.Logf("%d requests: %d evictions, best fit %d", seeds*requests, evictions, reference)
}

// used records a use of a loaded model, and reports whether it is loaded.
func used(hosts []policy.Host, model string, now time.Time) bool {
	for _, h := range hosts {
		for i := range h.Residents {
			if h.Residents[i].ID == model {
				h.Residents[i].Used = now
				return true
			}
		}
	}
	return false
}

// bestFit is the reference. held is in the order of the last use.
type bestFit struct {
	free []int64
	held [][]policy.Model
}

// use loads a model if it is not loaded, and returns how many it evicts.
func (b *bestFit) use(want policy.Model) (evicted int) {
	for i, list := range b.held {
		if at := slices.IndexFunc(list, func(m policy.Model) bool { return m.ID == want.ID }); at >= 0 {
			b.held[i] = append(slices.Delete(list, at, at+1), want)
			return 0
		}
	}
	on, least, left := -1, 0, int64(0)
	for i := range b.free {
		free, n := b.free[i], 0
		for ; free < want.Memory && n < len(b.held[i]); n++ {
			free += b.held[i][n].Memory
		}
		if free >= want.Memory && (on < 0 || n < least || n == least && free-want.Memory < left) {
			on, least, left = i, n, free-want.Memory
		}
	}
	b.held[on], b.free[on] = append(slices.Clone(b.held[on][least:]), want), left
	return least
}
