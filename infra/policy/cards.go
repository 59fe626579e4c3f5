package policy

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
)

// MaxCards is how many GPUs of a host can be told apart: their indexes are below it.
const MaxCards = 16

// Cards are bytes of GPU memory by the index of the GPU.
type Cards map[int]int64

// Names lists the GPUs as "gpu:0, gpu:1".
func (c Cards) Names() string { return cardNames(slices.Sorted(maps.Keys(c))) }

func (c Cards) sum() (sum int64) {
	for _, n := range c {
		sum += n
	}
	return sum
}

func cardNames(set []int) string {
	out := make([]string, len(set))
	for i, card := range set {
		out[i] = fmt.Sprintf("gpu:%d", card)
	}
	return strings.Join(out, ", ")
}

// GPUs says on how many and which GPUs of a host a model is loaded. The zero value: on all of them, as an engine does that
// cannot be told which to use.
type GPUs struct {
	Min, Max int    // how many; Max 0 is no choice
	Only     uint16 // the GPUs to choose from, a bit for each index; 0 any
	Even     bool   // the engine takes the same of each GPU, and numbers of GPUs double from Min on; else it takes of each by its free memory
}

// Counts yields the numbers of GPUs to try, the smallest first.
func (g GPUs) Counts(cards Cards) iter.Seq[int] {
	return func(yield func(int) bool) {
		most := min(g.Max, len(g.allowed(cards)))
		for n := max(g.Min, 1); n <= most && yield(n); {
			if g.Even {
				n *= 2
			} else {
				n++
			}
		}
	}
}

// Largest are the GPUs that together offer the most memory to a model, and how much that is; none where it may use none.
func (g GPUs) Largest(cards Cards) (set []int, bytes int64) {
	all := g.allowed(cards)
	slices.SortStableFunc(all, func(a, b int) int { return cmp.Compare(cards[b], cards[a]) })
	for n := range g.Counts(cards) {
		if room := g.room(all[:n], cards); room > bytes {
			set, bytes = all[:n], room
		}
	}
	return slices.Sorted(slices.Values(set)), bytes
}

// allowed are the indexes of the GPUs to choose from, in order.
func (g GPUs) allowed(cards Cards) []int {
	var out []int
	for card, n := range cards {
		if n > 0 && card >= 0 && card < MaxCards && (g.Only == 0 || g.Only>>card&1 == 1) {
			out = append(out, card)
		}
	}
	slices.Sort(out)
	return out
}

// room is what a model can take of a set of GPUs with so much free memory.
func (g GPUs) room(set []int, free Cards) int64 {
	var sum, least int64
	for i, card := range set {
		n := max(free[card], 0)
		if sum += n; i == 0 || n < least {
			least = n
		}
	}
	if g.Even {
		return least * int64(len(set))
	}
	return sum
}

// split is what a model takes of each GPU of a set that has room for it.
func (g GPUs) split(need int64, set []int, free Cards) Cards {
	out := Cards{}
	sum := g.room(set, free)
	for _, card := range set {
		switch {
		case g.Even:
			out[card] = (need + int64(len(set)) - 1) / int64(len(set))
		case sum > 0:
			out[card] = part(need, free[card], sum)
		default:
			out[card] = 0
		}
	}
	return out
}

// part is n * of / whole.
func part(n, of, whole int64) int64 {
	if n <= 0 || of <= 0 || whole <= 0 {
		return 0
	}
	return min(int64(float64(n)*(float64(of)/float64(whole))), of)
}

// refuse says why no GPU of a host, with all of them free, can take a model; nil if some can.
func (g GPUs) refuse(want *Model, cards Cards) *Refusal {
	r := &Refusal{Code: NoDevice, Model: want.ID, Type: want.Type, Device: GPU}
	if all := g.allowed(cards); len(all) == 0 || len(all) < g.Min {
		r.Cards = fmt.Sprintf("%d gpus", max(g.Min, 1))
		if g.Only != 0 {
			var only []int
			for card := range MaxCards {
				if g.Only>>card&1 == 1 {
					only = append(only, card)
				}
			}
			r.Cards = cardNames(only)
		}
		return r
	}
	set, most := g.Largest(cards)
	if want.Memory <= most {
		return nil
	}
	r.Code, r.Need, r.Budget, r.Cards = TooLarge, want.Memory, most, cardNames(set)
	return r
}

