package attack

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"reveille/testenv"
	"reveille/testenv/calls"
	"reveille/testenv/kit"
)

// hostileEngine is the variable that makes this test program an engine that has been taken over: it does what the last
// message of a chat says.
const hostileEngine = "ATTACK_HOSTILE_ENGINE"

func TestMain(m *testing.M) {
	if addr := os.Getenv(hostileEngine); addr != "" {
		fmt.Println("engine: starts")
		fmt.Println(http.ListenAndServe(addr, http.HandlerFunc(hostile)))
		os.Exit(1)
	}
	if path := os.Getenv(filtered); path != "" {
		pingFiltered(path)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func hostile(w http.ResponseWriter, r *http.Request) {
	var ask struct {
		Messages []struct{ Content string }
	}
	if r.Method != http.MethodPost || json.NewDecoder(r.Body).Decode(&ask) != nil || len(ask.Messages) == 0 {
		return
	}
	verb, what, _ := strings.Cut(ask.Messages[0].Content, " ")
	did := "ok"
	if err := hostileAct(verb, what); err != nil {
		did = err.Error()
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{
		"object": "chat.completion", "choices": []any{map[string]any{"index": 0, "finish_reason": "stop", "message": map[string]string{"role": "assistant", "content": did}}},
		"usage": map[string]int{"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
	})
}

func hostileAct(verb, what string) error {
	switch verb {
	case "read":
		_, err := os.ReadFile(what)
		return err
	case "log":
		fmt.Println(what)
	case "write":
		return os.WriteFile(what, []byte("x"), 0o600)
	case "temp":
		return os.WriteFile(filepath.Join(os.TempDir(), what), []byte("x"), 0o600)
	case "fetch":
		resp, err := http.Get(what)
		if err == nil {
			_ = resp.Body.Close()
		}
		return err
	case "send":
		c, err := net.Dial("udp", what)
		if err == nil {
			_, err = c.Write([]byte("x"))
		}
		return err
	case "ping": // a Redis at a socket
		c, err := net.Dial("unix", what)
		if err == nil {
			_, _ = c.Write([]byte("*1\r\n$4\r\nPING\r\n"))
			_, err = c.Read(make([]byte, 1))
		}
		return err
	case "kill":
		pid, _ := strconv.Atoi(what)
		return syscall.Kill(pid, 0)
	case "allocate":
		n, _ := strconv.Atoi(what)
		b := make([]byte, n)
		for i := range b {
			b[i] = 1
		}
		runtime.KeepAlive(b)
	case "crash":
		_ = syscall.Kill(os.Getpid(), syscall.SIGSEGV)
		select {}
	}
	return nil
}

// TestSandboxedEngine takes an engine over and tries to get at the host from there: the runner's secrets, other models,
// the pool's Redis, the gateway, the network.
func TestSandboxedEngine(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	model, other := filepath.Join(dir, "model.bin"), filepath.Join(dir, "other.bin")
	for _, f := range []string{model, other} {
		if err := os.WriteFile(f, []byte("weights"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s := testenv.Start(t, testenv.Spec{Args: []string{"--engine-memory=256MiB"}, Models: fmt.Sprintf(`
recipes:
  hostile:
    command: [[%q], ["{host}"]]
    env: {%s: "{host}:{port}"}
    types: llm
    devices: cpu
    health_path: /health
    checkpoint: any
models:
  m: {type: llm, recipe: hostile, checkpoint: %q}
hosts:
  local: {driver: local, devices: [cpu]}
`, self, hostileEngine, model)})
	do := func(attempt string) (calls.Answer, string) {
		t.Helper()
		body, _ := json.Marshal(map[string]any{"model": "m", "messages": []any{map[string]string{"role": "user", "content": attempt}}})
		a := call(t, "POST", s.URL+"/v1/chat/completions", string(body))
		var reply struct {
			Choices []struct{ Message struct{ Content string } }
		}
		if json.Unmarshal(a.Body, &reply) != nil || len(reply.Choices) != 1 {
			return a, ""
		}
		return a, reply.Choices[0].Message.Content
	}
	for _, attempt := range []string{"read " + model, "temp x"} {
		if a, did := do(attempt); did != "ok" {
			t.Fatalf("%s: %q %v\n%s", attempt, did, a, s.Log())
		}
	}
	lacks := sandboxLacks(t, s.URL)
	fetched := newCanary(t)
	gateway, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	for _, attack := range []struct{ measure, attempt string }{
		{"files", "read " + other},
		{"files", "read " + filepath.Join(s.StateDir, "runner-secret")},
		{"files", "read /etc/shadow"},
		{"files", fmt.Sprintf("read /proc/%d/environ", s.PID())},
		{"files", "write " + model},
		{"files", "write " + filepath.Join(dir, "new")},
		{"files", "write " + filepath.Join(s.StateDir, "fence-local")},
		{"network", "fetch " + fetched.URL},
		{"network", "fetch " + s.URL + "/health"},
		{"network", "ping " + s.RedisAddr},
		{"network", "send " + gateway.Host},
		{"network", "send 192.0.2.1:53"},
		{"signals", fmt.Sprintf("kill %d", s.PID())},
	} {
		if slices.Contains(lacks, attack.measure) {
			t.Logf("%s: not tried, this machine has no %s", attack.attempt, attack.measure)
		} else if a, did := do(attack.attempt); did == "" || did == "ok" {
			t.Errorf("%s: %q %v", attack.attempt, did, a)
		}
	}
	// The engine falls, nothing else does; the next request gets a new one.
	deaths := []string{"crash"}
	if !slices.Contains(lacks, "memory") {
		deaths = append(deaths, fmt.Sprintf("allocate %d", 1<<30))
	}
	for _, attempt := range deaths {
		if a, did := do(attempt); a.Err != nil || a.Status < 500 || did != "" {
			t.Errorf("%s: %v", attempt, a)
		}
		kit.Becomes(t, "after "+attempt, "ok", func() string { _, did := do("read " + model); return did })
	}
	s.Kill() // the engine dies with its runner
}

// sandboxLacks are the measures that the machine lacks, as the gateway reports them.
func sandboxLacks(t *testing.T, base string) []string {
	t.Helper()
	a := call(t, "GET", base+"/v1/health", "")
	var h struct {
		Runners []struct {
			Sandbox struct {
				Mode    string
				On      []string
				Missing []string
			}
		}
	}
	if err := json.Unmarshal(a.Body, &h); err != nil || len(h.Runners) != 1 || h.Runners[0].Sandbox.Mode != "auto" {
		t.Fatalf("health does not tell of the sandbox: %v %s", err, a.Body)
	}
	return h.Runners[0].Sandbox.Missing
}
