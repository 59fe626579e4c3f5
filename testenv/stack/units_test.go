package stack

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestUnits holds the programs' units to systemd's own checks: they are valid, and confined about as far as the programs
// allow. Exposure goes from 0 to 10; below 3 counts as well confined.
func TestUnits(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("systemd-analyze is not installed")
	}
	for _, unit := range []struct{ name, template, threshold string }{
		{"reveille-gateway.service", "templates/gateway_user_data.sh.tftpl", "20"},
		{"reveille-runner.service", "modules/runner-pool/templates/user_data.sh.tftpl", "25"},
	} {
		t.Run(unit.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), unit.name)
			text := regexp.MustCompile(`(?m)^ExecStart=\S+`).ReplaceAllString(heredoc(t, unit.template, "/etc/systemd/system/"+unit.name), "ExecStart=/bin/true")
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if out, err := exec.CommandContext(t.Context(), "systemd-analyze", "verify", "--man=no", file).CombinedOutput(); err != nil || len(out) > 0 {
				t.Errorf("verify: %v\n%s", err, out)
			}
			out, err := exec.CommandContext(t.Context(), "systemd-analyze", "--no-pager", "security", "--offline=true", "--threshold="+unit.threshold, file).CombinedOutput()
			if err != nil {
				t.Errorf("security: an exposure above %s tenths: %v\n%s", unit.threshold, err, out)
			}
		})
	}
}

// heredoc is the text that a template of user data writes to a file. It must have no variables.
func heredoc(t *testing.T, template, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../terraform", template))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?ms)^cat >` + regexp.QuoteMeta(file) + ` <<'UNIT'\n(.*?)^UNIT\n`).FindStringSubmatch(string(text))
	if m == nil {
		t.Fatalf("%s writes no %s", template, file)
	}
	if strings.Contains(m[1], "${") {
		t.Fatalf("%s: %s has variables", template, file)
	}
	return m[1]
}