// onCard is how much of a GPU's memory r holds. Of a model on all GPUs each holds a part by its size.
func (r *Resident) onCard(card int, cards Cards) int64 {
	if r.Cards != nil || !r.Devices.Has(GPU) {
		return r.Cards[card]
	}
	return part(r.Memory, cards[card], cards.sum())
}

// choice is a set of GPUs for a model, and what must go for it.
type choice struct {
	set     []int
	victims []Resident
	free    Cards // of the host's GPUs, once the victims are gone
	room    int64 // left in the set
}

// chooseCards chooses GPUs of h for want, and returns what must go and what want takes of each. It prefers, in this order,
// that nothing must go, that nothing busy must go, few GPUs, cheap victims as [findVictims] does, and little room left over.
func chooseCards(h *Host, t usage) ([]Resident, Cards, *Refusal) {
	g := t.want.GPUs
	var best *choice
	var refused *Refusal
	for set := range cardSets(h, t.want) {
		if g.room(set, h.Cards) < t.want.Memory {
			continue
		}
		one := t
		one.set = set
		victims, refusal := one.victims(h)
		if refusal != nil {
			if refused == nil || refusal.Budget-refusal.Held > refused.Budget-refused.Held {
				refused = refusal
			}
			continue
		}
		c := choice{set: set, victims: victims, free: freeCards(h, func(r *Resident) bool { return !holds(victims, r.ID) })}
		c.room = g.room(set, c.free) - t.want.Memory
		if best == nil || c.compare(best, t.want.Memory <= 0) < 0 {
			best = &c
		}
	}
	if best == nil {
		return nil, nil, refused
	}
	return best.victims, g.split(t.want.Memory, best.set, best.free), nil
}

// compare orders choices, the better one first. If the need is unknown, more room is better.
func (c *choice) compare(o *choice, unknown bool) int {
	class := func(c *choice) int {
		if len(c.victims) == 0 {
			return -1
		}
		return min(evictionClass(c.victims[len(c.victims)-1]), 2) // the last is the dearest
	}
	room := cmp.Compare(c.room, o.room)
	if unknown {
		room = -room
	}
	return cmp.Or(cmp.Compare(class(c), class(o)), cmp.Compare(len(c.set), len(o.set)), compareVictims(c.victims, o.victims), room, slices.Compare(c.set, o.set))
}

// compareVictims compares the dearest first.
func compareVictims(a, b []Resident) int {
	for i := 1; i <= min(len(a), len(b)); i++ {
		if d := byEvictionOrder(a[len(a)-i], b[len(b)-i]); d != 0 {
			return d
		}
	}
	return cmp.Compare(len(a), len(b))
}

// freeCards is the memory of h's GPUs that the residents which stay leave free, below 0 if they hold more.
func freeCards(h *Host, stays func(*Resident) bool) Cards {
	free := maps.Clone(h.Cards)
	for i := range h.Residents {
		if r := &h.Residents[i]; stays(r) {
			for card := range free {
				free[card] -= r.onCard(card, h.Cards)
			}
		}
	}
	return free
}

// cardSets yields the sets of GPUs to look at: of each number every single GPU, else those that lie beside each other when
// ordered by free memory and unused time; the same by the memory that pinned models leave, so that the set with the most of
// that is among them; and by size, so that there is one that the model fits at all.
func cardSets(h *Host, want *Model) iter.Seq[[]int] {
	all := want.GPUs.allowed(h.Cards)
	used := map[int]Resident{} // the last one used on each
	for _, r := range h.Residents {
		for _, card := range all {
			if last, there := used[card]; r.onCard(card, h.Cards) > 0 && (!there || byEvictionOrder(last, r) < 0) {
				used[card] = r
			}
		}
	}
	ordered := func(free Cards) []int {
		return slices.SortedStableFunc(slices.Values(all), func(a, b int) int {
			return cmp.Or(cmp.Compare(free[a], free[b]), byEvictionOrder(used[a], used[b]))
		})
	}
	orders := [...][]int{
		ordered(freeCards(h, func(*Resident) bool { return true })),
		ordered(freeCards(h, func(r *Resident) bool { return fixed(r, want) })),
		ordered(h.Cards),
	}
	return func(yield func([]int) bool) {
		for n := range want.GPUs.Counts(h.Cards) {
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

// windows are the runs of n neighbours, each in order of index.
func windows(list []int, n int) [][]int {
	var out [][]int
	for i := 0; i+n <= len(list); i++ {
		out = append(out, slices.Sorted(slices.Values(list[i:i+n])))
	}
	return out
}
