package batch

const (
	// raiseShare is the part of the ceiling that a raise adds.
	raiseShare = 8
	// raiseAfter and maxRaiseAfter bound the full batches that must work before a raise.
	raiseAfter, maxRaiseAfter = 16, 1024
)

// A ceiling is the most tokens that are packed into one engine call. It starts at n_batch. When a call runs out of
// memory, it remembers the size that worked, so that later batches need not find it again. It is always between
// minTokens and n_batch.
//
//   - Calls of failed tokens ran out of memory and were cut to calls of cut tokens, which worked: the ceiling becomes cut.
//     If a call of at least cut and less than failed tokens had worked before, or full batches under such a ceiling, the
//     ceiling becomes that size, since only a raise failed.
//   - After 16 full batches that worked, the ceiling rises by an eighth. Each failed raise doubles the 16, up to 1024; a
//     successful raise resets it.
//
// The ceiling must rise because memory may become free again. It must rise slowly because a failed raise wastes one
// call and may end a fragile engine. One wasted call in 16 costs at most 6 %, and soon next to nothing if memory stays
// short. From 64 back to 2048 takes 30 raises, that is 480 full batches.
type ceiling struct {
	nBatch     int
	now        int
	proven     int // largest call, or ceiling of full batches, that worked since the ceiling last fell
	full       int // full batches that worked since the ceiling last changed
	fullNeeded int // how many are needed before the next raise
}

func newCeiling(nBatch int) ceiling {
	return ceiling{nBatch: nBatch, now: nBatch, fullNeeded: raiseAfter}
}

// succeeded records that a batch worked in one call; full says that the batch could not hold more.
func (c *ceiling) succeeded(tokens int, full bool) {
	if tokens > c.now { // one long sequence, or a batch from before the ceiling fell
		return
	}
	if tokens > c.proven {
		c.proven, c.fullNeeded = tokens, raiseAfter
	}
	if !full || c.now == c.nBatch {
		return
	}
	if c.full++; c.full >= c.fullNeeded {
		c.full, c.proven = 0, max(c.proven, c.now) // texts of these sizes could not fill it further
		c.now = min(c.nBatch, c.now+max(1, c.now/raiseShare))
	}
}

// outOfMemory records that calls of failed tokens or more ran out of memory and were cut to calls of cut tokens.
func (c *ceiling) outOfMemory(failed, cut int) {
	c.full = 0
	if cut <= c.proven && c.proven < failed {
		c.now, c.fullNeeded = min(c.now, c.proven), min(2*c.fullNeeded, maxRaiseAfter)
		return
	}
	c.now, c.proven, c.fullNeeded = min(c.now, cut), 0, raiseAfter
}
