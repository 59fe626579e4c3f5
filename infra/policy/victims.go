package policy

import "slices"

// usage is what a host offers to want (limit, seats, budget, gpuMemory), and what the residents added so far use of it
// (slots, seated, memory, used).
type usage struct {
	want    *Model
	limit   int                     // slots of want's type, -1 for no limit
	seats   int                     // NPU seats, -1 if want does not use the NPU
	perType bool                    // the seats are for models of want's type
	budget  [len(deviceNames)]int64 // bytes for all models together; 0: no limit, or want needs nothing

	slots  int
	seated int
	memory [len(deviceNames)]int64

	gpuMemory GPUMemory      // of the host, if want chooses among its GPUs; nil: budget counts
	set       []int          // the GPUs that want would be loaded on
	used      [MaxGPUs]int64 // on each GPU of set
}

// newUsage returns the limits of h for want with nothing resident. It refuses a model that h could not hold even when
// empty.
func newUsage(h *Host, want *Model) (usage, *Refusal) {
	t := usage{want: want, limit: h.Limits.Of(want.Type), seats: -1}
	refuse := func(c Code) (usage, *Refusal) {
		return usage{}, &Refusal{Code: c, Model: want.ID, Type: want.Type}
	}
	if missing := want.Devices &^ h.Devices; missing != 0 && h.Devices != 0 {
		_, r := refuse(NoDevice)
		r.Device = missing
		return usage{}, r
	}
	if t.limit == 0 {
		return refuse(NoSlot)
	}
	if want.Devices.Has(NPU) {
		t.seats = 1
		if t.perType = len(h.NPUSeats) > 0; t.perType {
			t.seats = h.NPUSeats[want.Type]
		}
		if t.seats < 1 {
			return refuse(NoNPUSeat)
		}
	}
	if want.GPUs.Max > 0 && want.Devices.Has(GPU) && len(h.GPUMemory) > 0 {
		if r := want.GPUs.refuse(want, h.GPUMemory); r != nil {
			return usage{}, r
		}
		t.gpuMemory = h.GPUMemory
	}
	if want.Memory <= 0 {
		return t, nil
	}
	for i, d := range deviceNames {
		if !want.Devices.Has(d.bit) || h.Budget[d.bit] <= 0 || d.bit == GPU && t.gpuMemory != nil {
			continue
		}
		t.budget[i] = h.Budget[d.bit]
		if want.Memory > t.budget[i] {
			_, r := refuse(TooLarge)
			r.Device, r.Need, r.Budget, r.Parts = d.bit, want.Memory, t.budget[i], want.Parts
			return usage{}, r
		}
	}
	return t, nil
}

// holdsSeat reports whether r holds an NPU seat that want could use.
func (t *usage) holdsSeat(r *Resident) bool {
	return t.seats >= 0 && r.Devices.Has(NPU) && (!t.perType || r.Type == t.want.Type)
}

func (t *usage) add(r *Resident, sign int) {
	if r.Type == t.want.Type {
		t.slots += sign
	}
	if t.holdsSeat(r) {
		t.seated += sign
	}
	for i, d := range deviceNames {
		if r.Devices.Has(d.bit) {
			t.memory[i] += int64(sign) * r.Memory
		}
	}
	for _, gpu := range t.set {
		t.used[gpu] += int64(sign) * r.OnGPU(gpu, t.gpuMemory)
	}
}

// fits reports whether want fits together with the added residents.
func (t *usage) fits() bool { return t.slotFits() && t.seatFits() && t.shortDevice() < 0 }

func (t *usage) slotFits() bool { return t.limit < 0 || t.slots < t.limit }

func (t *usage) seatFits() bool { return t.seats < 0 || t.seated < t.seats }

// shortDevice returns the index of the first device without enough memory, -1 if all have enough.
func (t *usage) shortDevice() int {
	if len(t.set) > 0 && t.want.Memory > 0 && t.want.GPUs.capacity(t.set, t.free()) < t.want.Memory {
		return slices.IndexFunc(deviceNames[:], func(d deviceName) bool { return d.bit == GPU })
	}
	for i, b := range t.budget {
		if b > 0 && t.memory[i] > b-t.want.Memory {
			return i
		}
	}
	return -1
}

// free returns what the added residents leave of want's GPUs.
func (t *usage) free() GPUMemory {
	out := make(GPUMemory, len(t.set))
	for _, gpu := range t.set {
		out[gpu] = t.gpuMemory[gpu] - t.used[gpu]
	}
	return out
}

// keep adds r if want still fits together with it.
func (t *usage) keep(r *Resident) bool {
	t.add(r, 1)
	if t.fits() {
		return true
	}
	t.add(r, -1)
	return false
}

