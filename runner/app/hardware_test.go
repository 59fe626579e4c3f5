package app

import (
	"bytes"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"reveille/infra/policy"
	"reveille/runner/host"
	"reveille/testenv/kit"
)

// What the engine of --engines-dir lists becomes the host's devices and budget, and --devices and --memory-budget
// overrule.
func TestFlagsOverrideDetectedHardware(t *testing.T) {
	dir := t.TempDir()
	program := "#!/bin/sh\n[ \"$1$REVEILLE_RUNNER_SECRET\" = --list-devices ] && echo 'Available devices:\n  CUDA0: Quadro P4000 (8107 MiB, 8022 MiB free)'\n"
	if err := os.WriteFile(filepath.Join(dir, "llama-server"), []byte(program), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("REVEILLE_RUNNER_SECRET", "x") // which programs are not told
	const found, total = 7083 << 20, 8107 << 20
	memory, _ := mainMemory()
	main := memory / 5 * 4
	for _, test := range []struct {
		devices, budget string
		want            map[policy.Devices]int64
		total           int64
	}{
		{"", "", map[policy.Devices]int64{policy.CPU: main, policy.GPU: found}, total},
		{"gpu", "", map[policy.Devices]int64{policy.CPU: main, policy.GPU: found}, total},
		{"cpu", "", map[policy.Devices]int64{policy.CPU: main}, 0},
		{"", "gpu:0=1GiB", map[policy.Devices]int64{policy.CPU: main, policy.GPU: 1 << 30}, total},
		{"", "gpu=4GiB,gpu:0=2GiB", map[policy.Devices]int64{policy.CPU: main, policy.GPU: 2 << 30}, total},
		{"", "gpu:0=2GiB gpu=1GiB npu=5", map[policy.Devices]int64{policy.CPU: main, policy.GPU: 1 << 30, policy.NPU: 5}, total},
	} {
		s := HostSettings{EnginesDir: []string{dir}, MemoryBudget: test.budget}
		p := parsed{}
		var err error
		if p.budget, p.cards, err = budget(test.budget); err != nil {
			t.Fatal(err)
		}
		p.devices, _ = policy.ParseDevices(test.devices)
		var log bytes.Buffer
		var h host.Hardware
		kit.Eventually(t, "an answer within the limit", func() bool {
			log.Reset()
			h = detect(t.Context(), s, p, slog.New(slog.NewTextHandler(&log, nil)))
			return !strings.Contains(log.String(), "does not exit within")
		})
		if (h.Cards != nil) != (test.total > 0 && !strings.HasSuffix(test.budget, "npu=5")) || h.Cards != nil && h.Cards[0] != h.Budget[policy.GPU] {
			t.Errorf("--devices=%s --memory-budget=%q: cards %v", test.devices, test.budget, h.Cards)
		}
		if !maps.Equal(h.Budget, test.want) || h.Totals[policy.GPU] != test.total || h.Totals[policy.CPU] != memory {
			t.Errorf("--devices=%s --memory-budget=%q: budget %v of %v, want %v", test.devices, test.budget, h.Budget, h.Totals, test.want)
		}
		if want := p.devices; want != 0 && h.Devices != want || want == 0 && !h.Devices.Has(policy.CPU|policy.GPU) {
			t.Errorf("--devices=%s: %s", test.devices, h.Devices)
		}
		if lines := slices.Collect(strings.Lines(log.String())); len(lines) != 1 || test.total > 0 != strings.Contains(lines[0], "gpu Quadro P4000 7.9 GiB (llama-server)") {
			t.Errorf("log %q", lines)
		}
	}
}
