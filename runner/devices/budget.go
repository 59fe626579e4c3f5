package devices

import "reveille/infra/policy"

// minMargin is the minimum of a GPU's own memory that stays free. A driver and an engine's context take up to half of
// it.
const minMargin = 1 << 30

// Totals returns the bytes of memory of the processor and of the GPUs that engines use, where known. For GPUs it is
// their sum, because llama-server splits a model over all of them.
func (f Found) Totals() map[policy.Devices]int64 {
	out := map[policy.Devices]int64{}
	for _, d := range f.Used() {
		kind, _ := policy.ParseDevices(d.Kind)
		out[kind] += d.Total
	}
	return out
}

// Budget returns how many bytes models can take by default: 80 % of the main memory, and the sum of the GPUs' own
// memory, each less 10 % or minMargin, whichever is larger, because llama-server splits a model over all GPUs. The rest
// is for drivers and other programs. A GPU that uses the main memory gets up to four fifths of the processor's 80 %,
// and the processor gets the rest, so that both together stay within the 80 %. Kinds of device that the host must not
// use count as absent.
func (f Found) Budget(kinds policy.Devices) map[policy.Devices]int64 {
	out := map[policy.Devices]int64{}
	for _, d := range f.Used() { // the processor is the first
		switch {
		case d.Kind == cpu:
			out[policy.CPU] = d.Total / 5 * 4
		case kinds.Has(policy.GPU):
			lent := min(d.Shared/10*9, out[policy.CPU]/5*4)
			out[policy.GPU] += d.ownBudget() + lent
			out[policy.CPU] -= lent
		}
	}
	return out
}

// ownBudget returns how much of a GPU's own memory models can take.
func (d *Device) ownBudget() int64 {
	own := d.Total - d.Shared
	return max(own-max(own/10, minMargin), 0)
}

// Used returns the processor and the GPUs whose memory is known and counts: all that have their own memory, or else the
// one with the most. Like llama-server, it ignores a processor's GPU if there is a graphics card.
func (f Found) Used() (out []Device) {
	var largest Device
	for _, d := range f.Devices {
		switch {
		case d.Total == 0 || d.Kind == npu:
		case d.Shared == 0:
			out = append(out, d)
		case d.Total > largest.Total:
			largest = d
		}
	}
	if largest.Total > 0 && (len(out) == 0 || out[len(out)-1].Kind == cpu) {
		out = append(out, largest)
	}
	return out
}
