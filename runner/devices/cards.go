package devices

import (
	"slices"
	"strconv"
	"strings"

	"reveille/infra/policy"
)

// The APIs whose GPUs engines find in an environment variable. With other APIs, engines get the names that
// llama-server gives the GPUs.
const (
	CUDA = "cuda"
	ROCm = "rocm"
)

const (
	visibleCUDA = "CUDA_VISIBLE_DEVICES"
	visibleROCm = "HIP_VISIBLE_DEVICES"
)

func (c *Config) lookup(name string) (value string, set bool) {
	if c.LookupEnv == nil {
		return "", false
	}
	return c.LookupEnv(name)
}

// setVisible turns llama-server's name of a GPU into its entry in the API's variable. llama-server numbers the GPUs
// that the variable shows it, so the entry is the one with that number in the runner's own variable, if that is set.
func (c *Config) setVisible(d *Device) {
	var entries string
	var set bool
	switch d.API {
	case CUDA:
		entries, set = c.lookup(visibleCUDA)
	case ROCm: // HIP reads the other one if its own is empty
		if entries, set = c.lookup(visibleROCm); entries == "" {
			entries, set = c.lookup(visibleCUDA)
		}
	default:
		return
	}
	d.Visible = d.Visible[len(d.API):]
	if !set {
		return
	}
	list := strings.Split(entries, ",")
	n, err := strconv.Atoi(d.Visible)
	if err != nil || n >= len(list) || strings.TrimSpace(list[n]) == "" {
		d.API, d.Visible = "", ""
		return
	}
	d.Visible = strings.TrimSpace(list[n])
}

// API returns the API by which engines choose among the GPUs whose memory counts, "" if they cannot choose.
func (f Found) API() string {
	api := ""
	for i, d := range f.gpus() {
		if i > 0 && d.API != api {
			return ""
		}
		api = d.API
	}
	return api
}

// gpus returns the GPUs whose memory counts.
func (f Found) gpus() []Device {
	return slices.DeleteFunc(f.Used(), func(d Device) bool { return d.Kind != gpu })
}

// GPUMemory returns the budgets of the GPUs, which add up to that of [Found.Budget]. It returns nil if engines cannot
// be restricted to single GPUs.
func (f Found) GPUMemory(kinds policy.Devices) policy.GPUMemory {
	if f.API() == "" || !kinds.Has(policy.GPU) {
		return nil
	}
	out := policy.GPUMemory{}
	for _, d := range f.gpus() {
		if d.Index >= policy.MaxGPUs {
			return nil
		}
		if out[d.Index] = d.ownBudget(); d.Shared > 0 { // then it is the only one
			out[d.Index] = f.Budget(kinds)[policy.GPU]
		}
	}
	return out
}

// GPUTotals returns the memory of each GPU in bytes.
func (f Found) GPUTotals() policy.GPUMemory {
	out := policy.GPUMemory{}
	for _, d := range f.gpus() {
		out[d.Index] = d.Total
	}
	return out
}

// Select returns how to start an engine on some of the GPUs: environment variables, or names for llama-server's
// --device. It returns neither if these are all GPUs that count.
func (f Found) Select(cards policy.GPUMemory) (env map[string]string, names string) {
	var entries []string
	var chosen Device
	all := f.gpus()
	for _, d := range all {
		if _, ok := cards[d.Index]; ok {
			entries, chosen = append(entries, d.Visible), d
		}
	}
	if len(entries) == 0 || len(entries) == len(all) {
		return nil, ""
	}
	list := strings.Join(entries, ",")
	switch {
	case chosen.API == ROCm:
		return map[string]string{visibleROCm: list}, ""
	case chosen.API == CUDA && chosen.Source == sourceSMI:
		return map[string]string{visibleCUDA: list, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, ""
	case chosen.API == CUDA:
		return map[string]string{visibleCUDA: list}, ""
	}
	return nil, list
}
