package manage

import (
	"bufio"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/shirou/gopsutil/v4/cpu"
	"github.com/shirou/gopsutil/v4/host"
	"github.com/shirou/gopsutil/v4/mem"
	"github.com/valyala/fasthttp"

	"reveille/gateway/web"
	"reveille/infra/catalog"
	"reveille/infra/policy"
	"reveille/infra/recipe"
	"reveille/infra/state"
)

// systemReport is the response of GET /system-info: this machine, and what the pool's hosts can run.
type systemReport struct {
	OS        string                `json:"OS Version"`
	Processor string                `json:"Processor"`
	Memory    string                `json:"Physical Memory"`
	Devices   map[string]any        `json:"devices"`
	Recipes   map[string]recipeInfo `json:"recipes"`
	Runners   []runnerInfo          `json:"runners"`
}

type cpuInfo struct {
	Name      string `json:"name"`
	Cores     int    `json:"cores"`
	Threads   int    `json:"threads"`
	Available bool   `json:"available"`
}

type device struct {
	Name      string `json:"name"`
	Available bool   `json:"available"`
}

type recipeInfo struct {
	Default  string                 `json:"default_backend"`
	Backends map[string]backendInfo `json:"backends"`
}

type backendInfo struct {
	Devices []string `json:"devices"`
	State   string   `json:"state"`
	Message string   `json:"message"`
	Action  string   `json:"action"`
}

// SystemInfo is GET /system-info, in Lemonade's form. It knows only that a host has a GPU, not which kind.
func (s *Service) SystemInfo(r *web.Request) error {
	snap, _ := s.dir.Fresh()
	cat := s.cfg.Catalog()
	have := poolDevices(snap, cat)
	npu := device{Name: "NPU", Available: have.Has(policy.NPU)}
	processor := readCPU()
	out := systemReport{
		OS: osVersion(), Processor: processor.Name, Memory: "unknown", Recipes: map[string]recipeInfo{}, Runners: runnersOf(snap, cat),
		Devices: map[string]any{
			"cpu": processor, "amd_gpu": []device{}, "nvidia_gpu": nvidia(), "amd_npu": npu,
			"amd_igpu": device{}, "amd_dgpu": []device{}, "npu": npu, // names that older clients know
		},
	}
	if m, err := mem.VirtualMemory(); err == nil {
		out.Memory = fmt.Sprintf("%.2f GB", float64(m.Total)/1e9)
	}
	inUse := map[string]bool{}
	for _, m := range everyLoaded(snap) {
		inUse[m.Recipe] = true
	}
	for name, rc := range cat.Recipes {
		out.Recipes[name] = recipeReport(&rc, have, inUse[name] || s.cfg.Installed(&rc))
	}
	if !r.Manages() {
		redactRunners(out.Runners)
	}
	return r.Reply(fasthttp.StatusOK, out)
}

// poolDevices returns the devices that any host of the pool has.
func poolDevices(snap *state.Snapshot, cat *catalog.Catalog) policy.Devices {
	have := policy.Devices(0)
	for _, h := range cat.Hosts {
		have |= h.Devices
	}
	for _, h := range snap.Hosts {
		d, _ := policy.ParseDevices(h.Devices) // a runner of another version may report more
		have |= d
	}
	return have
}

// recipeReport describes a recipe's backends. A recipe without a choice has a single backend, named after its devices.
func recipeReport(rc *recipe.Recipe, have policy.Devices, found bool) recipeInfo {
	out := recipeInfo{Backends: map[string]backendInfo{}}
	add := func(name string, needs policy.Devices) {
		b := backendInfo{Devices: strings.Fields(needs.String()), State: "installed"}
		switch {
		case !have.Has(needs):
			b.State, b.Message = "unsupported", "no host of the pool has the device"
		case !found:
			b.State, b.Message, b.Action = "installable", "the engine's program was not found", "install "+path.Base(rc.Program())+" on the hosts"
		}
		out.Backends[name] = b
		if b.State == "installed" && out.Default == "" {
			out.Default = name
		}
	}
	for _, name := range slices.Sorted(maps.Keys(rc.Backends)) {
		add(name, rc.Backends[name].Devices)
	}
	if len(rc.Backends) == 0 {
		name := rc.Devices.String()
		if name == "" {
			name = "default"
		}
		add(name, rc.Devices)
	}
	if out.Default == "" {
		out.Default = slices.Min(slices.Collect(maps.Keys(out.Backends)))
	}
	return out
}

// inPath reports whether a recipe's program is in PATH.
func inPath(rc *recipe.Recipe) bool {
	_, err := exec.LookPath(rc.Program())
	return err == nil
}

func readCPU() cpuInfo {
	out := cpuInfo{Name: runtime.GOARCH, Cores: runtime.NumCPU(), Threads: runtime.NumCPU(), Available: true}
	if infos, err := cpu.Info(); err == nil && len(infos) > 0 && infos[0].ModelName != "" {
		out.Name = infos[0].ModelName
	}
	if n, err := cpu.Counts(false); err == nil && n > 0 {
		out.Cores = min(n, out.Threads)
	}
	return out
}

// osVersion is the system's name for people.
func osVersion() string {
	if name, _, version, err := host.PlatformInformation(); err == nil && name != "" {
		return strings.TrimSpace(name + " " + version)
	}
	return runtime.GOOS + " " + runtime.GOARCH
}

// nvidia lists the GPUs that NVIDIA's Linux driver reports.
func nvidia() []device {
	out := []device{}
	files, _ := filepath.Glob("/proc/driver/nvidia/gpus/*/information") // the pattern is valid
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			continue
		}
		for sc := bufio.NewScanner(f); sc.Scan(); {
			if model, found := strings.CutPrefix(sc.Text(), "Model:"); found {
				out = append(out, device{Name: strings.TrimSpace(model), Available: true})
			}
		}
		_ = f.Close()
	}
	return out
}
