package policy

import (
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// equalCards returns n GPUs of the given size.
func equalCards(n int, bytes int64) GPUMemory {
	out := GPUMemory{}
	for i := range n {
		out[i] = bytes
	}
	return out
}

func TestLoadsAreSplitOverGPUs(t *testing.T) {
	any8, two := GPUConstraint{Max: 8}, GPUConstraint{Min: 2, Max: 2}
	on := func(id string, age int, cards GPUMemory) Resident {
		return Resident{ID: id, Type: LLM, Devices: GPU, State: ModelLoaded, Used: epoch.Add(-time.Duration(age) * time.Minute), Memory: cards.sum(), GPUMemory: cards}
	}
	busy := func(r Resident) Resident { r.InFlight = 1; return r }
	pinned := func(r Resident) Resident { r.Pinned = true; return r }
	for name, test := range map[string]struct {
		cards     GPUMemory
		residents []Resident
		memory    int64
		gpus      GPUConstraint
		want      GPUMemory
		victims   string
		refusal   string // part of the sentence
	}{
		"one card":                       {equalCards(1, 24), nil, 20, any8, GPUMemory{0: 20}, "", ""},
		"too large for one card":         {equalCards(1, 24), nil, 25, any8, nil, "", "more than the 24 a host has on gpu:0"},
		"the first of two":               {equalCards(2, 24), nil, 20, any8, GPUMemory{0: 20}, "", ""},
		"best fit":                       {GPUMemory{0: 48, 1: 24}, nil, 20, any8, GPUMemory{1: 20}, "", ""},
		"beside another":                 {equalCards(2, 24), []Resident{on("a", 1, GPUMemory{1: 4})}, 20, any8, GPUMemory{1: 20}, "", ""},
		"on the other":                   {equalCards(2, 24), []Resident{on("a", 1, GPUMemory{0: 20})}, 20, any8, GPUMemory{1: 20}, "", ""},
		"more cards rather than evict":   {equalCards(2, 24), []Resident{on("a", 1, GPUMemory{0: 14}), on("b", 2, GPUMemory{1: 14})}, 20, any8, GPUMemory{0: 10, 1: 10}, "", ""},
		"the longest unused goes":        {equalCards(2, 24), []Resident{on("a", 1, GPUMemory{0: 20}), on("b", 2, GPUMemory{1: 20})}, 20, any8, GPUMemory{1: 20}, "b", ""},
		"not the busy one":               {equalCards(2, 24), []Resident{on("a", 1, GPUMemory{0: 20}), busy(on("b", 2, GPUMemory{1: 20}))}, 20, any8, GPUMemory{0: 20}, "a", ""},
		"not the pinned one":             {equalCards(2, 24), []Resident{on("a", 1, GPUMemory{0: 20}), pinned(on("b", 2, GPUMemory{1: 20}))}, 20, any8, GPUMemory{0: 20}, "a", ""},
		"its total is no card":           {equalCards(2, 24), []Resident{pinned(on("a", 1, GPUMemory{0: 14})), pinned(on("b", 2, GPUMemory{1: 14}))}, 20, GPUConstraint{Max: 1}, nil, "", "pinned models (b) use 14 of 24 on gpu:1"},
		"both":                           {equalCards(2, 24), nil, 40, any8, GPUMemory{0: 20, 1: 20}, "", ""},
		"both by their size":             {GPUMemory{0: 24, 1: 8}, nil, 28, any8, GPUMemory{0: 21, 1: 7}, "", ""},
		"both, and no more":              {equalCards(2, 24), nil, 49, any8, nil, "", "more than the 48 a host has on gpu:0, gpu:1"},
		"one at most":                    {equalCards(2, 24), nil, 40, GPUConstraint{Max: 1}, nil, "", "more than the 24 a host has on gpu:0"},
		"two at least":                   {equalCards(8, 24), nil, 10, two, GPUMemory{0: 5, 1: 5}, "", ""},
		"two of one":                     {equalCards(1, 24), nil, 10, two, nil, "", "model m needs 2 GPUs"},
		"that card alone":                {equalCards(2, 24), []Resident{on("a", 1, GPUMemory{1: 20})}, 20, GPUConstraint{Max: 1, Only: 2}, GPUMemory{1: 20}, "a", ""},
		"two cards, and it has neither":  {equalCards(2, 24), nil, 20, GPUConstraint{Max: 1, Only: 12}, nil, "", "model m needs 1 of the devices gpu:2, gpu:3"},
		"a card that the host lacks":     {equalCards(2, 24), nil, 20, GPUConstraint{Max: 1, Only: 4}, nil, "", "model m needs device gpu:2"},
		"an unknown need":                {GPUMemory{0: 24, 1: 48}, nil, 0, GPUConstraint{Max: 1}, GPUMemory{1: 0}, "", ""},
		"four of eight, evenly":          {equalCards(8, 24), nil, 60, GPUConstraint{Max: 8, Even: true}, GPUMemory{0: 15, 1: 15, 2: 15, 3: 15}, "", ""},
		"evenly by the smallest":         {GPUMemory{0: 24, 1: 8}, nil, 28, GPUConstraint{Max: 2, Even: true}, nil, "", "more than the 24 a host has on gpu:0"},
		"the free ones of eight":         {equalCards(8, 24), []Resident{on("a", 1, GPUMemory{0: 20, 1: 20, 4: 20, 5: 20})}, 40, any8, GPUMemory{2: 20, 3: 20}, "", ""},
		"the oldest pair of eight":       {equalCards(8, 24), []Resident{on("a", 1, GPUMemory{0: 24, 1: 24}), on("b", 3, GPUMemory{2: 24, 3: 24}), on("c", 2, GPUMemory{4: 24, 5: 24}), on("d", 1, GPUMemory{6: 24, 7: 24})}, 40, any8, GPUMemory{2: 20, 3: 20}, "b", ""},
		"beside a model on all":          {equalCards(2, 24), []Resident{{ID: "a", Type: LLM, Devices: GPU, State: ModelLoaded, Memory: 20, Used: epoch}}, 14, any8, GPUMemory{0: 14}, "", ""},
		"an engine on all":               {equalCards(2, 24), []Resident{on("a", 1, GPUMemory{0: 24})}, 20, GPUConstraint{}, nil, "", ""},
		"an engine on all, by the total": {equalCards(2, 24), []Resident{on("a", 1, GPUMemory{0: 24})}, 30, GPUConstraint{}, nil, "a", ""},
	} {
		t.Run(name, func(t *testing.T) {
			h := Host{Name: "h", Devices: CPU | GPU, Limits: Uniform(-1), GPUMemory: test.cards, Budget: map[Devices]int64{GPU: test.cards.sum()}, Residents: test.residents}
			m := Model{ID: "m", Type: LLM, Devices: GPU, Memory: test.memory, GPUs: test.gpus}
			victims, cards, refusal := findVictims(&h, &m)
			switch {
			case test.refusal != "":
				if refusal == nil || !strings.Contains(refusal.Error(), test.refusal) {
					t.Errorf("refusal %v, want %q", refusal, test.refusal)
				}
			case refusal != nil:
				t.Error(refusal)
			case !maps.Equal(cards, test.want) || (cards == nil) != (test.want == nil) || strings.Join(names(victims), " ") != test.victims:
				t.Errorf("on %v for %v, want %v for %q", cards, names(victims), test.want, test.victims)
			}
		})
	}
}

// Whatever a host holds, no GPU is given more than it has, no load is refused for which some set of GPUs has room with
// the pinned models, and nothing is evicted if some set has room already.
func TestGPUChoiceMatchesEverySet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := Host{Name: "h", Devices: GPU, Limits: Uniform(-1), GPUMemory: GPUMemory{}}
		n := rapid.IntRange(1, 5).Draw(t, "cards")
		for i := range n {
			h.GPUMemory[i] = rapid.Int64Range(1, 30).Draw(t, "bytes")
		}
		for i := range rapid.IntRange(0, 5).Draw(t, "residents") {
			r := genResident(fmt.Sprintf("r%d", i)).Draw(t, "resident")
			if r.Devices, r.GPUMemory = GPU, nil; rapid.Bool().Draw(t, "on some") {
				r.GPUMemory = GPUMemory{rapid.IntRange(0, n-1).Draw(t, "card"): r.Memory}
			}
			h.Residents = append(h.Residents, r)
		}
		g := GPUConstraint{Min: rapid.IntRange(0, 2).Draw(t, "min"), Even: rapid.Bool().Draw(t, "even"), Only: uint16(rapid.IntRange(0, 1<<n-1).Draw(t, "only"))}
		g.Max = max(g.Min, rapid.IntRange(1, n).Draw(t, "max"))
		want := Model{ID: "want", Type: LLM, Devices: GPU, Memory: rapid.Int64Range(0, 60).Draw(t, "need"), GPUs: g}

		fitsBeside := func(stays func(*Resident) bool) bool {
			free := freeGPUMemory(&h, stays)
			for mask := 1; mask < 1<<n; mask++ {
				var set []int
				for card := range n {
					if mask>>card&1 == 1 {
						set = append(set, card)
					}
				}
				all := g.Only == 0 || mask&^int(g.Only) == 0
				if all && slices.Contains(slices.Collect(g.Counts(h.GPUMemory)), bits.OnesCount(uint(mask))) && g.capacity(set, free) >= want.Memory {
					return true
				}
			}
			return false
		}
		victims, cards, refusal := findVictims(&h, &want)
		if can := fitsBeside(func(r *Resident) bool { return fixed(r, &want) }); can != (refusal == nil) {
			t.Fatalf("fits %v, refusal %v", can, refusal)
		}
		if refusal != nil {
			return
		}
		if len(victims) > 0 && fitsBeside(func(*Resident) bool { return true }) {
			t.Fatalf("%v go without need", names(victims))
		}
		free := freeGPUMemory(&h, func(r *Resident) bool { return !contains(victims, r.ID) })
		for card, bytes := range cards {
			if bytes > max(free[card], 0) {
				t.Fatalf("gpu:%d gets %d of %d", card, bytes, free[card])
			}
		}
		if sum := cards.sum(); sum < want.Memory-int64(len(cards)) || len(cards) < max(g.Min, 1) || len(cards) > g.Max {
			t.Fatalf("%v for %d", cards, want.Memory)
		}
	})
}
