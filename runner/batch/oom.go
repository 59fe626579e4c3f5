package batch

import (
	"bytes"
	"math"
)

const (
	// minTokens is the size below which a batch is not halved any more.
	minTokens = 64
	// maxTries bounds the calls for one sequence. From the default n_batch of 2048 the sixth has minTokens.
	maxTries = 6
)

// mayBeMemory reports whether an answer with this status may say that memory ran out. Text Embeddings Inference answers 424 to
// every failure of its backend.
func mayBeMemory(status int) bool { return status >= 500 || status == 424 }

// outOfMemory reports whether an answer means that the engine ran out of memory for a call of items at a try. llama-server uses
// one message for a graph that it could not allocate and for every other failed computation. It counts as out of memory while
// a smaller call can be tried, and as any other failure after that.
func (b *Batcher) outOfMemory(status int, answer []byte, items []Item, try int) bool {
	if !mayBeMemory(status) {
		return false
	}
	return b.cfg.OutOfMemory(string(answer)) || divisible(items, try) && bytes.Contains(answer, []byte(`"Compute error."`))
}

// divisible reports whether items that ran out of memory at a try can be sent in smaller calls.
func divisible(items []Item, try int) bool {
	return try < maxTries && len(items) > 1 && sum(items) > minTokens
}

// smaller returns the most tokens per call after a call of tokens tokens failed at a try: half, or less if halving would
// not reach minTokens by the last try.
func smaller(tokens, try int) int {
	all := float64(tokens)
	step := math.Pow(all/minTokens, 1/float64(maxTries-try))
	return max(minTokens, int(math.Round(all/max(2, step))))
}

// leadingItems returns how many leading items have at most tokens tokens in total; a first item above that counts alone.
func leadingItems(items []Item, tokens int) int {
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

// excerpt returns the beginning of an engine's error text.
func excerpt(text []byte) string {
	const most = 200
	if len(text) > most {
		return string(text[:most]) + "…"
	}
	return string(text)
}

// shortage is what a batchRun learned about the engine's memory.
type shortage struct {
	limit int // largest call to try from now on; 0: no limit yet
	// unclear counts parts that say nothing about other batches: a single sequence was too large, or the embedding failed for
	// another reason. Otherwise clients could keep everyone's batches small with sequences that never fit.
	unclear int
	// The smallest call that was too large without such a part, 0 for none, and the size that it was cut to.
	failed, learned int
}

// cut limits calls to tokens tokens from now on.
func (s *shortage) cut(tokens int) {
	if s.limit == 0 || tokens < s.limit {
		s.limit = tokens
	}
}

// learn records that a call of tokens tokens was too large and was replaced by calls of at most cut tokens.
func (s *shortage) learn(tokens, cut int) {
	if s.failed == 0 || tokens < s.failed {
		s.failed, s.learned = tokens, cut
	}
}

// exhausted records that items were too large and could not be split further.
func (s *shortage) exhausted(items []Item) {
	if len(items) == 1 {
		s.unclear++
		return
	}
	s.learn(sum(items), minTokens)
}
