package plan

import (
	"slices"

	"reveille/infra/policy"
)

// Share is the part of its device that a load may use. It depends on the host's settings, not on what happens to be
// loaded, so that a model's plan is the same in every order of loads. Only without a slot limit does the number of
// loaded models count.
type Share struct {
	Budget        int64 // bytes of the device for models, 0 without a budget
	Left          int64 // bytes of Budget that other programs leave free, 0 if unknown
	Total         int64 // bytes that the device has, 0 if unknown
	Paged         int   // maximum number of loaded models with a KV pool, at least 1
	Plain         int64 // bytes reserved for the models without a KV pool that can be loaded with them
	AboveEstimate int64 // bytes that an earlier engine of the model took above its estimate; they count as buffers
}

// ShareOf divides a device. limit is the maximum number of loaded paged models, -1 for no limit. loaded is how many are
// loaded, without the one being planned. plain is the need of the plain models that can be loaded with them.
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
	free := max(s.Budget-s.Plain, s.Budget/4) // plain models leave at least a quarter to the others
	return free / int64(max(s.Paged, 1))
}

// NeedsOfOthers sums up the largest needs of plain models that can be loaded together: for each type as many as its
// limit allows, or all without a limit. needs are the needs of the catalog's plain models by type.
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
