package sleep

import (
	"encoding/json"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"reveille/testenv"
	"reveille/testenv/calls"
	"reveille/testenv/kit"
)

const story = `
models:
  m: {type: llm, recipe: standin, device: cpu, options: {args: "--load-time 300ms"}}
hosts:
  local: {driver: local, devices: [cpu]}
`

// With these flags a model goes, then its host, and the next request brings both back. Redis shows every state on the
// way, the response's headers tell of it, other people's client notices nothing but time.
func TestStory(t *testing.T) {
	t.Parallel()
	c := client(t)
	s, rdb, told := system(t, story, "--idle=5s", "--host-idle=10s", "--host-min-up=1s", "--every=1s")
	host := func() string { return rdb.HGet(t.Context(), "rv:{main}:host:local", "state").Val() }
	record := func() string { return rdb.HGet(t.Context(), "rv:{main}:model:local:m", "state").Val() }
	processes := func() int { return len(s.Processes()) }
	sleeps := func() {
		t.Helper()
		kit.Eventually(t, "the model goes", func() bool { return record() == "" })
		kit.Eventually(t, "the host sleeps", func() bool { return host() == "asleep" })
		kit.Eventually(t, "its engine ends", func() bool { return processes() == 0 })
	}

	first := use(t, c, s.URL, "m", false)
	if host() != "ready" || record() != "loaded" {
		t.Errorf("after the first request: host %s, model %s", host(), record())
	}
	cold(t, first)
	sleeps()
	if st := status(t, c, s.URL); st["value"] != "unloaded" {
		t.Errorf("status of a model that sleeps: %v", st)
	}
	if host() != "asleep" {
		t.Fatal("asking for the status woke the host")
	}

	// A stream wakes it.
	a := use(t, c, s.URL, "m", true)
	cold(t, a)
	sleeps()

	openai(t, s.URL)

	life := []string{"host local ready", "model m loading", "model m loaded", "model m unloaded", "host local draining", "host local asleep", "host local waking"}
	told.expect(t, slices.Repeat(life, 2)...)
}

// cold checks the headers of a response that woke the host and loaded the model.
func cold(t *testing.T, a calls.Answer) {
	t.Helper()
	for name, want := range map[string]string{"X-Cold-Start": "1", "X-Model": "m", "X-Model-State": "unloaded", "X-Runner": "local"} {
		if got := a.Header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	for _, name := range []string{"X-Queue-Ms", "X-Load-Ms", "X-Queue-Length", "X-Request-Id"} {
		if a.Header.Get(name) == "" {
			t.Errorf("no header %s: %v", name, a.Header)
		}
	}
}

// openai asks with the official client, which must notice nothing but time.
func openai(t *testing.T, base string) {
	t.Helper()
	cmd := exec.Command(testenv.Python(t), "-B", filepath.Join("testdata", "ask.py"), base, "m")
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "ok") {
		t.Errorf("openai client: %v\n%s", err, out)
	}
}

// status reads how far the load of m is.
func status(t *testing.T, c *http.Client, base string) map[string]any {
	t.Helper()
	a := calls.Get(t.Context(), c, base+"/v1/models/m")
	var out struct{ Status map[string]any }
	if err := json.Unmarshal(a.Body, &out); err != nil || a.Status != http.StatusOK {
		t.Fatalf("status: %v, %v", a, err)
	}
	return out.Status
}
