package batch

import "regexp"

const (
	// leastTokens is the size below which a batch is not halved any more.
	leastTokens = 64
	// mostTries bounds the calls for one sequence.
	mostTries = 4
)

var memoryWords = regexp.MustCompile(`(?i)out of memory|failed to allocate|unable to allocate|cudaMalloc|OUT_OF_(DEVICE_|HOST_)?MEMORY|OutOf(Device|Host)Memory|bad_alloc`)

// OutOfMemory recognises the usual words of engines that ran out of memory.
func OutOfMemory(text []byte) bool { return memoryWords.Match(text) }

// saysMemory reports whether an answer of a status is searched for those words. Text Embeddings Inference says 424 of all
// that its backend fails with.
func saysMemory(status int) bool { return status >= 500 || status == 424 }

// halve divides items, for which the engine's memory was too small at the given try, into runs of at most half their
// tokens. It returns the ends of the runs, or nil when no smaller call is to be tried. Half means at least leastTokens.
// A sequence larger than that is a run of its own.
func halve(items []Item, try int) (ends []int) {
	total := sum(items)
	if try >= mostTries || len(items) == 1 || total <= leastTokens {
		return nil
	}
	most := max(total/2, leastTokens)
	run := 0
	for i, it := range items {
		if run > 0 && run+it.Tokens > most {
			ends = append(ends, i)
			run = 0
		}
		run += it.Tokens
	}
	return append(ends, len(items))
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
