package engine

import (
	"fmt"
	"testing"
)

func TestBuffersAreSummedUpFromTheLog(t *testing.T) {
	const mib = 1 << 20
	for _, test := range []struct {
		name         string
		lines        []string
		main, device int64
	}{
		{"the pinned build on a processor", []string{
			"0.01.545.281 I load_tensors:   CPU_Mapped model buffer size =   235.50 MiB",
			"0.01.545.283 I load_tensors:   CPU_REPACK model buffer size =    12.50 MiB",
			"0.01.607.874 I llama_context:        CPU  output buffer size =     4.00 MiB",
			"0.01.607.999 I llama_kv_cache:        CPU KV buffer size =    24.00 MiB",
			"0.01.635.185 I llama_kv_cache:        CPU KV buffer size =    37.50 MiB",
			"0.01.731.793 I sched_reserve:        CPU compute buffer size =    28.25 MiB",
			"0.01.635.034 I llama_kv_cache: size =   24.00 MiB (  8192 cells,   3 layers,  4/1 seqs), K (f16):   12.00 MiB, V (f16):   12.00 MiB",
		}, 341*mib + 3*mib/4, 0},
		{"a projector", []string{
			"sched_reserve:        CPU compute buffer size =    22.00 MiB", "reserve_compute_meta:        CPU compute buffer size =     7.00 MiB",
		}, 29 * mib, 0},
		{"a GPU", []string{
			"load_tensors:        CUDA0 model buffer size =  6378.00 MiB", "load_tensors:   CPU_Mapped model buffer size =   500.00 MiB",
			"llama_kv_cache:      CUDA0 KV buffer size =  1152.00 MiB", "llama_context:  CUDA_Host  output buffer size =     1.00 MiB",
			"sched_reserve:      CUDA0 compute buffer size =   126.00 MiB", "sched_reserve:  CUDA_Host compute buffer size =    78.00 MiB",
		}, 579 * mib, 7656 * mib},
		{"reserved twice", []string{
			"sched_reserve:      CUDA0 compute buffer size =   126.00 MiB", "sched_reserve:      CUDA0 compute buffer size =   130.00 MiB",
			"sched_reserve:      CUDA0 compute buffer size =   110.00 MiB",
		}, 0, 130 * mib},
		{"garbage", []string{
			"load_tensors: CPU model buffer size = 99999999999999999999.00 MiB", "x: CPU model buffer size = -1.00 MiB", "CPU model buffer size = 1.00 MiB", "",
		}, 0, 0},
	} {
		var b buffers
		for _, line := range test.lines {
			b.addLine(line)
		}
		if main, device := b.sum(); main != test.main || device != test.device {
			t.Errorf("%s: %d and %d bytes, want %d and %d", test.name, main, device, test.main, test.device)
		}
	}
	var b buffers
	for i := range 10 * maxReservedBuffers {
		b.addLine(fmt.Sprintf("f%d: CPU compute buffer size = 1.00 MiB", i))
	}
	if main, _ := b.sum(); main != maxReservedBuffers*mib {
		t.Errorf("%d bytes of endless buffers", main)
	}
}
