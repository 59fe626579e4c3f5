package httpapi

import (
	"bufio"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/valyala/fasthttp"
)

// What Linux tells of the machine in /proc. Elsewhere these files are missing, and what they would tell is unknown.

// procLines reads the "key: value" lines of a file of /proc; nil when there is none.
func procLines(path, sep string) [][2]string {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	var out [][2]string
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if k, v, found := strings.Cut(sc.Text(), sep); found {
			out = append(out, [2]string{strings.TrimSpace(k), strings.TrimSpace(v)})
		}
	}
	return out
}

func readCPU() cpuInfo {
	out := cpuInfo{Name: runtime.GOARCH, Cores: runtime.NumCPU(), Threads: runtime.NumCPU(), Available: true}
	cores := map[string]bool{}
	socket := ""
	for _, kv := range procLines("/proc/cpuinfo", ":") {
		switch kv[0] {
		case "model name":
			out.Name = kv[1]
		case "physical id":
			socket = kv[1]
		case "core id":
			cores[socket+"/"+kv[1]] = true
		}
	}
	if len(cores) > 0 {
		out.Cores = min(len(cores), out.Threads)
	}
	return out
}

// memory is the machine's memory and what of it is in use, in bytes; ok is false when unknown.
func memory() (total, used float64, ok bool) {
	free := 0.0
	for _, kv := range procLines("/proc/meminfo", ":") {
		kib, err := strconv.ParseFloat(strings.TrimSuffix(kv[1], " kB"), 64)
		if err != nil {
			continue
		}
		switch kv[0] {
		case "MemTotal":
			total = kib * 1024
		case "MemAvailable":
			free = kib * 1024
		}
	}
	return total, total - free, total > 0
}

func memoryText() string {
	total, _, known := memory()
	if !known {
		return "unknown"
	}
	return fmt.Sprintf("%.2f GB", total/1e9)
}

func releaseName() string {
	for _, kv := range procLines("/etc/os-release", "=") {
		if kv[0] == "PRETTY_NAME" {
			return strings.Trim(kv[1], `"`)
		}
	}
	return ""
}

func nvidiaNames() []string {
	var out []string
	files, _ := filepath.Glob("/proc/driver/nvidia/gpus/*/information") // the pattern is right
	for _, f := range files {
		for _, kv := range procLines(f, ":") {
			if kv[0] == "Model" {
				out = append(out, kv[1])
			}
		}
	}
	return out
}

// cpuMeter tells how busy the processors were between two readings. The zero value is ready.
type cpuMeter struct {
	mu          sync.Mutex
	busy, total float64 // at the last reading
	at          time.Time
	percent     *float64
}

const (
	cpuEvery  = time.Second            // a reading this young is told again
	cpuSample = 100 * time.Millisecond // the first answer looks at this long
)

// read is the share of time since the last reading, in percent; nil when unknown.
func (c *cpuMeter) read() *float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.at) < cpuEvery {
		return c.percent
	}
	busy, total, known := cpuTimes()
	if !known {
		return nil
	}
	if c.at.IsZero() {
		c.busy, c.total = busy, total
		time.Sleep(cpuSample)
		if busy, total, known = cpuTimes(); !known {
			return nil
		}
	}
	if total > c.total {
		p := math.Round(1000*(busy-c.busy)/(total-c.total)) / 10
		p = min(max(p, 0), 100)
		c.percent = &p
	}
	c.busy, c.total, c.at = busy, total, time.Now()
	return c.percent
}

// cpuTimes is the time that the processors worked, and that passed, since the start of the machine.
func cpuTimes() (busy, total float64, ok bool) {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0, false
	}
	line, _, _ := strings.Cut(string(data), "\n")
	f := strings.Fields(line)
	if len(f) < 6 || f[0] != "cpu" {
		return 0, 0, false
	}
	for i, text := range f[1:min(len(f), 9)] { // what guests used is part of the others
		n, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return 0, 0, false
		}
		total += n
		if i != 3 && i != 4 { // idle, and waiting for disks
			busy += n
		}
	}
	return busy, total, true
}

type loadReport struct {
	CPU    *float64 `json:"cpu_percent"`
	Memory *float64 `json:"memory_gb"` // in use
	GPU    *float64 `json:"gpu_percent"`
	VRAM   *float64 `json:"vram_gb"`
	NPU    *float64 `json:"npu_percent"`
}

// systemStats tells how busy this machine is; null is what cannot be known here.
func (s *Server) systemStats(r *request) error {
	out := loadReport{CPU: s.cpu.read()}
	if _, used, known := memory(); known {
		gb := math.Round(used/1e7) / 100
		out.Memory = &gb
	}
	return r.reply(fasthttp.StatusOK, out)
}
