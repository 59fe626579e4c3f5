package batch

import (
	"bytes"
	"math"
)

const (
	// leastTokens is the size below which a batch is not halved any more.
	leastTokens = 64
	// mostTries bounds the calls for one sequence. From the default n_batch of 2048 the sixth has leastTokens.
	mostTries = 6
)

// saysMemory reports whether an answer of a status is searched for those words. Text Embeddings Inference says 424 of all
// that its backend fails with.
func saysMemory(status int) bool { return status >= 500 || status == 424 }

// outOfMemory reports whether an answer says that the engine had too little memory for a call of items at a try. llama-server
// uses one message for a graph that it could not allocate and for every other failed computation. It is treated as a lack of
// memory as long as a smaller call can be tried, and as any other failure after that.
func (b *Batcher) outOfMemory(status int, answer []byte, items []Item, try int) bool {
	if !saysMemory(status) {
		return false
	}
	return b.cfg.OutOfMemory(string(answer)) || divisible(items, try) && bytes.Contains(answer, []byte(`"Compute error."`))
}

// divisible reports whether items, for which the engine's memory was too small at a try, can be sent in smaller calls.
func divisible(items []Item, try int) bool {
	return try < mostTries && len(items) > 1 && sum(items) > leastTokens
}

// smaller is the most tokens of the calls that replace one of tokens tokens which failed at a try: half of them, or less
// where halves would not reach leastTokens by the last try.
func smaller(tokens, try int) int {
	all := float64(tokens)
	step := math.Pow(all/leastTokens, 1/float64(mostTries-try))
	return max(leastTokens, int(math.Round(all/max(2, step))))
}

// run is how many items from the first on have at most tokens tokens together; a longer first one is a run of its own.
func run(items []Item, tokens int) int {
	total := 0
	for i, it := range items {
		if total += it.Tokens; i > 0 && total > tokens {
			return i
		}
	}
	return len(items)
}

func sum(items []Item) (tokens int) {
	for _, it := range items {
		tokens += it.Tokens
	}
	return tokens
}

// excerpt is the beginning of an engine's error text.
func excerpt(text []byte) string {
	const most = 200
	if len(text) > most {
		return string(text[:most]) + "…"
	}
	return string(text)
}

// shortage is what a run found out about the engine's memory.
type shortage struct {
	limit int // largest call to try from now on; 0: none was too large
	// unclear counts parts that say nothing of other batches: a single sequence was too large, or there was no embedding for
	// another reason. Clients could otherwise keep everybody's batches small with sequences that never fit.
	unclear int
	// The smallest call that was too large without such a part, 0 for none, and the size that it was cut to.
	failed, learned int
}

// cut notes that from now on calls have at most tokens tokens.
func (s *shortage) cut(tokens int) {
	if s.limit == 0 || tokens < s.limit {
		s.limit = tokens
	}
}

// learn notes that a call of tokens tokens was too large, and calls of at most cut tokens took its place.
func (s *shortage) learn(tokens, cut int) {
	if s.failed == 0 || tokens < s.failed {
		s.failed, s.learned = tokens, cut
	}
}

// exhausted notes that items were too large and could not be divided further.
func (s *shortage) exhausted(items []Item) {
	if len(items) == 1 {
		s.unclear++
		return
	}
	s.learn(sum(items), leastTokens)
}
