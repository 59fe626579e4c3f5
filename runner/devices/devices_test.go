package devices

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"testing/fstest"
	"unicode/utf8"

	"reveille/infra/policy"
)

const (
	mib = 1 << 20
	gib = 1 << 30
)

// machine is the responses of a test's machine.
type machine struct {
	memory int64
	apple  bool
	server string            // output of llama-server; "none": not installed
	smi    string            // output of nvidia-smi; "": not installed
	files  map[string]string // by path below /
	env    map[string]string // inherited by engines
}

func (m machine) detect(t *testing.T) Found {
	t.Helper()
	fsys := fstest.MapFS{}
	for name, text := range m.files {
		fsys[name] = &fstest.MapFile{Data: []byte(text)}
	}
	cfg := Config{Kinds: policy.GPU | policy.NPU, Memory: m.memory, Apple: m.apple, Files: fsys, LlamaServer: "/opt/llama-server", LookupEnv: func(name string) (string, bool) { v, ok := m.env[name]; return v, ok }}
	if m.server == "none" {
		cfg.LlamaServer, cfg.NoServer = "", "not installed"
	}
	cfg.Run = func(_ context.Context, program string, args ...string) ([]byte, error) {
		switch {
		case program == "/opt/llama-server" && reflect.DeepEqual(args, []string{"--list-devices"}):
			return []byte(m.server), nil
		case program == "nvidia-smi" && m.smi != "":
			return []byte(m.smi), nil
		}
		return nil, errors.New("is not installed")
	}
	return Detect(t.Context(), cfg)
}

