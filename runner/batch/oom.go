package batch

import (
	"bytes"
	"math"
)

const (
	// minTokens is the size below which a batch is not halved any more.
	minTokens = 64
	// maxTries bounds the sizes tried for one sequence after the engine ran out of memory. From the default n_batch of
	// 2048 the sixth has minTokens.
	maxTries = 6
	// raiseDivisor: a raise adds an eighth of the ceiling.
	raiseDivisor = 8
	// raiseAfter and maxRaiseAfter bound the full batches that must work before a raise.
	raiseAfter, maxRaiseAfter = 16, 1024
)

// A ceiling is the maximum number of tokens that are packed into one engine call. It starts at n_batch. When a call
// runs out of memory, it remembers the size that worked, so that later batches need not find it again. It is always
// between minTokens and n_batch.
//
// After 16 full batches that worked it rises by an eighth, since memory may become free again. It rises slowly because
// a failed raise wastes one call and may crash a fragile engine. After a failed raise it returns to the size that
// worked, and the 16 are doubled, up to 1024.
type ceiling struct {
	nBatch     int
	tokens     int
	proven     int // largest size known to work since the ceiling last fell
	full       int // full batches that worked since the ceiling last changed
	fullNeeded int // how many are needed before the next raise
}

func newCeiling(nBatch int) ceiling {
	return ceiling{nBatch: nBatch, tokens: nBatch, fullNeeded: raiseAfter}
}

// succeeded records that a batch worked in one call. full means that the batch could not hold more.
func (c *ceiling) succeeded(tokens int, full bool) {
	if tokens > c.tokens { // one long sequence, or a batch from before the ceiling fell
		return
	}
	if tokens > c.proven {
		c.proven, c.fullNeeded = tokens, raiseAfter
	}
	if !full || c.tokens == c.nBatch {
		return
	}
	if c.full++; c.full >= c.fullNeeded {
		c.full, c.proven = 0, max(c.proven, c.tokens) // the batches were full: only the next sequence did not fit
		c.tokens = min(c.nBatch, c.tokens+max(1, c.tokens/raiseDivisor))
	}
}

// ranOutOfMemory records that calls of failedSize tokens or more ran out of memory. Calls of at most splitSize tokens
// replaced them and worked; minTokens can also mean that none was tried.
func (c *ceiling) ranOutOfMemory(failedSize, splitSize int) {
	c.full = 0
	if splitSize <= c.proven && c.proven < failedSize { // only a raise failed
		c.tokens, c.fullNeeded = min(c.tokens, c.proven), min(2*c.fullNeeded, maxRaiseAfter)
		return
	}
	c.tokens, c.proven, c.fullNeeded = min(c.tokens, splitSize), 0, raiseAfter
}

// memoryShortage is what a run has learned about the engine's memory.
type memoryShortage struct {
	limit int // largest call to try from now on; 0: no limit yet
	// unclear counts parts that say nothing about other batches: a single sequence was too large, nobody waited for it
	// any more, or the call failed for another reason. Otherwise a client could keep all batches small with sequences
	// that never fit.
	unclear int
	// failedSize is the size of the smallest call that was too large and had no unclear part, 0 for none; splitSize is
	// as in learn.
	failedSize, splitSize int
}

// learn records that a call of size tokens was too large. Calls of at most splitSize tokens replaced it; minTokens can
// also mean that it was given up.
func (s *memoryShortage) learn(size, splitSize int) {
	if s.failedSize == 0 || size < s.failedSize {
		s.failedSize, s.splitSize = size, splitSize
	}
}

// isOutOfMemory reports whether a response means that the engine ran out of memory for a call on the given try. Text
// Embeddings Inference responds with 424 to every failure of its backend. llama-server uses one message for a graph
// that it could not allocate and for every other failed computation: it counts as out of memory while a smaller call
// can be tried.
func (b *Batcher) isOutOfMemory(status int, response []byte, part []sequence, try int) bool {
	if status < 500 && status != 424 {
		return false
	}
	return b.cfg.OutOfMemory(string(response)) || isDivisible(part, try) && bytes.Contains(response, []byte(`"Compute error."`))
}

// isDivisible reports whether sequences that ran out of memory on the given try can be sent in smaller calls.
func isDivisible(part []sequence, try int) bool {
	return try < maxTries && len(part) > 1 && sum(part) > minTokens
}

// smallerSize returns the maximum number of tokens per call after a call of size tokens failed on the given try: half,
// or less if halving would not reach minTokens by the last try.
func smallerSize(size, try int) int {
	all := float64(size)
	step := math.Pow(all/minTokens, 1/float64(maxTries-try))
	return max(minTokens, int(math.Round(all/max(2, step))))
}

// leadingCount returns how many leading sequences have at most limit tokens in total, but at least one.
func leadingCount(part []sequence, limit int) int {
	total := 0
	for i, s := range part {
		if total += s.Tokens; i > 0 && total > limit {
			return i
		}
	}
	return len(part)
}

func sum(part []sequence) (tokens int) {
	for _, s := range part {
		tokens += s.Tokens
	}
	return tokens
}
