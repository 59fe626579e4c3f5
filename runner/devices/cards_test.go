package devices

import (
	"maps"
	"testing"

	"reveille/infra/policy"
)

// Each GPU has a budget, and engines are told which to use in terms of the runner's own environment.
func TestGPUsAreSelectedByTheirAPI(t *testing.T) {
	const head = "Available devices:\n"
	row := card(24000 * mib)
	two := head + rows(2, "  CUDA%d: NVIDIA GeForce RTX 3090 (24000 MiB, 23846 MiB free)\n")
	for _, test := range []struct {
		name    string
		machine machine
		env     map[string]string
		cards   policy.GPUMemory
		select1 map[string]string // the environment for the last GPU alone
		names   string
	}{
		{"one", machine{server: head + "  CUDA0: Quadro P4000 (24000 MiB, 8022 MiB free)\n"}, nil, policy.GPUMemory{0: row}, nil, ""},
		{"two", machine{server: two}, nil, policy.GPUMemory{0: row, 1: row}, map[string]string{"CUDA_VISIBLE_DEVICES": "1"}, ""},
		{"two of more", machine{server: two}, map[string]string{"CUDA_VISIBLE_DEVICES": "3, GPU-8932f937"}, policy.GPUMemory{0: row, 1: row}, map[string]string{"CUDA_VISIBLE_DEVICES": "GPU-8932f937"}, ""},
		{"a variable that shows fewer", machine{server: two}, map[string]string{"CUDA_VISIBLE_DEVICES": "3"}, nil, nil, ""},
		{"rocm", machine{server: head + rows(2, "  ROCm%d: AMD Radeon RX 7900 XTX (24000 MiB, 24518 MiB free)\n")}, nil, policy.GPUMemory{0: row, 1: row}, map[string]string{"HIP_VISIBLE_DEVICES": "1"}, ""},
		{"rocm by the other variable", machine{server: head + rows(2, "  ROCm%d: AMD Radeon RX 7900 XTX (24000 MiB, 24518 MiB free)\n")}, map[string]string{"CUDA_VISIBLE_DEVICES": "2,1"},
			policy.GPUMemory{0: row, 1: row}, map[string]string{"HIP_VISIBLE_DEVICES": "1"}, ""},
		{"vulkan, after a processor's", machine{server: head + "  Vulkan0: Intel(R) UHD Graphics 770 (59675 MiB, 44986 MiB free)\n" +
			"  Vulkan1: NVIDIA GeForce RTX 3090 (24000 MiB, 23846 MiB free)\n  Vulkan2: NVIDIA GeForce RTX 3090 (24000 MiB, 23846 MiB free)\n"},
			map[string]string{"GGML_VK_VISIBLE_DEVICES": "4,2,1"}, policy.GPUMemory{1: row, 2: row}, nil, "Vulkan2"},
		{"nvidia-smi", machine{server: "none", smi: rows(8, "%d, NVIDIA A100 80GB PCIe, 24000, 24000\n")}, nil,
			policy.GPUMemory{0: row, 1: row, 2: row, 3: row, 4: row, 5: row, 6: row, 7: row}, map[string]string{"CUDA_VISIBLE_DEVICES": "7", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, ""},
		{"nvidia-smi, some visible", machine{server: "none", smi: rows(8, "%d, NVIDIA A100 80GB PCIe, 24000, 24000\n")}, map[string]string{"CUDA_VISIBLE_DEVICES": "1"}, nil, nil, ""},
		{"nvidia-smi, none visible", machine{server: "none", smi: rows(2, "%d, NVIDIA A100 80GB PCIe, 24000, 24000\n")}, map[string]string{"CUDA_VISIBLE_DEVICES": ""}, nil, nil, ""},
		{"two kinds", machine{server: head + "  CUDA0: NVIDIA GeForce RTX 3090 (24000 MiB, 23846 MiB free)\n  ROCm0: AMD Radeon RX 7900 XTX (24000 MiB, 24518 MiB free)\n"}, nil, nil, nil, ""},
		{"files", machine{server: "none", files: amdgpu("25753026560", "33285996544", "25753026560", "33285996544")}, nil, nil, nil, ""},
		{"unified", machine{memory: 100 * gib, server: head + "  Metal: Apple M4 Max (98304 MiB, 98303 MiB free)\n"}, nil, policy.GPUMemory{0: 100 * gib / 5 * 4 / 5 * 4}, nil, ""},
		{"none", machine{server: head}, nil, nil, nil, ""},
		{"too many", machine{server: head + rows(17, "  CUDA%d: NVIDIA GeForce RTX 3090 (24000 MiB, 23846 MiB free)\n")}, nil, nil, nil, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.machine.env = test.env
			f := test.machine.detect(t)
			cards := f.GPUMemory(f.Kinds())
			if !maps.Equal(cards, test.cards) || (cards == nil) != (test.cards == nil) {
				t.Fatalf("%v, want %v", cards, test.cards)
			}
			var sum int64
			last := -1
			for card, n := range cards {
				sum, last = sum+n, max(last, card)
			}
			if cards != nil && sum != f.Budget(f.Kinds())[policy.GPU] {
				t.Errorf("sum %d, budget %v", sum, f.Budget(f.Kinds()))
			}
			if f.GPUMemory(policy.CPU) != nil {
				t.Error("GPUs that the host is not to use")
			}
			env, names := f.Select(policy.GPUMemory{last: 1})
			if !maps.Equal(env, test.select1) || names != test.names {
				t.Errorf("told by %v %q, want %v %q", env, names, test.select1, test.names)
			}
			if env, names := f.Select(cards); env != nil || names != "" {
				t.Errorf("all of them: %v %q", env, names)
			}
		})
	}
}
