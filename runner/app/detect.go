package app

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"

	"reveille/infra/policy"
)

// detect finds this machine's devices by their device files: a processor always, a GPU by the NVIDIA, AMD compute or
// render node, an NPU by an accel node.
func detect() policy.Devices {
	d := policy.CPU
	for _, pattern := range []string{"/dev/nvidia[0-9]*", "/dev/kfd", "/dev/dri/renderD*"} {
		if found, _ := filepath.Glob(pattern); len(found) > 0 {
			d |= policy.GPU
		}
	}
	if found, _ := filepath.Glob("/dev/accel/accel[0-9]*"); len(found) > 0 {
		d |= policy.NPU
	}
	return d
}

// memTotal is the machine's memory in bytes, 0 where the system does not tell.
func memTotal() int64 {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		var kib int64
		if n, _ := fmt.Sscanf(sc.Text(), "MemTotal: %d kB", &kib); n == 1 {
			return kib << 10
		}
	}
	return 0
}
