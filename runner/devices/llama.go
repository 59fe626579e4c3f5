package devices

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"
)

const sourceLlama = "llama-server"

// deviceLine matches a GPU in `llama-server --list-devices`: "  CUDA0: NVIDIA GeForce RTX 3090 (24135 MiB, 23846 MiB
// free)". It does not match processors, BLAS libraries and other machines (RPC).
var deviceLine = regexp.MustCompile(`^\s+((CUDA|ROCm|MUSA|SYCL|Vulkan|GPUOpenCL|MTL|Metal)\d*): (.+) \((\d{1,9}) MiB, (\d{1,9}) MiB free\)\s*$`)

// llamaServer lists the GPUs that the engine reports. nil without an error means that it runs and lists no GPU.
func (c *Config) llamaServer(ctx context.Context) ([]Device, error) {
	if c.LlamaServer == "" {
		return nil, errors.New(c.NoServer)
	}
	text, err := c.Run(ctx, c.LlamaServer, "--list-devices")
	if err != nil {
		return nil, err
	}
	listed, err := parseListDevices(string(text))
	if err != nil {
		return nil, err
	}
	cards := c.amdGPUs()
	for i := range listed {
		listed[i].Shared = c.sharedMemory(&listed[i], cards)
		c.setVisible(&listed[i])
	}
	return listed, nil
}

// parseListDevices reads the output of `llama-server --list-devices`. A build with several backends lists a GPU under
// each. It leaves out those of Vulkan and OpenCL if the vendor's own backend, which the engine prefers, has GPUs.
func parseListDevices(text string) ([]Device, error) {
	_, list, ok := strings.Cut("\n"+text, "\nAvailable devices:")
	if !ok {
		return nil, errors.New("--list-devices prints no list")
	}
	var out, portable []Device
	for line := range strings.Lines(list) {
		m := deviceLine.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		d := Device{Name: m[3], Total: mebibytes(m[4]), Free: mebibytes(m[5]), Source: sourceLlama, API: strings.ToLower(m[2]), Visible: m[1]}
		if m[2] == "Vulkan" || m[2] == "GPUOpenCL" {
			portable = append(portable, d)
		} else {
			out = append(out, d)
		}
	}
	native := out
	for _, d := range portable {
		if !slices.ContainsFunc(native, func(o Device) bool { return vendor(o.Name) == vendor(d.Name) }) {
			out = append(out, d)
		}
	}
	return out, nil
}

// vendor returns the vendor of a GPU with that name, "" if unknown.
func vendor(name string) string {
	for _, v := range [...]struct{ word, vendor string }{
		{"NVIDIA", nvidia}, {"GeForce", nvidia}, {"Quadro", nvidia}, {"Tesla", nvidia},
		{"AMD", amd}, {"Radeon", amd}, {"Intel", intel}, {"Apple", apple},
	} {
		if strings.Contains(name, v.word) {
			return v.vendor
		}
	}
	return ""
}

const (
	nvidia = "nvidia"
	amd    = "amd"
	intel  = "intel"
	apple  = "apple"
)

var (
	// intelCard matches Intel's GPUs with their own memory; the others are part of a processor.
	intelCard = regexp.MustCompile(`(?i)Arc(\(TM\))? (Pro )?[AB]\d|Data Center|DG1`)
	// nvidiaSoC matches NVIDIA's chips whose GPU has no separate memory: DGX Spark and the Jetsons.
	nvidiaSoC = regexp.MustCompile(`GB10\b|Orin|Thor|Xavier|Tegra`)
)

// sharedMemory returns the part of a GPU's memory that is the machine's main memory. For Apple, Intel and NVIDIA the
// name decides. AMD's processors reserve a part of the memory for their GPU, which the system does not count as main
// memory. amdgpu reports that part as VRAM, as for a card, and the rest is shared.
func (c *Config) sharedMemory(d *Device, cards []Device) int64 {
	switch v := vendor(d.Name); {
	case v == apple, v == intel && !intelCard.MatchString(d.Name), v == nvidia && nvidiaSoC.MatchString(d.Name):
		return d.Total
	case v == amd:
		own := int64(-1)
		for _, card := range cards {
			if vram := card.Total - card.Shared; vram <= d.Total+d.Total/50 {
				own = max(own, vram)
			}
		}
		if rest := d.Total - own; own >= 0 && rest > d.Total/20 {
			return rest
		}
	}
	return 0
}
