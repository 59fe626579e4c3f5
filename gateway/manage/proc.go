package manage

import (
	"bufio"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/shirou/gopsutil/v4/cpu"
	"github.com/shirou/gopsutil/v4/host"
	"github.com/shirou/gopsutil/v4/mem"
	"github.com/valyala/fasthttp"

	"reveille/gateway/web"
)

// Facts about this machine from the operating system. Unknown values are left out of the answers.

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

func memoryText() string {
	m, err := mem.VirtualMemory()
	if err != nil {
		return "unknown"
	}
	return fmt.Sprintf("%.2f GB", float64(m.Total)/1e9)
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

// cpuMeter measures how busy the processors were between two readings. The zero value is ready.
type cpuMeter struct {
	mu      sync.Mutex
	at      time.Time
	percent *float64
}

const (
	cpuEvery  = time.Second            // a reading this recent is reused
	cpuSample = 100 * time.Millisecond // the first reading takes this long
)

// read returns the busy share since the last reading, in percent; nil if unknown.
func (c *cpuMeter) read() *float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.at) < cpuEvery {
		return c.percent
	}
	interval := time.Duration(0) // since the last call
	if c.at.IsZero() {
		interval = cpuSample
	}
	p, err := cpu.Percent(interval, false)
	if err != nil || len(p) != 1 {
		return nil
	}
	share := math.Round(p[0]*10) / 10
	c.percent, c.at = &share, time.Now()
	return c.percent
}

type loadReport struct {
	CPU    *float64 `json:"cpu_percent"`
	Memory *float64 `json:"memory_gb"` // in use
	GPU    *float64 `json:"gpu_percent"`
	VRAM   *float64 `json:"vram_gb"`
	NPU    *float64 `json:"npu_percent"`
}

// systemStats reports how busy this machine is. null means unknown here.
func (s *Service) systemStats(r *web.Request) error {
	out := loadReport{CPU: s.cpu.read()}
	if m, err := mem.VirtualMemory(); err == nil {
		gb := math.Round(float64(m.Total-m.Available)/1e7) / 100
		out.Memory = &gb
	}
	return r.Reply(fasthttp.StatusOK, out)
}
