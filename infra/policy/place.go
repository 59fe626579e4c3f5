package policy

import (
	"cmp"
	"hash/fnv"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Placement is the host that a model's ticket goes to, or why it can go to none.
type Placement struct {
	Host    string
	Wake    bool // the host is not ready
	Reason  Reason
	Refusal *Refusal // set when Host is ""
}

// rank is a host's step in the placement order; lower is better.
type rank int

const (
	rankFree     rank = iota // awake, no victims, no load queued or in progress
	rankIdle                 // awake, idle victims, no load queued or in progress
	rankStopping             // the same, and some of the victims are already stopping
	rankQueued               // awake, with loads queued or in progress; after them the model needs no busy victim
	rankAsleep               // asleep or waking, and there is room after its queue
	rankDraining             // about to sleep: stops, then wakes again
	rankWait                 // awake, asleep or waking: waits for busy models or loads
	rankLost
)

// candidate is a host that can take the model.
type candidate struct {
	host     *Host
	rank     rank
	order    int       // position in the model's list of hosts
	queued   int       // loads before this one
	inFlight int       // open requests of its victims
	value    float64   // of its victims
	saved    int64     // tokens of the model's saved conversations
	used     time.Time // last use of its most recently used victim, zero without victims
}

// Place chooses the host for a new copy of want, in the order of the ranks above. Among hosts on which it must wait, it
// prefers the one with the fewest queued loads, then the one whose victims serve the fewest requests. It breaks ties by
// the model's own list of hosts (its entries are names or labels), then by the value of the victims (EvictionPolicy.Value;
// all the same under LRU), then by how long the victims have been unused. Then it prefers a waking host to one asleep,
// then the one with the most tokens of saved conversations (Model.Saved), and then the first by name. With
// Snapshot.Spread above 1, it chooses among the first Spread hosts by name with a hash of host and model, so that a
// model keeps its host.
//
// Only hosts whose devices and memory can hold the model count. Each host is judged by what the model takes there
// (Model.NeedByHost). A host whose runner has refused the model (Model.TooLarge) is left out.
//
// avoid has the hosts that must not be used, each with the reason as text. Ready and waking hosts that hold an open copy
// of want or a ticket for it are left out, because requests go to that copy or attach to that ticket. A closed or
// stopping copy does not count, because new requests need a load again.
//
// Cost: that of findVictims, for each host and each of its queued tickets.
func Place(s Snapshot, want Model, avoid map[string]string) Placement {
	var (
		best    []candidate // equally good ones, the first by name
		refused []rejection
	)
	for i := range s.Hosts {
		h := &s.Hosts[i]
		order := listPosition(h, want.Hosts)
		if order < 0 {
			continue
		}
		c := candidate{host: h, order: order, saved: want.Saved[h.Name]}
		onHost := want.forHost(h.Name)
		if v := c.rankFor(&onHost, avoid); v.reason.Code != "" {
			refused = append(refused, v)
			continue
		}
		d := -1
		if len(best) > 0 {
			d = c.compare(&best[0])
		}
		if d < 0 {
			best = best[:0]
		}
		if d <= 0 {
			best = insertByName(best, c, max(1, s.Spread))
		}
	}
	if len(best) == 0 {
		r := refuse(&want, refused)
		return Placement{Reason: r.Reason(), Refusal: r}
	}
	c := preferred(best, want.ID)
	return Placement{Host: c.host.Name, Wake: c.host.State != Ready, Reason: c.reason()}
}

// insertByName inserts c, and keeps only the first limit candidates by name.
func insertByName(all []candidate, c candidate, limit int) []candidate {
	i, _ := slices.BinarySearchFunc(all, c, func(a, b candidate) int { return strings.Compare(a.host.Name, b.host.Name) })
	if i == limit {
		return all
	}
	return slices.Insert(all[:min(len(all), limit-1)], i, c)
}

// preferred chooses a candidate by rendezvous hashing: models spread over the hosts, and a model's choice stays when
// other hosts come or go.
func preferred(all []candidate, model string) candidate {
	if len(all) == 1 {
		return all[0]
	}
	hash := func(c candidate) uint64 {
		f := fnv.New64a()
		_, _ = io.WriteString(f, model+"\x00"+c.host.Name) // never fails
		return f.Sum64()
	}
	return slices.MinFunc(all, func(a, b candidate) int { return cmp.Compare(hash(a), hash(b)) })
}

// listPosition returns h's position in a model's list of hosts, 0 for every host if the list is empty, -1 if h is not
// in it.
func listPosition(h *Host, list []string) int {
	if len(list) == 0 {
		return 0
	}
	return slices.IndexFunc(list, func(e string) bool { return e == h.Name || slices.Contains(h.Labels, e) })
}

// rejection is why a host is ruled out; zero: it is not.
type rejection struct {
	host    string
	reason  Reason
	refusal *Refusal // nil for an avoided host and one that has the model
}

// rankFor sets c's rank and its tie-breakers, or returns why the host is ruled out.
func (c *candidate) rankFor(want *Model, avoid map[string]string) rejection {
	h := *c.host
	if detail, ok := avoid[h.Name]; ok {
		return rejection{host: h.Name, reason: Reason{Code: Avoided, Detail: detail}}
	}
	if detail := copyOn(&h, want.ID); detail != "" {
		return rejection{host: h.Name, reason: Reason{Code: HasCopy, Detail: detail}}
	}
	if r := want.TooLarge[h.Name]; r != nil {
		return rejection{host: h.Name, reason: r.Reason(), refusal: r}
	}
	if h.State != Ready {
		// Its models will be gone when it is awake again; only the queue remains. The limits of a host that never
		// registered are unknown, so this assumes the runner's default; the runner's own admission decides.
		h.Residents, h.Loading = nil, ""
		if h.Limits == (Limits{}) {
			h.Limits = Uniform(1)
		}
	}
	c.queued = len(h.Queue)
	if h.Loading != "" {
		c.queued++
	}
	for i := range h.Queue {
		t := &h.Queue[i].Model
		if victims, gpus, refusal := findVictims(&h, t); refusal == nil {
			h = after(&h, t, victims, gpus)
		}
	}
	victims, _, refusal := findVictims(&h, want)
	if refusal != nil {
		return rejection{host: h.Name, reason: refusal.Reason(), refusal: refusal}
	}
	waits, stopping := false, false
	for _, v := range victims {
		waits = waits || v.Busy()
		stopping = stopping || v.State == ModelDraining
		c.inFlight += v.InFlight
		c.value += v.Value
		c.used = Later(c.used, v.Used)
	}
	switch {
	case h.State == Lost:
		c.rank = rankLost
	case h.State == Draining:
		c.rank = rankDraining
	case waits:
		c.rank = rankWait
	case h.State != Ready:
		c.rank = rankAsleep
	case c.queued > 0:
		c.rank = rankQueued
	case stopping:
		c.rank = rankStopping
	case len(victims) > 0:
		c.rank = rankIdle
	default:
		c.rank = rankFree
	}
	return rejection{}
}

// copyOn describes h's copy or ticket of the model, "" if it has none, or is neither ready nor waking.
func copyOn(h *Host, id string) string {
	if h.State != Ready && h.State != Waking {
		return ""
	}
	for i := range h.Queue {
		if h.Queue[i].Model.ID == id {
			return "queued there"
		}
	}
	for i := range h.Residents {
		if r := &h.Residents[i]; r.ID == id && !r.Closed && r.State != ModelDraining {
			return string(r.State) + " there"
		}
	}
	return ""
}

// compare orders candidates, the better one first; 0 means equally good.
func (c *candidate) compare(o *candidate) int {
	if d := cmp.Compare(c.rank, o.rank); d != 0 {
		return d
	}
	if c.rank == rankWait {
		if d := cmp.Or(cmp.Compare(c.queued, o.queued), cmp.Compare(c.inFlight, o.inFlight)); d != 0 {
			return d
		}
	}
	return cmp.Or(
		cmp.Compare(c.order, o.order),
		cmp.Compare(c.value, o.value),
		c.used.Compare(o.used),
		cmp.Compare(c.asleep(), o.asleep()),
		cmp.Compare(o.saved, c.saved),
	)
}

func (c *candidate) asleep() int {
	if c.host.State == Asleep {
		return 1
	}
	return 0
}

func (c *candidate) reason() Reason {
	switch c.rank {
	case rankFree:
		return Reason{Code: FreeSlot}
	case rankIdle:
		return Reason{Code: IdleVictim}
	case rankStopping:
		return Reason{Code: Stopping}
	case rankQueued:
		return Reason{Code: AfterQueue, Detail: "loads before it: " + strconv.Itoa(c.queued)}
	case rankAsleep:
		if c.host.State == Waking {
			return Reason{Code: WakingHost}
		}
		return Reason{Code: WakeHost}
	case rankDraining:
		return Reason{Code: StopFirst}
	case rankLost:
		return Reason{Code: LostHost}
	}
	return Reason{Code: BusyVictim, Detail: "loads before it: " + strconv.Itoa(c.queued) + ", open requests: " + strconv.Itoa(c.inFlight)}
}

// refuse combines the refusals of all hosts. The most hopeful code wins: an avoided host may recover and pins can be
// removed, so the model counts as too large, or without a seat, slot or device, only if no host has a better result.
func refuse(want *Model, refused []rejection) *Refusal {
	slices.SortFunc(refused, func(a, b rejection) int { return cmp.Compare(a.host, b.host) })
	r := &Refusal{Code: NoHost, Model: want.ID, Type: want.Type}
	grade := func(v rejection) int {
		switch v.reason.Code {
		case Avoided, HasCopy:
			return 4
		case SlotsPinned:
			return 3
		case TooLarge:
			return 2
		case NoNPUSeat, NoSlot:
			return 1
		}
		return 0
	}
	top := 0
	for _, v := range refused {
		g := grade(v)
		if v.refusal != nil && g > 0 && (g > top || g == top && v.refusal.Budget > r.Budget) {
			*r = *v.refusal
		} else if g > top {
			*r = Refusal{Code: NoHost, Model: want.ID, Type: want.Type}
		}
		top = max(top, g)
	}
	r.Hosts = make([]HostRefusal, len(refused))
	for i, v := range refused {
		r.Hosts[i] = HostRefusal{Host: v.host, Reason: v.reason}
	}
	return r
}
