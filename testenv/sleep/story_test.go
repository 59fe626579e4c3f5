package sleep

import (
	"encoding/json"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"reveille/testenv"
)

const story = `
models:
  m: {type: llm, recipe: standin, device: cpu, options: {args: "--load-time 300ms"}}
hosts:
  local: {driver: local, devices: [cpu]}
`

// The judge's story: with the flags of the issue a model goes, then its host, and the next request brings both back. Redis
// shows every state on the way, the stream's comments and the answer's headers tell of it, other people's client notices
// nothing but time.
func TestStory(t *testing.T) {
	t.Parallel()
	c := client(t)
	s, rdb, told := system(t, story, "--idle=5s", "--host-idle=10s", "--host-min-up=1s", "--every=1s", "--commit-after=30ms", "--keepalive=30ms")
	host := func() string { return field(t, rdb, "rv:{main}:host:local", "state") }
	record := func() string { return field(t, rdb, "rv:{main}:model:local:m", "state") }
	processes := func() int { return len(s.Processes()) }
	sleeps := func() {
		t.Helper()
		eventually(t, "the model goes", func() bool { return record() == "" })
		eventually(t, "the host sleeps", func() bool { return host() == "asleep" })
		eventually(t, "its process ends", func() bool { return processes() == 0 })
	}

	first := use(t, c, s.URL, "m", false)
	if host() != "ready" || record() != "loaded" {
		t.Errorf("after the first request: host %s, model %s", host(), record())
	}
	for name, want := range map[string]string{"X-Cold-Start": "1", "X-Model": "m", "X-Model-State": "unloaded", "X-Runner": "local"} {
		if got := first.header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	for _, name := range []string{"X-Queue-Ms", "X-Load-Ms", "X-Queue-Length", "X-Request-Id"} {
		if first.header.Get(name) == "" {
			t.Errorf("no header %s: %v", name, first.header)
		}
	}
	sleeps()
	if st := status(t, c, s.URL); st["state"] != "unloaded" {
		t.Errorf("status of a model that sleeps: %v", st)
	}
	if host() != "asleep" {
		t.Fatal("asking for the status woke the host")
	}

	// A stream wakes it, and tells how far it is.
	done := make(chan answer, 1)
	go func() { done <- chat(t.Context(), c, s.URL, "m", true) }()
	states := map[string]bool{}
	var a answer
	for waiting := true; waiting; {
		select {
		case a = <-done:
			waiting = false
		default:
			st := status(t, c, s.URL)
			states[st["state"].(string)] = true
		}
	}
	if !a.whole() {
		t.Fatalf("stream: %v", a)
	}
	for _, want := range []string{": loading model=m state=waking host=local waited=", ": loading model=m state=loading host=local waited="} {
		if !slices.ContainsFunc(a.comments, func(l string) bool { return strings.HasPrefix(l, want) }) {
			t.Errorf("no comment %q in %q", want, a.comments)
		}
	}
	if !states["waking"] || !states["loading"] {
		t.Errorf("the status route told %v", states)
	}
	if a.header.Get("X-Model") != "m" || a.header.Get("X-Model-State") != "unloaded" || a.header.Get("X-Request-Id") == "" {
		t.Errorf("headers of the stream: %v", a.header)
	}
	sleeps()

	openai(t, s.URL)

	life := []string{"host local ready", "model m loading", "model m loaded", "model m unloaded", "host local draining", "host local asleep", "host local waking"}
	if left := told.missing(slices.Repeat(life, 2)); len(left) > 0 {
		t.Errorf("Redis never told %q after the steps before it; it told %q", left[0], told.told(0))
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

// status reads GET /v1/models/m/status.
func status(t *testing.T, c *http.Client, base string) map[string]any {
	t.Helper()
	resp, err := c.Get(base + "/v1/models/m/status")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 200 {
		t.Fatalf("status: %s %s %v", resp.Status, body, err)
	}
	var out map[string]any
	if err := json.Unmarshal(body, &out); err != nil {
		t.Fatal(err)
	}
	return out
}
