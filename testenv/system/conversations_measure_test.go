package system

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"reveille/testenv"
)

var measure = flag.Int("measure", 0, "how many pairs of swaps TestConversationsMeasured times; 0 skips it")

// What a saved conversation is worth, and what a swap costs: the third turn of chats of several lengths, after a swap, with
// and without saved conversations, with the same text; then swaps with and without, in turns, which reuse nothing.
// On a quiet machine:
//
//	go test ./testenv/system -run TestConversationsMeasured -measure 16 -count=1 -v
func TestConversationsMeasured(t *testing.T) {
	if *measure == 0 {
		t.Skip("-measure is 0")
	}
	testenv.Engines(t)
	const models = `models:
  keeps: {type: llm, recipe: llamacpp, checkpoint: .cache/models/gemma-3-270m-q4_k_m.gguf, device: cpu, options: {ctx_size: 10240, llamacpp_args: "-np 1 --swa-full"}}
  forgets: {type: llm, recipe: llamacpp, checkpoint: .cache/models/gemma-3-270m-q4_k_m.gguf, device: cpu, conversations: none, options: {ctx_size: 10240, llamacpp_args: "-np 1 --swa-full"}}
  other: {type: llm, recipe: llamacpp, checkpoint: .cache/models/tiny-gemma.gguf, device: cpu, options: {ctx_size: 1024, llamacpp_args: "-np 1"}}
`
	s := testenv.Start(t, testenv.Spec{Models: models})
	timed := func(model string, talk ...message) (turn, time.Duration) {
		began := time.Now()
		a := say(t, s, model, talk...)
		return a, time.Since(began)
	}
	hello := message{"user", "Hello."}
	for _, tokens := range []int{500, 2000, 4000, 8000} {
		var text strings.Builder
		for i := range tokens / 17 {
			fmt.Fprintf(&text, "In %d, %d the river rose by %d feet. ", tokens, 1700+i, i*7%13)
		}
		talk := []message{{"user", text.String() + "What happened?"}}
		for _, next := range []string{"And then?", "And at last?"} {
			talk = append(talk, say(t, s, "keeps", talk...).Choices[0].Message, message{"user", next})
		}
		say(t, s, "other", hello)
		with, took := timed("keeps", talk...)
		say(t, s, "other", hello)
		without, cold := timed("forgets", talk...)
		all := with.Timings.Cached + with.Timings.Computed
		t.Logf("%5d tokens: %.1f %% cached, %d computed; prompt %.0f ms against %.0f ms without (%.3f); with the load %v against %v",
			all, 100*float64(with.Timings.Cached)/float64(all), with.Timings.Computed, with.Timings.PromptMS, without.Timings.PromptMS,
			with.Timings.PromptMS/without.Timings.PromptMS, took.Round(time.Millisecond), cold.Round(time.Millisecond))
		if with.Choices[0].Message != without.Choices[0].Message {
			t.Errorf("%d tokens: the answer is %q, computed anew %q", all, with.Choices[0].Message, without.Choices[0].Message)
		}
		if tokens >= 2000 && with.Timings.Cached < all*95/100 {
			t.Errorf("%d of %d tokens came from the cache", with.Timings.Cached, all)
		}
	}
	took := map[string][]time.Duration{}
	for i := range *measure {
		for _, model := range []string{"keeps", "forgets"} {
			talk := message{"user", strings.Repeat(fmt.Sprintf("Pair %d of swaps. ", i), 30)} // a new chat, which is saved
			_, load := timed(model, talk)
			_, swap := timed("other", hello)
			took[model] = append(took[model], load+swap)
		}
	}
	median := map[string]time.Duration{}
	for model, list := range took {
		slices.Sort(list)
		median[model] = list[len(list)/2]
		t.Logf("a swap to %s and back: median %v, from %v to %v", model, median[model].Round(time.Millisecond), list[0].Round(time.Millisecond), list[len(list)-1].Round(time.Millisecond))
	}
	t.Logf("saving and restoring cost %.1f %% of a swap", 100*(float64(median["keeps"])/float64(median["forgets"])-1))
}