// TestDevicesOfManyMachines checks how recorded outputs of real machines, each with its published source, are read, and
// the budgets that follow.
func TestDevicesOfManyMachines(t *testing.T) {
	const empty = "Available devices:\n" // a build for processors
	for _, test := range []struct {
		name    string
		machine machine
		found   string // Found.String
		gpu     int64  // budgets
		cpu     int64
	}{
		{
			// One NVIDIA GPU: ollama/ollama#17766.
			"nvidia", machine{memory: 100 * gib, server: "Available devices:\n  CUDA0: Quadro P4000 (8107 MiB, 8022 MiB free)\n"},
			"cpu 100 GiB; gpu Quadro P4000 7.9 GiB (llama-server)", card(8107 * mib), 80 * gib,
		}, {
			// Two different ones, with lines of the log around the list: ollama/ollama#16508.
			"nvidia, mixed", machine{memory: 100 * gib, server: "0.00.352.296 I cmn  common_param: common_params_print_info: build 1 (b4d6c7d8f) with GNU 13.3.1 for Linux x86_64\n" +
				"Available devices:\n  CUDA0: NVIDIA GeForce RTX 3080 Ti (11909 MiB, 11650 MiB free)\n" +
				"  CUDA1: NVIDIA RTX PRO 4000 Blackwell SFF Edition (24026 MiB, 23795 MiB free)\nggml_cuda_init: found 2 CUDA devices (Total VRAM: 35936 MiB):\n" +
				"  Device 0: NVIDIA GeForce RTX 3080 Ti, compute capability 8.6, VMM: yes, VRAM: 11909 MiB\n"},
			"cpu 100 GiB; gpu NVIDIA GeForce RTX 3080 Ti 11.6 GiB (llama-server); gpu NVIDIA RTX PRO 4000 Blackwell SFF Edition 23.5 GiB (llama-server)",
			card(11909*mib) + card(24026*mib), 80 * gib,
		}, {
			// Eight: the cards of ggml-org/llama.cpp#6017 with the size of modal-labs/modal-client#2797, in
			// nvidia-smi's form.
			"nvidia, eight", machine{memory: 1000 * gib, server: empty, smi: rows(8, "%d, NVIDIA A100 80GB PCIe, 81920, 81037\n")},
			"cpu 1000 GiB; gpu 8 × NVIDIA A100 80GB PCIe 80 GiB (nvidia-smi)", 8 * card(81920*mib), 800 * gib,
		}, {
			"nvidia, eight, by the engine", machine{memory: 1000 * gib, server: empty + rows(8, "  CUDA%d: NVIDIA A100 80GB PCIe (81050 MiB, 80627 MiB free)\n")},
			"cpu 1000 GiB; gpu 8 × NVIDIA A100 80GB PCIe 79.2 GiB (llama-server)", 8 * card(81050*mib), 800 * gib,
		}, {
			// DGX Spark, which does not tell its memory: unslothai/unsloth#10283, XuehaiPan/nvitop#208.
			"nvidia, unified", machine{memory: 120 * gib, server: "none", smi: "0, NVIDIA GB10, [N/A], [N/A]\n"},
			"cpu 120 GiB; gpu NVIDIA GB10 120 GiB (nvidia-smi)", 120 * gib / 5 * 4 / 5 * 4, 120*gib/5*4 - 120*gib/5*4/5*4,
		}, {
			// A card and the processor's own GPU under Vulkan, with the files of ollama/ollama#2411.
			"amd card and apu", machine{memory: 100 * gib, server: empty + "  Vulkan0: AMD Radeon RX 7900 XTX (24560 MiB, 22532 MiB free)\n" +
				"  Vulkan1: AMD Radeon(TM) Graphics (48532 MiB, 46105 MiB free)\n", files: amdgpu("25753026560", "33285996544", "67108864", "33285996544")},
			"cpu 100 GiB; gpu AMD Radeon RX 7900 XTX 24 GiB (llama-server); gpu AMD Radeon(TM) Graphics 47.4 GiB (llama-server)", card(24560 * mib), 80 * gib,
		}, {
			// A build with two backends lists the same card twice.
			"amd, two backends", machine{memory: 100 * gib, server: empty + "  ROCm0: AMD Radeon RX 7900 XTX (24560 MiB, 24518 MiB free)\n" +
				"  Vulkan0: AMD Radeon RX 7900 XTX (RADV NAVI31) (24560 MiB, 23300 MiB free)\n", files: amdgpu("25753026560", "33285996544")},
			"cpu 100 GiB; gpu AMD Radeon RX 7900 XTX 24 GiB (llama-server)", card(24560 * mib), 80 * gib,
		}, {
			// Files alone: a card (ollama/ollama#2411) beside a processor's GPU, and one with as much GTT
			// (Ricks-Lab/gpu-utils#118).
			"amd cards by files", machine{memory: 100 * gib, server: empty, files: amdgpu("25753026560", "33285996544", "67108864", "33285996544", "4294967296", "4294967296")},
			"cpu 100 GiB; gpu AMD 0x744c 24 GiB (amdgpu); gpu AMD 0x744c 4 GiB (amdgpu)", card(25753026560) + card(4294967296), 80 * gib,
		}, {
			// Ryzen AI Max+ 395: ggml-org/llama.cpp#20142, with the size of the files,
			// SikamikanikoBG/homelab-monitor#237.
			"amd apu", machine{memory: 128 * gib, server: "load_backend: loaded RPC backend from /home/corford/src/llama-vulkan/llama-b8204/libggml-rpc.so\n" +
				"ggml_vulkan: Found 1 Vulkan devices:\nggml_vulkan: 0 = AMD Radeon Graphics (RADV GFX1151) (radv) | uma: 1 | fp16: 1 | bf16: 0 | warp size: 64\n" +
				"Available devices:\n  Vulkan0: AMD Radeon Graphics (RADV GFX1151) (127488 MiB, 127340 MiB free)\n", files: amdgpu("536870912", "133143986176")},
			"cpu 128 GiB; gpu AMD Radeon Graphics (RADV GFX1151) 124.5 GiB (llama-server)",
			128 * gib / 5 * 4 / 5 * 4, 128*gib/5*4 - 128*gib/5*4/5*4,
		}, {
			// The same with 64 GiB set aside, which are the GPU's own and unknown to the system.
			"amd apu, carve-out", machine{memory: 62 * gib, server: empty + "  Vulkan0: AMD Radeon 8060S Graphics (RADV STRIX_HALO) (86016 MiB, 83660 MiB free)\n",
				files: amdgpu("68719476736", "21474836480")},
			"cpu 62 GiB; gpu AMD Radeon 8060S Graphics (RADV STRIX_HALO) 84 GiB (llama-server)", card(64*gib) + 20*gib/10*9, 62*gib/5*4 - 20*gib/10*9,
		}, {
			"amd apu by files", machine{memory: 128 * gib, server: "none", files: amdgpu("536870912", "133143986176")},
			"cpu 128 GiB; gpu AMD 0x744c 124.5 GiB (amdgpu)", 128 * gib / 5 * 4 / 5 * 4, 128*gib/5*4 - 128*gib/5*4/5*4,
		}, {
			// An engine that does not use the processor's GPU leaves the memory to the processor.
			"amd apu, engine without gpu", machine{memory: 128 * gib, server: empty, files: map[string]string{
				"sys/class/drm/card1/device/mem_info_vram_total": "536870912\n", "sys/class/drm/card1/device/mem_info_gtt_total": "133143986176\n", "dev/dri/renderD128": "",
			}},
			"cpu 128 GiB; gpu (/dev/dri/renderD128)", 0, 128 * gib / 5 * 4,
		}, {
			// A card and the processor's GPU: the FAQ of docs/backend/SYCL.md of ggml-org/llama.cpp.
			"intel arc", machine{memory: 100 * gib, server: "Available devices:\n    SYCL0: Intel(R) Arc(TM) A770 Graphics (15473 MiB, 15473 MiB free)\n" +
				"    SYCL1: Intel(R) UHD Graphics 770 (59675 MiB, 44986 MiB free)\n"},
			"cpu 100 GiB; gpu Intel(R) Arc(TM) A770 Graphics 15.1 GiB (llama-server); gpu Intel(R) UHD Graphics 770 58.3 GiB (llama-server)", card(15473 * mib), 80 * gib,
		}, {
			// A processor's Arc has no memory of its own: the device of ikawrakow/ik_llama.cpp#1289.
			"intel processor", machine{memory: 32 * gib, server: empty + "  Vulkan0: Intel(R) Arc(TM) 140V GPU (16GB) (18413 MiB, 17645 MiB free)\n"},
			"cpu 32 GiB; gpu Intel(R) Arc(TM) 140V GPU (16GB) 18 GiB (llama-server)", 18413 * mib / 10 * 9, 32*gib/5*4 - 18413*mib/10*9,
		}, {
			// ardanlabs/kronk#10.
			"apple", machine{memory: 128 * gib, apple: true, server: "Available devices:\n  Metal: Apple M4 Max (98304 MiB, 98303 MiB free)\n  BLAS: Accelerate (0 MiB, 0 MiB free)\n"},
			"cpu 128 GiB; gpu Apple M4 Max 96 GiB (llama-server)", 128 * gib / 5 * 4 / 5 * 4, 128*gib/5*4 - 128*gib/5*4/5*4,
		}, {
			"apple without the engine", machine{memory: 24 * gib, apple: true, server: "none"},
			"cpu 24 GiB; gpu Apple 16 GiB (system)", 16 * gib / 10 * 9, 24*gib/5*4 - 16*gib/10*9,
		}, {
			// A Mac whose engine sees no GPU: ggml-org/llama.cpp#14966.
			"apple, engine without gpu", machine{memory: 24 * gib, apple: true, server: empty}, "cpu 24 GiB", 0, 24 * gib / 5 * 4,
		}, {
			"none", machine{memory: 24 * gib, server: empty}, "cpu 24 GiB", 0, 24 * gib / 5 * 4,
		}, {
			// A driver that is not loaded: anderskm/gputil#26. The device files are those of before.
			"garbage", machine{memory: 24 * gib, server: "\x00\xff garbage: (99999999999999999999 MiB, x MiB free)", smi: "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. " +
				"Make sure that the latest NVIDIA driver is installed and running.\n", files: map[string]string{
				"dev/nvidia0": "", "sys/class/drm/card0/device/mem_info_vram_total": "-1\n", "sys/class/drm/card1/device/mem_info_vram_total": "many", "sys/class/drm/card0-DP-1/device/mem_info_vram_total": "4294967296",
			}},
			"cpu 24 GiB; gpu (/dev/nvidia0)", 0, 24 * gib / 5 * 4,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := test.machine.detect(t)
			if got := f.String(); got != test.found {
				t.Errorf("found\n%s, want\n%s", got, test.found)
			}
			near := func(what string, got, want int64) {
				if diff := got - want; diff < -10 || diff > 10 {
					t.Errorf("%s: %d, want %d", what, got, want)
				}
			}
			budget := f.Budget(f.Kinds())
			near("gpu budget", budget[policy.GPU], test.gpu)
			near("cpu budget", budget[policy.CPU], test.cpu)
			if total := f.Totals()[policy.GPU]; total < budget[policy.GPU] {
				t.Errorf("budget %d of a total of %d", budget[policy.GPU], total)
			}
			if alone := f.Budget(policy.CPU); len(alone) != 1 || alone[policy.CPU] != test.machine.memory/5*4 {
				t.Errorf("without the GPU: %v", alone)
			}
			if test.name == "garbage" && !strings.HasPrefix(f.Missing[0], "gpu: llama-server: --list-devices prints no list; nvidia-smi: prints no GPU: NVIDIA-SMI has failed because") {
				t.Errorf("reasons: %q", f.Missing)
			}
			if len(f.Missing) == 0 || !strings.HasPrefix(f.Missing[len(f.Missing)-1], "npu: ") {
				t.Errorf("missing: %q", f.Missing)
			}
		})
	}
}

