package app

import (
	"path/filepath"

	"github.com/shirou/gopsutil/v4/mem"

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
	m, err := mem.VirtualMemory()
	if err != nil {
		return 0
	}
	return int64(m.Total)
}
