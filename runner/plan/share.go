package plan

import (
	"slices"

	"reveille/infra/policy"
)

// Share is what a load may use of its device. It depends on the host's settings, not on what happens to be loaded, so
// that a model's plan is the same in every order of loads. Only without a slot limit does the number of loaded models
// count.
type Share struct {
	Budget        int64 // bytes of the device for models, 0 without a budget
	Left          int64 // bytes of Budget that other programs leave now, 0 if unknown
	Total         int64 // bytes that the device has, 0 if unknown
	Paged         int   // models with a KV pool that may be loaded there at once, at least 1
	Plain         int64 // bytes reserved for models without one that may be loaded beside them
	AboveEstimate int64 // bytes that an earlier engine of the model took beyond its estimate: they count as buffers
}

// ShareOf divides a device. limit is how many paged models may be loaded at once, -1 for no limit. loaded is how many
// are loaded, without the one being planned. plain is the need of the plain models that may be loaded beside them.
func ShareOf(budget int64, limit, loaded int, plain int64) Share {
	if limit < 0 {
		limit = loaded + 1
	}
	return Share{Budget: budget, Paged: max(limit, 1), Plain: plain}
}

// of returns the share of one model in bytes, 0 without a budget. A model's own memory setting overrides the division.
func (s Share) of(memory int64) int64 {
	if memory > 0 {
		return memory
	}
	if s.Budget <= 0 {
		return 0
	}
	free := max(s.Budget-s.Plain, s.Budget/4) // plain models never starve the others
	return free / int64(max(s.Paged, 1))
}

// NeedsOfOthers sums the largest plain needs that can be loaded at once: for each type as many as its limit allows, or
// all without a limit. needs are the needs of the catalog's plain models by type.
func NeedsOfOthers(limits policy.Limits, needs map[policy.Type][]int64) (sum int64) {
	for t, list := range needs {
		for _, n := range largest(list, limits.Of(t)) {
			sum += n
		}
	}
	return sum
}

// largest returns the n largest values of list, all for n < 0.
func largest(list []int64, n int) []int64 {
	sorted := slices.Sorted(slices.Values(list))
	if n < 0 || n > len(sorted) {
		n = len(sorted)
	}
	return sorted[len(sorted)-n:]
}