// card returns what models get of a GPU's own memory.
func card(total int64) int64 { return total - max(total/10, gib) }

// rows returns a line for each index below n.
func rows(n int, format string) string {
	var out strings.Builder
	for i := range n {
		fmt.Fprintf(&out, format, i)
	}
	return out.String()
}

// amdgpu returns the files of GPUs, from the VRAM and GTT of each.
func amdgpu(sizes ...string) map[string]string {
	out := map[string]string{}
	for i := 0; i < len(sizes); i += 2 {
		dir := fmt.Sprintf("sys/class/drm/card%d/device/", i/2+1)
		out[dir+"mem_info_vram_total"], out[dir+"mem_info_gtt_total"], out[dir+"mem_info_vram_used"], out[dir+"device"] = sizes[i]+"\n", sizes[i+1]+"\n", "1048576\n", "0x744c\n"
	}
	return out
}

// NPUs are found by their device files and named by their drivers: Umio-Yasuno/amdgpu_top#120 (amdxdna),
// intel/linux-npu-driver#15 (intel_vpu).
func TestNPUsAreDetectedByTheirFiles(t *testing.T) {
	f := machine{server: "none", files: map[string]string{
		"dev/accel/accel0": "", "sys/class/accel/accel0/device/uevent": "DRIVER=amdxdna\nPCI_CLASS=118000\nPCI_ID=1022:1502\n",
		"dev/accel/accel1": "", "sys/class/accel/accel1/device/uevent": "DRIVER=intel_vpu\n", "dev/accel/accel2": "", "dev/neuron0": "", "dev/neuron_core": "",
	}}.detect(t)
	if got, want := f.String(), "cpu; npu amdxdna (/dev/accel/accel0); npu intel_vpu (/dev/accel/accel1); npu (/dev/accel/accel2); npu AWS Neuron (/dev/neuron0)"; got != want {
		t.Errorf("found %s, want %s", got, want)
	}
	if f.Kinds() != policy.CPU|policy.NPU || f.Devices[4].Index != 3 || len(f.Budget(f.Kinds())) != 0 {
		t.Errorf("%+v", f)
	}
	if got := Detect(t.Context(), Config{Memory: gib}); got.String() != "cpu 1 GiB" || len(got.Missing) != 0 {
		t.Errorf("what was not asked for: %+v", got)
	}
}

// Output of programs reaches logs and terminals: it is bounded, on one line, and without control characters.
func TestInvalidOutputIsIgnored(t *testing.T) {
	long := strings.Repeat("é\x1b[2J\u202e", 5000)
	for name, m := range map[string]machine{
		"names":   {server: "Available devices:\n" + rows(1000, "  CUDA%d: "+long[:4000]+" (8107 MiB, 8022 MiB free)\n")},
		"reasons": {server: long, smi: long},
		"files":   {server: "none", files: map[string]string{"sys/class/drm/card0/device/mem_info_vram_total": "8589934592", "sys/class/drm/card0/device/product_name": long}},
	} {
		f := m.detect(t)
		if len(f.Devices) > 1+maxDevices {
			t.Errorf("%s: %d devices", name, len(f.Devices))
		}
		for _, text := range append(f.Missing, f.Devices[len(f.Devices)-1].Name) {
			if len(text) > 4*maxReason || strings.ContainsAny(text, "\x1b\n\u202e") || !utf8.ValidString(text) {
				t.Errorf("%s: %q", name, text)
			}
		}
	}
}
