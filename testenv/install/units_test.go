package install

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"reveille/testenv"
)

// TestUnits holds the units to systemd's own checks: they are valid, and confined about as far as the programs allow.
// Exposure goes from 0 to 10; below 3 counts as well confined.
func TestUnits(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("systemd-analyze is not installed")
	}
	for name, threshold := range map[string]string{ // tenths
		"reveille-gateway.service": "20",
		"reveille-runner.service":  "25",
		"reveille-warmer.service":  "20",
	} {
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join(testenv.Root(t), "infra/install/systemd", name))
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(t.TempDir(), name)
			if name == "reveille-runner.service" && !strings.Contains(string(text), "\nExecStartPre=+-/usr/bin/nvidia-modprobe -u -c 0\n") {
				t.Error("nothing makes /dev/nvidia-uvm, which engines may not make under NoNewPrivileges")
			}
			text = regexp.MustCompile(`(?m)^(ExecStart(Pre)?=[+-]*)\S+`).ReplaceAll(text, []byte("${1}/bin/true")) // verify wants programs
			if err := os.WriteFile(file, text, 0o600); err != nil {
				t.Fatal(err)
			}
			if out, err := exec.CommandContext(t.Context(), "systemd-analyze", "verify", "--man=no", file).CombinedOutput(); err != nil || len(out) > 0 {
				t.Errorf("verify: %v\n%s", err, out)
			}
			out, err := exec.CommandContext(t.Context(), "systemd-analyze", "--no-pager", "security", "--offline=true", "--threshold="+threshold, file).CombinedOutput()
			if err != nil {
				t.Errorf("security: an exposure above %s tenths: %v\n%s", threshold, err, out)
			}
		})
	}
}
