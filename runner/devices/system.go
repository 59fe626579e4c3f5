package devices

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"path"
	"regexp"
	"strconv"
	"strings"
)

const sourceSMI = "nvidia-smi"

func (c *Config) nvidiaSMI(ctx context.Context) ([]Device, error) {
	text, err := c.Run(ctx, sourceSMI, "--query-gpu=index,name,memory.total,memory.free", "--format=csv,noheader,nounits")
	if len(text) == 0 && err != nil {
		return nil, err
	}
	out := parseSMI(string(text), c.Memory) // on failure the reason is in the same output
	for i := range out {
		if _, set := c.lookup(visibleCUDA); set { // nvidia-smi ignores it
			out[i].API, out[i].Visible = "", ""
		}
	}
	if len(out) == 0 {
		first, _, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
		return nil, errors.New("prints no GPU: " + first)
	}
	return out, nil
}

// parseSMI reads lines of "INDEX, NAME, TOTAL, FREE", in MiB. A size that it cannot read, such as [N/A], is unknown;
// for a chip whose GPU uses the main memory it is that memory.
func parseSMI(text string, memory int64) (out []Device) {
	for line := range strings.Lines(text) {
		f := strings.Split(strings.TrimSpace(line), ", ")
		if len(f) != 4 {
			continue
		}
		if _, err := strconv.ParseUint(f[0], 10, 16); err != nil {
			continue
		}
		d := Device{Name: f[1], Total: mebibytes(f[2]), Free: mebibytes(f[3]), Source: sourceSMI, API: CUDA, Visible: f[0]}
		if nvidiaSoC.MatchString(d.Name) {
			d.Total, d.Shared = memory, memory
		}
		out = append(out, d)
	}
	return out
}

func mebibytes(text string) int64 {
	n, err := strconv.ParseUint(text, 10, 30)
	if err != nil {
		return 0
	}
	return int64(n) << 20
}

var drmCard = regexp.MustCompile(`/card[0-9]+/device/`) // a card's connectors have names like card1-DP-2

// largestCarveout is the maximum memory that a processor's firmware reserves for its GPU by default. Cards that run
// models have more.
const largestCarveout = 2 << 30

// amdGPUs returns the GPUs of the driver amdgpu by its files in /sys. A GPU with little reserved memory is part of a
// processor and uses main memory (GTT).
func (c *Config) amdGPUs() (out []Device) {
	found, _ := fs.Glob(c.Files, "sys/class/drm/card*/device/mem_info_vram_total")
	for _, file := range found[:min(len(found), maxDevices)] {
		dir := path.Dir(file)
		vram, err := strconv.ParseInt(c.read(file), 10, 62)
		if !drmCard.MatchString(file) || err != nil || vram <= 0 {
			continue
		}
		number := func(name string) int64 {
			n, _ := strconv.ParseInt(c.read(dir+"/"+name), 10, 60)
			return max(n, 0)
		}
		d := Device{Name: c.read(dir + "/product_name"), Total: vram, Free: vram - number("mem_info_vram_used"), Source: "amdgpu"}
		if d.Name == "" {
			d.Name = "AMD " + c.read(dir+"/device")
		}
		if gtt := number("mem_info_gtt_total"); vram <= largestCarveout && gtt > vram {
			d.Total, d.Shared = vram+gtt, gtt
			d.Free += gtt - number("mem_info_gtt_used")
		}
		out = append(out, d)
	}
	return out
}

// gpuNodes finds GPUs by device files, without their memory. It reports only one, because a GPU may have several
// files.
func (c *Config) gpuNodes() []Device {
	for _, pattern := range []string{"dev/nvidia[0-9]*", "dev/kfd", "dev/dri/renderD*"} {
		if found, _ := fs.Glob(c.Files, pattern); len(found) > 0 {
			return []Device{{Source: "/" + found[0]}}
		}
	}
	return nil
}

// npus finds NPUs by their device files, and their drivers by /sys: amdxdna (AMD), intel_vpu or ivpu (Intel).
func (c *Config) npus() (a sourceResult) {
	accel, _ := fs.Glob(c.Files, "dev/accel/accel[0-9]*")
	neuron, _ := fs.Glob(c.Files, "dev/neuron[0-9]*")
	for _, node := range accel {
		driver := ""
		for line := range strings.Lines(c.read("sys/class/accel/" + path.Base(node) + "/device/uevent")) {
			if name, ok := strings.CutPrefix(strings.TrimSpace(line), "DRIVER="); ok {
				driver = name
			}
		}
		a.devices = append(a.devices, Device{Name: driver, Source: "/" + node})
	}
	for _, node := range neuron {
		a.devices = append(a.devices, Device{Name: "AWS Neuron", Source: "/" + node})
	}
	if len(a.devices) == 0 {
		a.addReason("device files", "none in /dev/accel, no /dev/neuron*")
	}
	return a
}

// read returns the start of a small file without surrounding space, "" if it cannot be read.
func (c *Config) read(name string) string {
	f, err := c.Files.Open(name)
	if err != nil {
		return ""
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, 4<<10))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}
