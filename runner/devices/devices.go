package devices

import (
	"context"
	"fmt"
	"io/fs"
	"strings"

	"reveille/infra/catalog"
	"reveille/infra/policy"
	"reveille/infra/term"
)

// Bounds on the input from the sources.
const (
	maxDevices = 64  // per machine
	maxName    = 64  // bytes of a device's name
	maxReason  = 160 // bytes of a reason
)

// The kinds of device, as in package policy.
const (
	cpu = "cpu"
	gpu = "gpu"
	npu = "npu"
)

// A Device is one device of a machine. Its texts are short and on one line. Sizes are in bytes, 0 if the source does
// not report them.
type Device struct {
	Kind   string `json:"kind"`            // cpu, gpu or npu
	Index  int    `json:"index"`           // among those of its kind, from 0
	Name   string `json:"name,omitempty"`  // the source's name for it
	Total  int64  `json:"total,omitempty"` // memory that it can use
	Free   int64  `json:"free,omitempty"`
	Shared int64  `json:"shared,omitempty"` // part of Total that is also the machine's main memory
	Source string `json:"source"`           // what reported it

	// API and Visible select a GPU for an engine: by its name in llama-server ("Vulkan1"), or for CUDA and ROCm by an
	// entry of CUDA_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES. Both are empty if it cannot be selected.
	API     string `json:"-"` // cuda, rocm, vulkan, sycl, …
	Visible string `json:"-"`
}

// Found is a machine's devices, and what was not found.
type Found struct {
	Devices []Device `json:"devices"`
	Missing []string `json:"missing,omitempty"` // "KIND: SOURCE: reason; …", of the sources that found nothing
}

// Config configures Detect. The zero value finds a processor and nothing else.
type Config struct {
	Kinds  policy.Devices // kinds to detect in addition to the processor
	Memory int64          // of the machine, in bytes
	Free   int64          // the free part of Memory, 0 if unknown
	Apple  bool           // the machine has Apple's own processor
	Files  fs.FS          // the system's files: os.DirFS("/")
	// LlamaServer is the program's path. If it is empty, NoServer is the reason.
	LlamaServer, NoServer string
	// Run runs a program and returns its output, in bounded time and size: see [Command]. The name nvidia-smi is
	// searched for in PATH.
	Run func(ctx context.Context, program string, args ...string) ([]byte, error)
	// LookupEnv reads the environment that engines inherit; nil: it is empty.
	LookupEnv func(name string) (value string, set bool)
}

// Detect finds the devices of this machine. It takes at most the time limit of each of two commands.
func Detect(ctx context.Context, cfg Config) Found {
	f := Found{Devices: []Device{{Kind: cpu, Total: cfg.Memory, Free: cfg.Free, Source: "system"}}}
	if cfg.Kinds.Has(policy.GPU) {
		f.add(gpu, cfg.gpus(ctx))
	}
	if cfg.Kinds.Has(policy.NPU) {
		f.add(npu, cfg.npus())
	}
	return f
}

// sourceResult is what the sources report for one kind: devices, and why some sources found none.
type sourceResult struct {
	devices []Device
	reasons []string
}

func (a *sourceResult) addReason(source, reason string) {
	a.reasons = append(a.reasons, source+": "+reason)
}

func (f *Found) add(kind string, a sourceResult) {
	if len(a.reasons) > 0 {
		f.Missing = append(f.Missing, term.Line(kind+": "+strings.Join(a.reasons, "; "), 4*maxReason))
	}
	for i, d := range a.devices[:min(len(a.devices), maxDevices)] {
		d.Kind, d.Index, d.Name, d.Source = kind, i, term.Line(d.Name, maxName), term.Line(d.Source, maxName)
		d.Free = min(d.Free, d.Total)
		f.Devices = append(f.Devices, d)
	}
}

// gpus queries one source after the other until one finds a GPU. A GPU that only the system reports and that has no
// separate memory, as in most desktop processors, counts only if llama-server cannot be queried. Otherwise the main
// memory stays the processor's.
func (c *Config) gpus(ctx context.Context) (a sourceResult) {
	listed, err := c.llamaServer(ctx)
	if len(listed) > 0 {
		return sourceResult{devices: listed}
	}
	useIntegrated := err != nil
	if err == nil {
		a.addReason(sourceLlama, "lists none")
	} else {
		a.addReason(sourceLlama, term.Line(err.Error(), maxReason))
	}
	if found, err := c.nvidiaSMI(ctx); err != nil {
		a.addReason(sourceSMI, term.Line(err.Error(), maxReason))
	} else if a.devices = found; len(found) > 0 {
		return a
	}
	for _, card := range c.amdGPUs() {
		if card.Shared == 0 || useIntegrated {
			a.devices = append(a.devices, card)
		}
	}
	if c.Apple && useIntegrated {
		a.devices = append(a.devices, Device{Name: "Apple", Total: c.Memory / 3 * 2, Shared: c.Memory / 3 * 2, Source: "system"}) // the minimum that macOS allows the GPU
	}
	if len(a.devices) == 0 {
		a.devices = c.gpuNodes()
	}
	if len(a.devices) == 0 {
		a.addReason("device files", "none")
	}
	return a
}

// Kinds returns the kinds of device that were found.
func (f Found) Kinds() (d policy.Devices) {
	for _, one := range f.Devices {
		kind, _ := policy.ParseDevices(one.Kind)
		d |= kind
	}
	return d
}

// String describes the devices in one line, equal ones together: "cpu 62.7 GiB; gpu 2 × NVIDIA GeForce RTX 3090 23.6
// GiB (llama-server)".
func (f Found) String() string {
	var out []string
	for left := f.Devices; len(left) > 0; {
		d, n := left[0], 1
		for n < len(left) && left[n].Kind == d.Kind && left[n].Name == d.Name && left[n].Total == d.Total && left[n].Source == d.Source {
			n++
		}
		words := []string{d.Kind}
		if n > 1 {
			words = append(words, fmt.Sprintf("%d ×", n))
		}
		if d.Name != "" {
			words = append(words, d.Name)
		}
		if d.Total > 0 {
			words = append(words, catalog.FormatSize(d.Total))
		}
		if d.Kind != cpu {
			words = append(words, "("+d.Source+")")
		}
		out, left = append(out, strings.Join(words, " ")), left[n:]
	}
	return strings.Join(out, "; ")
}
