package sleep

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	"reveille/testenv"
)

// The commands of an operator, over a host that nothing else puts to sleep.
func TestCommands(t *testing.T) {
	t.Parallel()
	s, rdb, _ := system(t, strings.Replace(story, "300ms", "1500ms", 1), "--idle=1h", "--host-idle=1h")
	command := func(good bool, args ...string) string {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), testenv.Build(t, "gateway"), append(args, "--url="+s.URL)...).CombinedOutput()
		if (err == nil) != good {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	host := func() string { return field(t, rdb, "rv:{main}:host:local", "state") }
	says := func(out string, want ...string) {
		t.Helper()
		for _, w := range want {
			if !strings.Contains(out, w) {
				t.Errorf("no %q in:\n%s", w, out)
			}
		}
	}

	says(command(true, "wake", "local"), "Host is awake")
	says(command(true, "load", "m"), "loading on local", " s)")
	says(command(true, "ps"), "HOST", "MODELS", "local", "ready", "m ", "loaded")
	says(command(true, "sleep", "local"), "Host sleeps")
	if host() != "asleep" || len(s.Processes()) != 0 {
		t.Errorf("after sleep: host %s, processes %v", host(), s.Processes())
	}
	says(command(true, "sleep", "local"), "Host sleeps")
	says(command(true, "ps"), "asleep")
	says(command(true, "wake", "local"), "Host is awake")
	if host() != "ready" {
		t.Errorf("after wake: host %s", host())
	}
	says(command(true, "load", "m"), "Loaded model: m")
	says(command(true, "pin", "m"), "pinned")
	var ps struct {
		Models []struct {
			Pinned bool `json:"pinned"`
		} `json:"all_models_loaded"`
	}
	if err := json.Unmarshal([]byte(command(true, "ps", "--json")), &ps); err != nil || len(ps.Models) != 1 || !ps.Models[0].Pinned {
		t.Errorf("ps --json: %+v, %v", ps, err)
	}
	says(command(true, "unpin", "m"), "unpinned")
	says(command(true, "unload", "m"), "unloaded")
	says(command(false, "wake", "nobody"), "no host 'nobody'")
	says(command(false, "sleep", "nobody"), "no host 'nobody'")
	says(command(false, "load", "nothing"), "nothing")
}
