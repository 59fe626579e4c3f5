package policy

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
)

// MaxGPUs bounds the GPUs of a host that can be chosen individually: their indexes are below it.
const MaxGPUs = 16

// GPUMemory is GPU memory in bytes, by the index of the GPU.
type GPUMemory map[int]int64

// Names lists the GPUs as "gpu:0, gpu:1".
func (m GPUMemory) Names() string { return gpuNames(slices.Sorted(maps.Keys(m))) }

func (m GPUMemory) sum() (sum int64) {
	for _, n := range m {
		sum += n
	}
	return sum
}

// Scaled returns bytes on the GPUs of m in the proportions of m, in equal parts if m is 0 on all; nil for nil.
func (m GPUMemory) Scaled(bytes int64) GPUMemory {
	if m == nil {
		return nil
	}
	out, sum := GPUMemory{}, m.sum()
	for gpu, n := range m {
		if sum > 0 {
			out[gpu] = int64(float64(bytes) * (float64(n) / float64(sum)))
		} else {
			out[gpu] = bytes / int64(len(m))
		}
	}
	return out
}

func gpuNames(set []int) string {
	out := make([]string, len(set))
	for i, gpu := range set {
		out[i] = fmt.Sprintf("gpu:%d", gpu)
	}
	return strings.Join(out, ", ")
}

// GPUConstraint is the number and set of GPUs of a host on which a model can be loaded. The zero value means all of them,
// for engines that cannot be restricted to single GPUs.
type GPUConstraint struct {
	Min, Max int    // how many; Max 0: all GPUs of the host together, nothing to choose
	Only     uint16 // the GPUs to choose from, a bit for each index; 0 means any
	Even     bool   // the engine takes the same amount from each GPU, and the number of GPUs doubles from Min on; otherwise it takes from each in proportion to its free memory
}

// Counts yields the numbers of GPUs to try, the smallest first.
func (g GPUConstraint) Counts(gpus GPUMemory) iter.Seq[int] {
	return func(yield func(int) bool) {
		limit := min(g.Max, len(g.allowed(gpus)))
		for n := max(g.Min, 1); n <= limit && yield(n); {
			if g.Even {
				n *= 2
			} else {
				n++
			}
		}
	}
}

// Largest returns the GPUs that together offer the most memory to a model, and how much that is. It returns none if the
// model can use none.
func (g GPUConstraint) Largest(gpus GPUMemory) (set []int, bytes int64) {
	all := g.allowed(gpus)
	slices.SortStableFunc(all, func(a, b int) int { return cmp.Compare(gpus[b], gpus[a]) })
	for n := range g.Counts(gpus) {
		if size := g.capacity(all[:n], gpus); size > bytes {
			set, bytes = all[:n], size
		}
	}
	return slices.Sorted(slices.Values(set)), bytes
}

// allowed returns the indexes of the GPUs to choose from, in order.
func (g GPUConstraint) allowed(gpus GPUMemory) []int {
	var out []int
	for gpu, n := range gpus {
		if n > 0 && gpu >= 0 && gpu < MaxGPUs && (g.Only == 0 || g.Only>>gpu&1 == 1) {
			out = append(out, gpu)
		}
	}
	slices.Sort(out)
	return out
}

// capacity returns how much a model can take from a set of GPUs with the given free memory.
func (g GPUConstraint) capacity(set []int, free GPUMemory) int64 {
	var sum, smallest int64
	for i, gpu := range set {
		n := max(free[gpu], 0)
		if sum += n; i == 0 || n < smallest {
			smallest = n
		}
	}
	if g.Even {
		return smallest * int64(len(set))
	}
	return sum
}

// split returns how much a model takes from each GPU of a set that has room for it.
func (g GPUConstraint) split(need int64, set []int, free GPUMemory) GPUMemory {
	out := GPUMemory{}
	sum := g.capacity(set, free)
	for _, gpu := range set {
		switch {
		case g.Even:
			out[gpu] = (need + int64(len(set)) - 1) / int64(len(set))
		case sum > 0:
			out[gpu] = proportion(need, free[gpu], sum)
		default:
			out[gpu] = 0
		}
	}
	return out
}

// proportion returns n * of / whole, at most of, and 0 unless all three are positive.
func proportion(n, of, whole int64) int64 {
	if n <= 0 || of <= 0 || whole <= 0 {
		return 0
	}
	return min(int64(float64(n)*(float64(of)/float64(whole))), of)
}

// refuse returns why no GPUs of a host can take a model even if all are free, or nil if some can.
func (g GPUConstraint) refuse(want *Model, gpus GPUMemory) *Refusal {
	r := &Refusal{Code: NoDevice, Model: want.ID, Type: want.Type, Device: GPU}
	if all := g.allowed(gpus); len(all) == 0 || len(all) < g.Min {
		var only []int
		for gpu := range MaxGPUs {
			if g.Only>>gpu&1 == 1 {
				only = append(only, gpu)
			}
		}
		switch {
		case len(only) > max(g.Min, 1):
			r.GPUs = fmt.Sprintf("%d of the devices %s", max(g.Min, 1), gpuNames(only))
		case g.Only != 0:
			r.GPUs = "device " + gpuNames(only)
		case g.Min > 1:
			r.GPUs = fmt.Sprintf("%d GPUs", g.Min)
		default:
			r.GPUs = "1 GPU"
		}
		return r
	}
	set, capacity := g.Largest(gpus)
	if want.Memory <= capacity {
		return nil
	}
	r.Code, r.Need, r.Budget, r.GPUs, r.Parts = TooLarge, want.Memory, capacity, gpuNames(set), want.Parts
	return r
}

