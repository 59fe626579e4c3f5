package system

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"reveille/testenv"
	"reveille/testenv/kit"
	"reveille/testenv/worlds"
)

// forget has the gateway forget a model's conversations and returns what the command says.
func forget(t *testing.T, s *testenv.System, model string, args ...string) string {
	t.Helper()
	out, err := exec.Command(testenv.Build(t, "gateway"), append([]string{"conversations", "forget", model, "--url=" + s.URL}, args...)...).CombinedOutput()
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
	return string(out)
}

// about returns a long beginning of a chat.
func about(name string) message {
	var text strings.Builder
	for i := range 40 {
		fmt.Fprintf(&text, "%s %d: the water rose by %d feet. ", name, i, i*7%13)
	}
	return message{"user", text.String() + "What happened?"}
}

// After a forget no turn reuses anything from before: not what the engine's slots hold, nor its prompt cache in memory,
// nor what was saved, nor what was being saved at that moment. A request that runs goes on to its end.
func TestConversationsForgotten(t *testing.T) {
	testenv.Engines(t)
	const models = `models:
  talker: {type: llm, recipe: llamacpp, checkpoint: .cache/models/tiny-gemma.gguf, device: cpu, options: {ctx_size: 8192, llamacpp_args: "-np 2 --swa-full"}}
  other: {type: llm, recipe: llamacpp, checkpoint: .cache/models/tiny-gemma.gguf, device: cpu, options: {ctx_size: 1024, llamacpp_args: "-np 1"}}
`
	s := testenv.Start(t, testenv.Spec{Models: models})
	admin := "--api-key=" + s.AdminKey()
	names := []string{"Ada", "Bob", "Cid", "Dan"} // two more than slots
	again := func(what string) {
		t.Helper()
		for _, name := range names {
			if a := say(t, s, "talker", about(name)); a.Timings.Cached > 16 || a.restored != "" { // 16: what a chat of this life begins with
				t.Errorf("%s: %d tokens of %s came from the cache, %q", what, a.Timings.Cached, name, a.restored)
			}
		}
	}
	again("at first")
	for _, name := range names {
		if a := say(t, s, "talker", about(name)); a.Timings.Cached < 400 {
			t.Fatalf("%s is not in the engine: %d tokens came from the cache", name, a.Timings.Cached)
		}
	}
	if out := forget(t, s, "talker", admin); !strings.HasSuffix(out, " forgotten, 1 loaded copy unloaded\n") {
		t.Errorf("it says %q", out)
	}
	again("while it was loaded")

	say(t, s, "other", message{"user", "Hello."})
	if out := forget(t, s, "all", admin); out != "local: 4 saved conversations forgotten, 1 loaded copy unloaded\n" {
		t.Errorf("with saved ones it says %q", out)
	}
	again("once saved")

	for i := range 3 { // at some moment of the save
		swapped := make(chan struct{})
		go func() { defer close(swapped); once(t, s.URL, "other", "Hello.") }()
		time.Sleep(time.Duration(i*60) * time.Millisecond)
		forget(t, s, "talker", admin)
		<-swapped
		again("while it was saved")
	}

	body, err := json.Marshal(map[string]any{"model": "talker", "messages": []message{about("Eve")}, "temperature": 0, "max_tokens": 400, "ignore_eos": true, "stream": true})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Post(s.URL+"/v1/chat/completions", "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := resp.Body.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if out := forget(t, s, "talker", admin); !strings.Contains(out, "1 loaded copy unloaded after 1 open request\n") {
		t.Errorf("with an open request it says %q", out)
	}
	if rest, err := io.ReadAll(resp.Body); err != nil || !bytes.HasSuffix(bytes.TrimSpace(rest), []byte("data: [DONE]")) {
		t.Errorf("the open request: %v, it ends with %q", err, rest[max(0, len(rest)-200):])
	}
	again("with an open request")
}

// A host that is asleep forgets when it wakes, before it restores anything.
func TestConversationsForgottenAsleep(t *testing.T) {
	testenv.Engines(t)
	const secret = "a secret of sixteen or more"
	const models = `models:
  talker: {type: llm, recipe: llamacpp, checkpoint: CHECKPOINT, device: cpu, options: {ctx_size: 8192, llamacpp_args: "-np 2 --swa-full"}}
  first: {type: llm, recipe: standin, device: cpu, hosts: [a]}
hosts:
  a: {driver: exec, devices: [cpu], commands: {wake: ["true"], sleep: ["true"]}}
  b: {driver: exec, devices: [cpu], commands: {wake: ["true"], sleep: ["true"]}}
`
	server := testenv.StartRedis(t)
	url, dir := "redis://"+server.Addr, t.TempDir()
	a, _ := testenv.StartRunner(t, url, secret, "a", dir)
	s := &testenv.System{Program: testenv.StartGateway(t, url, secret, strings.Replace(models, "CHECKPOINT", testenv.Models(t).Tiny, 1))}
	rdb := worlds.RedisAt(t, server.Addr)
	field := func(key, field string) string { return rdb.HGet(t.Context(), key, field).Val() }
	kit.Becomes(t, "a is awake", "ready", func() string { return field("rv:{main}:host:a", "state") })
	end := func() {
		t.Helper()
		a.Signal(syscall.SIGTERM)
		<-a.Exited()
		kit.Becomes(t, "a is asleep", "asleep", func() string { return field("rv:{main}:host:a", "state") })
	}
	say(t, s, "talker", about("Ada"))
	end()
	a, _ = testenv.StartRunner(t, url, secret, "a", dir)
	if got := say(t, s, "talker", about("Ada")); got.Timings.Cached < 400 {
		t.Fatalf("without a forget %d tokens came from the cache", got.Timings.Cached)
	}
	end()
	if field("rv:{main}:conv:talker", "a") == "" {
		t.Error("the pool does not know of what a saved")
	}
	if out := forget(t, s, "talker"); !strings.Contains(out, "a: asleep, forgets when it wakes\n") {
		t.Errorf("it says %q", out)
	}
	if field("rv:{main}:conv:talker", "a") != "" {
		t.Error("the pool still knows of what a saved")
	}
	a, _ = testenv.StartRunner(t, url, secret, "a", dir)
	kit.Eventually(t, "a has forgotten", func() bool { return strings.Contains(a.Log(), "forgetting conversations") })
	if got := say(t, s, "talker", about("Ada")); got.Timings.Cached > 16 || got.restored != "" {
		t.Errorf("after its sleep %d tokens came from the cache, %q", got.Timings.Cached, got.restored)
	}
	end() // saved again
	a, _ = testenv.StartRunner(t, url, secret, "a", dir)
	if got := say(t, s, "talker", about("Ada")); got.Timings.Cached < 400 {
		t.Errorf("of what was said later %d tokens came from the cache", got.Timings.Cached)
	}
}
