package sleep

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"

	"reveille/testenv"
	"reveille/testenv/calls"
	"reveille/testenv/kit"
)

// The commands of an operator, over a host that nothing else puts to sleep. The engine loads once the command has told of
// it.
func TestCommands(t *testing.T) {
	t.Parallel()
	gate := filepath.Join(t.TempDir(), "gate")
	s, rdb, _ := system(t, fmt.Sprintf(`
models:
  m: {type: llm, recipe: held, device: cpu}
recipes:
  held: {inherit: standin, command: [%q, [--host, "{host}"], [--port, "{port}"], [--model, "{alias}"], [--type, "{type}"], "{options}"]}
hosts:
  local: {driver: local, devices: [cpu]}
`, held(t, gate)), "--idle=1h", "--host-idle=1h")
	gateway := func(args ...string) *exec.Cmd {
		return exec.CommandContext(t.Context(), testenv.Build(t, "gateway"), append(args, "--url="+s.URL)...)
	}
	command := func(good bool, args ...string) string {
		t.Helper()
		out, err := gateway(args...).CombinedOutput()
		if (err == nil) != good {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	host := func() string { return rdb.HGet(t.Context(), "rv:{main}:host:local", "state").Val() }
	says := func(out string, want ...string) {
		t.Helper()
		for _, w := range want {
			if !strings.Contains(out, w) {
				t.Errorf("no %q in:\n%s", w, out)
			}
		}
	}

	says(command(true, "wake", "local"), "Host is awake")
	told := &tail{want: "loading on local", then: func() error { return os.WriteFile(gate, nil, 0o600) }}
	load := gateway("load", "m")
	load.Stdout, load.Stderr = told, told
	if err := load.Run(); err != nil {
		t.Fatalf("load: %v\n%s", err, told.text)
	}
	says(string(told.text), "loading on local", "Loaded model: m", " s)")
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

// TestForget: `gateway forget` removes a host that the catalog does not name once its runner is gone; the gateway says why
// it keeps another one.
func TestForget(t *testing.T) {
	t.Parallel()
	server := testenv.StartRedis(t)
	url, secret := "redis://"+server.Addr+"/0", strings.Repeat("s", 32)
	runner, _ := testenv.StartRunner(t, url, secret, "old", t.TempDir(), "--devices=cpu")
	g := testenv.StartGateway(t, url, secret, "models:\n  m: {type: llm, recipe: standin, device: cpu}\nhosts:\n"+
		"  listed: {driver: exec, devices: [cpu], address: \"127.0.0.1:9\", commands: {wake: [\"false\"], sleep: [\"false\"]}}\n")
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr})
	defer rdb.Close()
	forget := func(host string, good bool, want string) {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), testenv.Build(t, "gateway"), "forget", host, "--url="+g.URL).CombinedOutput()
		if (err == nil) != good || !strings.Contains(string(out), want) {
			t.Errorf("forget %s: %v %s, want %q", host, err, out, want)
		}
	}
	post := func(host string, status int, code string) {
		t.Helper()
		a := calls.Post(t.Context(), http.DefaultClient, g.URL+"/v1/internal/hosts/"+host+"/forget", "")
		if a.Status != status || a.Code() != code {
			t.Errorf("POST forget of %s: %v, want %d %s", host, a, status, code)
		}
	}
	forget("listed", false, "is in the models file")
	post("listed", 409, "model_busy")
	forget("nobody", false, "no host 'nobody'")
	post("nobody", 404, "unknown_url")
	state := func(want string) {
		t.Helper()
		kit.Eventually(t, "the host is "+want, func() bool { return rdb.HGet(t.Context(), "rv:{main}:host:old", "state").Val() == want })
	}
	state("ready")
	forget("old", false, "is awake")
	post("old", 409, "model_busy")
	runner.Signal(syscall.SIGTERM)
	<-runner.Exited()
	state("asleep")
	forget("old", true, "Host is forgotten")
	if keys := rdb.Keys(t.Context(), "*old*").Val(); len(keys) != 0 {
		t.Errorf("of the host stay %q", keys)
	}
	post("old", 404, "unknown_url")
}

// tail keeps what is written to it and acts once when the text that it wants is there.
type tail struct {
	text []byte
	want string
	then func() error
}

func (w *tail) Write(p []byte) (int, error) {
	w.text = append(w.text, p...)
	if w.then != nil && bytes.Contains(w.text, []byte(w.want)) {
		then := w.then
		w.then = nil
		return len(p), then()
	}
	return len(p), nil
}