// OnGPU returns how much of a GPU's memory r holds. A model on all GPUs is spread over them in proportion to their
// sizes.
func (r *Resident) OnGPU(gpu int, gpus GPUMemory) int64 {
	if r.GPUMemory != nil || !r.Devices.Has(GPU) {
		return r.GPUMemory[gpu]
	}
	return proportion(r.Memory, gpus[gpu], gpus.sum())
}

// choice is a set of GPUs for a model and the victims on them.
type choice struct {
	set     []int
	victims []Resident
	free    GPUMemory // of the host's GPUs, once the victims are gone
	left    int64     // free memory of the set once the model is loaded
}

// chooseGPUs chooses GPUs of h for want, and returns the victims and how much want takes from each GPU. It prefers, in
// this order: no victims, only stopping ones, no busy ones, few GPUs, cheap victims as [findVictims] orders them,
// little room left over.
func chooseGPUs(h *Host, t usage) ([]Resident, GPUMemory, *Refusal) {
	g := t.want.GPUs
	var best *choice
	var refused *Refusal
	for set := range gpuSets(h, t.want) {
		if g.capacity(set, h.GPUMemory) < t.want.Memory {
			continue
		}
		one := t
		one.set = set
		victims, refusal := one.victims(h)
		if refusal != nil {
			if refused == nil || refusal.Budget-refusal.Used > refused.Budget-refused.Used {
				refused = refusal
			}
			continue
		}
		c := choice{set: set, victims: victims, free: freeGPUMemory(h, func(r *Resident) bool { return !contains(victims, r.ID) })}
		c.left = g.capacity(set, c.free) - t.want.Memory
		if best == nil || c.compare(best, t.want.Memory <= 0) < 0 {
			best = &c
		}
	}
	if best == nil {
		return nil, nil, refused
	}
	return best.victims, g.split(t.want.Memory, best.set, best.free), nil
}

// compare orders choices, the better one first. If the need is unknown, more remaining memory is better.
func (c *choice) compare(o *choice, unknown bool) int {
	class := func(c *choice) int {
		if len(c.victims) == 0 {
			return -1
		}
		return min(evictionClass(c.victims[len(c.victims)-1]), 2) // the last one costs most
	}
	left := cmp.Compare(c.left, o.left)
	if unknown {
		left = -left
	}
	return cmp.Or(cmp.Compare(class(c), class(o)), cmp.Compare(len(c.set), len(o.set)), compareVictims(c.victims, o.victims), left, slices.Compare(c.set, o.set))
}

// compareVictims compares the costliest victims first.
func compareVictims(a, b []Resident) int {
	for i := 1; i <= min(len(a), len(b)); i++ {
		if d := byEvictionOrder(a[len(a)-i], b[len(b)-i]); d != 0 {
			return d
		}
	}
	return cmp.Compare(len(a), len(b))
}

// freeGPUMemory returns the memory of h's GPUs that the staying residents leave free, below 0 if they hold more than
// the GPU has.
func freeGPUMemory(h *Host, stays func(*Resident) bool) GPUMemory {
	free := maps.Clone(h.GPUMemory)
	for i := range h.Residents {
		if r := &h.Residents[i]; stays(r) {
			for gpu := range free {
				free[gpu] -= r.OnGPU(gpu, h.GPUMemory)
			}
		}
	}
	return free
}

// gpuSets yields the sets of GPUs to consider. Sets of one GPU are all tried. Larger sets are runs of neighbors in
// three orders: (1) by free memory, ties by the cost of evicting the model there; (2) the same, but counting only
// pinned models as used; (3) by total memory. One run of (2) is the set with the most memory that pinned models leave,
// and one of (3) has enough memory for the model if any set has.
func gpuSets(h *Host, want *Model) iter.Seq[[]int] {
	all := want.GPUs.allowed(h.GPUMemory)
	costliest := map[int]Resident{} // the model on each that is costliest to evict
	for _, r := range h.Residents {
		for _, gpu := range all {
			if last, ok := costliest[gpu]; r.OnGPU(gpu, h.GPUMemory) > 0 && (!ok || byEvictionOrder(last, r) < 0) {
				costliest[gpu] = r
			}
		}
	}
	ordered := func(free GPUMemory) []int {
		return slices.SortedStableFunc(slices.Values(all), func(a, b int) int {
			return cmp.Or(cmp.Compare(free[a], free[b]), byEvictionOrder(costliest[a], costliest[b]))
		})
	}
	orders := [...][]int{
		ordered(freeGPUMemory(h, func(*Resident) bool { return true })),
		ordered(freeGPUMemory(h, func(r *Resident) bool { return fixed(r, want) })),
		ordered(h.GPUMemory),
	}
	return func(yield func([]int) bool) {
		for n := range want.GPUs.Counts(h.GPUMemory) {
			for _, order := range orders {
				for set := range slices.Values(windows(order, n)) {
					if !yield(set) {
						return
					}
				}
				if n == 1 || n == len(all) {
					break // all orders give the same sets
				}
			}
		}
	}
}

// windows returns the runs of n neighbors, each sorted by index.
func windows(list []int, n int) [][]int {
	var out [][]int
	for i := 0; i+n <= len(list); i++ {
		out = append(out, slices.Sorted(slices.Values(list[i:i+n])))
	}
	return out
}