// pinnedRefusal returns the refusal for a host on which the pinned residents alone leave too little.
func (t *usage) pinnedRefusal(residents []Resident) *Refusal {
	r := &Refusal{Code: SlotsPinned, Model: t.want.ID, Type: t.want.Type}
	var inWay func(*Resident) bool
	switch device := t.shortDevice(); {
	case !t.slotFits():
		r.Limit = t.limit
		inWay = func(o *Resident) bool { return o.Type == t.want.Type }
	case !t.seatFits():
		r.Device, r.Limit = NPU, t.seats
		inWay = t.holdsSeat
	default:
		r.Device, r.Need, r.Parts = deviceNames[device].bit, t.want.Memory, t.want.Parts
		r.Budget, r.Used = t.budget[device], t.memory[device]
		inWay = func(o *Resident) bool { return o.Devices.Has(r.Device) && o.Memory > 0 }
		if r.Device == GPU && len(t.set) > 0 {
			r.GPUs, r.Budget, r.Used = gpuNames(t.set), 0, 0
			for _, gpu := range t.set {
				r.Budget, r.Used = r.Budget+t.gpuMemory[gpu], r.Used+t.used[gpu]
			}
			inWay = func(o *Resident) bool {
				return slices.ContainsFunc(t.set, func(gpu int) bool { return o.OnGPU(gpu, t.gpuMemory) > 0 })
			}
		}
	}
	for i := range residents {
		if o := &residents[i]; fixed(o, t.want) && inWay(o) {
			r.UsedBy = append(r.UsedBy, o.ID)
		}
	}
	slices.Sort(r.UsedBy)
	return r
}

// fixed reports whether r stays in any case: it is pinned and not already stopping. A model's own copy is never fixed,
// because loading it again replaces it.
func fixed(r *Resident, want *Model) bool {
	return r.Pinned && r.State != ModelDraining && r.ID != want.ID
}

// findVictims returns the residents that must be gone before want is loaded, in byEvictionOrder order; nil if it fits
// together with all.
//
// The choice spares the most valuable resident if any choice can, then the next most valuable, and so on: first to
// avoid waiting for busy ones, then to keep the most valuable, or among equals the most recently used. So no victim is
// superfluous, a model whose eviction helps several limits counts for all of them, and among equal models the least
// recently used are evicted. Models already stopping are the cheapest victims, so no other is taken in their place;
// those in the result must be waited for.
//
// The second result is what want takes from each GPU that it is loaded on, nil where all GPUs of h count as one.
//
// Cost: sorting the residents, once for each set of GPUs considered. Without victims and without a choice of GPUs, it
// sorts and allocates nothing.
func findVictims(h *Host, want *Model) ([]Resident, GPUMemory, *Refusal) {
	t, refusal := newUsage(h, want)
	switch {
	case refusal != nil:
		return nil, nil, refusal
	case t.gpuMemory != nil:
		return chooseGPUs(h, t)
	}
	victims, refusal := t.victims(h)
	return victims, nil, refusal
}

// victims returns the victims on h for one set of GPUs. t must have nothing added yet.
func (t usage) victims(h *Host) ([]Resident, *Refusal) {
	want, all := t.want, t
	own, movable := false, 0
	for i := range h.Residents {
		r := &h.Residents[i]
		all.add(r, 1)
		own = own || r.ID == want.ID
		if fixed(r, want) {
			t.add(r, 1)
		} else {
			movable++
		}
	}
	if all.fits() && !own {
		return nil, nil
	}
	if !t.fits() {
		return nil, t.pinnedRefusal(h.Residents)
	}
	victims := make([]Resident, 0, movable)
	for i := range h.Residents {
		if r := h.Residents[i]; !fixed(&r, want) {
			r.Kept = r.Kept && r.ID != want.ID // from others, not from its own reload
			victims = append(victims, r)
		}
	}
	slices.SortFunc(victims, byEvictionOrder)
	spared := make([]bool, len(victims))
	for i := len(victims) - 1; i >= 0; i-- {
		spared[i] = victims[i].ID != want.ID && t.keep(&victims[i])
	}
	n := 0
	for i := range victims {
		if !spared[i] {
			victims[n] = victims[i]
			n++
		}
	}
	return victims[:n], nil
}

// after returns h as it will be once want has replaced the victims and is loaded for a request. It is used to look
// ahead.
func after(h *Host, want *Model, victims []Resident, gpus GPUMemory) Host {
	next := *h
	next.Residents = make([]Resident, 0, len(h.Residents)+1)
	for _, r := range h.Residents {
		if !contains(victims, r.ID) {
			next.Residents = append(next.Residents, r)
		}
	}
	next.Residents = append(next.Residents, Resident{
		ID: want.ID, Type: want.Type, Devices: want.Devices, State: ModelLoading,
		Pinned: want.Pinned, Reserved: true, Memory: want.Memory, Idle: want.Idle, GPUMemory: gpus,
	})
	return next
}

func contains(rs []Resident, id string) bool {
	return slices.ContainsFunc(rs, func(r Resident) bool { return r.ID == id })
}

func names(rs []Resident) []string {
	if len(rs) == 0 {
		return nil
	}
	out := make([]string, len(rs))
	for i, r := range rs {
		out[i] = r.ID
	}
	return out
}
