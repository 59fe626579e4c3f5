package placement

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"reveille/infra/policy"
	"reveille/infra/state"
)

// NeedField is the prefix of a host's fields that hold the needs known to its runner, by model.
const NeedField = "need:"

// Need is the memory that a load takes on its host, as known to its runner: measured, or estimated from the model's
// files.
type Need struct {
	Bytes  int64          `json:"bytes"`
	Device policy.Devices `json:"-"`
	Parts  string         `json:"parts,omitempty"` // what Bytes consists of, as text
	Digest string         `json:"of"`              // the load's digest: the need does not apply to other loads
	Until  int64          `json:"until,omitempty"` // ms since the epoch after which it does not apply, 0 for never
}

// needJSON is the JSON of a Need, with the device as text.
type needJSON struct {
	plainNeed
	Device string `json:"device"`
}

type plainNeed Need

// String returns the JSON of a host's field.
func (n Need) String() string {
	text, _ := json.Marshal(needJSON{plainNeed(n), n.Device.String()}) // strings and numbers always marshal
	return string(text)
}

// readNeed returns the need of a model's load that a host's runner knows, by the load's digest. It is zero if none
// applies at now, in ms since the epoch.
func readNeed(h *state.HostRecord, model, digest string, now int64) Need {
	text := h.Fields[NeedField+model]
	if text == "" {
		return Need{}
	}
	var n needJSON
	if json.Unmarshal([]byte(text), &n) != nil || n.Bytes < 0 || n.Bytes > maxBytes || n.Digest != digest || n.Until != 0 && n.Until < now {
		return Need{}
	}
	out := Need(n.plainNeed)
	out.Device, _ = policy.ParseDevices(n.Device)
	return out
}

// FormatMemory writes bytes by device and by single GPU: "cpu=25769803776 gpu=21474836480 gpu:0=21474836480".
func FormatMemory(by map[policy.Devices]int64, gpus policy.GPUMemory) string {
	var out []string
	for _, d := range []policy.Devices{policy.CPU, policy.GPU, policy.NPU} {
		if n := by[d]; n > 0 {
			out = append(out, fmt.Sprintf("%s=%d", d, n))
		}
	}
	for _, gpu := range slices.Sorted(maps.Keys(gpus)) {
		out = append(out, fmt.Sprintf("gpu:%d=%d", gpu, gpus[gpu]))
	}
	return strings.Join(out, " ")
}

// maxBytes bounds each size that is read, so that sums cannot overflow.
const maxBytes = 1 << 50

// ParseMemory reads FormatMemory's output. It skips invalid parts: those devices have no limit. Each map is nil if it
// would be empty.
func ParseMemory(text string) (by map[policy.Devices]int64, gpus policy.GPUMemory) {
	for f := range strings.FieldsSeq(text) {
		name, value, _ := strings.Cut(f, "=")
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil || n < 0 || n > maxBytes {
			continue
		}
		if index, isGPU := strings.CutPrefix(name, "gpu:"); isGPU {
			if gpu, err := strconv.ParseUint(index, 10, 8); err == nil && gpu < policy.MaxGPUs {
				if gpus == nil {
					gpus = policy.GPUMemory{}
				}
				gpus[int(gpu)] = n
			}
		} else if d, err := policy.ParseDevices(name); err == nil && n > 0 {
			if by == nil {
				by = map[policy.Devices]int64{}
			}
			by[d] = n
		}
	}
	return by, gpus
}
