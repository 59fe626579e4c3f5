package system

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"reveille/testenv"
)

var swaps = flag.Int("swaps", 3, "how often TestConversationsInAnyOrder swaps models")

// Ten conversations take turns, in any order, in a model of four slots, while another model takes its place again and
// again. No response differs from that of an engine that stays, and what was to be reused was: in one life of the
// engine every conversation that had a turn in it, and after a swap the four that had the last turns before.
func TestConversationsInAnyOrder(t *testing.T) {
	testenv.Engines(t)
	const models = `models:
  talker: {type: llm, recipe: llamacpp, checkpoint: .cache/models/tiny-gemma.gguf, device: cpu, options: {ctx_size: 16384, llamacpp_args: "-np 4 --swa-full"}}
  other: {type: llm, recipe: llamacpp, checkpoint: .cache/models/tiny-gemma.gguf, device: cpu, options: {ctx_size: 1024, llamacpp_args: "-np 1"}}
`
	for _, seed := range []uint64{
		rand.Uint64(),
		2424472033491777379, // the last token of a prompt merges with the response's first
	} {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { turns(t, models, seed) })
	}
}

// turns plays the turns that a seed determines, with swaps and without.
func turns(t *testing.T, models string, seed uint64) {
	type play struct {
		text   string
		cached int
		known  int // tokens of the conversation's turn before, 0 for none
		alive  bool
		recent int // how many conversations had a turn after its last one
	}
	const conversations, slots = 10, 4
	run := func(swap bool) (out []play) {
		s := testenv.Start(t, testenv.Spec{Models: models})
		defer s.Stop()
		dice := rand.New(rand.NewPCG(seed, 0))
		var talks [conversations][]message
		var known [conversations]int
		var order []int // by last turn, the last first
		for round := range *swaps + 1 {
			alive := map[int]bool{}
			for range 2 + dice.IntN(4) {
				i := dice.IntN(conversations)
				if len(talks[i]) == 0 {
					var text strings.Builder
					for j := range 60 {
						fmt.Fprintf(&text, "%s %d: the water rose by %d feet. ", []string{"Ada", "Bob", "Cid", "Dan", "Eve", "Fay", "Gil", "Hal", "Ida", "Jan"}[i], 100*i+j, dice.IntN(90))
					}
					talks[i] = []message{{"user", text.String() + "What happened?"}}
				} else {
					talks[i] = append(talks[i], message{"user", fmt.Sprintf("And %d days later?", dice.IntN(100))})
				}
				a := say(t, s, "talker", talks[i]...)
				out = append(out, play{a.Choices[0].Message.Content, a.Timings.Cached, known[i], alive[i], slices.Index(order, i)})
				talks[i] = append(talks[i], a.Choices[0].Message)
				known[i], alive[i] = a.Timings.Cached+a.Timings.Computed, true
				order = append([]int{i}, slices.DeleteFunc(order, func(j int) bool { return j == i })...)
			}
			if swap && round < *swaps {
				say(t, s, "other", message{"user", "Hello."})
			}
		}
		return out
	}
	want := run(false)
	reused := 0
	for i, got := range run(true) {
		if got.text != want[i].text {
			t.Fatalf("turn %d: %q, without swaps %q", i, got.text, want[i].text)
		}
		if got.known > 0 && (got.alive || got.recent < slots) {
			reused++
			if got.cached < got.known*95/100 {
				t.Errorf("turn %d: %d tokens came from the cache, want those of the turn before, %d (in this life %v, %d others later)", i, got.cached, got.known, got.alive, got.recent)
			}
		}
	}
	t.Logf("%d turns, of which %d had to reuse the turn before", len(want), reused)
}
