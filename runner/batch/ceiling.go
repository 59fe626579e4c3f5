package batch

const (
	// raiseShare is the part of the ceiling that a raise adds.
	raiseShare = 8
	// raiseAfter and raiseAtMost bound the full batches that must work before a raise.
	raiseAfter, raiseAtMost = 16, 1024
)

// A ceiling is the most tokens that are packed into one engine call. It is n_batch until a call runs out of memory, and
// then remembers what worked, so that later batches do not climb down again. It is never below leastTokens or above n_batch.
//
//   - Calls of failed tokens ran out of memory, those cut to cut tokens did not: the ceiling becomes cut. If a call of
//     at least cut and less than failed tokens had worked before, or full batches under such a ceiling, the ceiling becomes that
//     size: only a raise failed.
//   - After 16 full batches that worked, the ceiling rises by an eighth. Each raise that fails doubles the 16, up to 1024;
//     a raise that works resets it.
//
// Memory may become free again, so the ceiling must rise; a raise that fails wastes one call and may end a fragile engine,
// so it must rise slowly. One wasted call in 16 costs at most 6 %, and where memory stays short soon next to nothing. From 64
// back to 2048 takes 30 raises, which is 480 full batches.
type ceiling struct {
	nBatch int
	now    int
	proven int // largest call that worked since the ceiling last fell, or ceiling that full batches worked under
	full   int // full batches that worked since the ceiling last changed
	needed int // of them before the next raise
}

func newCeiling(nBatch int) ceiling { return ceiling{nBatch: nBatch, now: nBatch, needed: raiseAfter} }

// worked learns from a call of one batch; full says that the batch could not hold more.
func (c *ceiling) worked(tokens int, full bool) {
	if tokens > c.now { // one long sequence, or a batch from before the ceiling fell
		return
	}
	if tokens > c.proven {
		c.proven, c.needed = tokens, raiseAfter
	}
	if !full || c.now == c.nBatch {
		return
	}
	if c.full++; c.full >= c.needed {
		c.full, c.proven = 0, max(c.proven, c.now) // texts of these sizes filled no more of it
		c.now = min(c.nBatch, c.now+max(1, c.now/raiseShare))
	}
}

// outOfMemory learns from a batch: calls of failed tokens or more ran out of memory, smaller ones were cut to cut tokens.
func (c *ceiling) outOfMemory(failed, cut int) {
	c.full = 0
	if cut <= c.proven && c.proven < failed {
		c.now, c.needed = min(c.now, c.proven), min(2*c.needed, raiseAtMost)
		return
	}
	c.now, c.proven, c.needed = min(c.now, cut), 0, raiseAfter
}
