package system

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"reveille/testenv"
	"reveille/testenv/kit"
)

// turn is what a test needs of a chat completion of llama-server.
type turn struct {
	Choices []struct {
		Message message `json:"message"`
	} `json:"choices"`
	Timings struct {
		Cached   int     `json:"cache_n"`
		Computed int     `json:"prompt_n"`
		PromptMS float64 `json:"prompt_ms"`
	} `json:"timings"`
	restored string // x-cache-tokens
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// say sends a conversation and returns the response.
func say(t *testing.T, s *testenv.System, model string, talk ...message) turn {
	t.Helper()
	body, err := json.Marshal(map[string]any{"model": model, "messages": talk, "temperature": 0, "max_tokens": 8})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Post(s.URL+"/v1/chat/completions", "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var a turn
	if err := json.NewDecoder(resp.Body).Decode(&a); err != nil || resp.StatusCode != http.StatusOK || len(a.Choices) != 1 {
		t.Fatalf("%d: %v, %+v", resp.StatusCode, err, a)
	}
	a.restored = resp.Header.Get("x-cache-tokens")
	return a
}

// A conversation goes on where it was after its model made room for another and came back: the engine computes only
// what is new, and answers as one that never went. The same after the gateway and its runner have ended, or were
// killed, and started again.
func TestConversationsSurviveSwaps(t *testing.T) {
	testenv.Engines(t)
	const models = `models:
  talker: {type: llm, recipe: llamacpp, checkpoint: .cache/models/gemma-3-270m-q4_k_m.gguf, device: cpu, options: {ctx_size: 4096, n_parallel: 2}}
  other: {type: llm, recipe: llamacpp, checkpoint: .cache/models/gemma-3-270m-q4_k_m.gguf, device: cpu, options: {ctx_size: 1024, llamacpp_args: "-np 2"}}
`
	var text strings.Builder
	for i := range 30 {
		fmt.Fprintf(&text, "In the year %d the river rose by %d feet. ", 1700+i, i*7%13)
	}
	first := []message{{"user", text.String() + "What happened?"}}

	s := testenv.Start(t, testenv.Spec{Models: models})
	a := say(t, s, "talker", first...)
	known := a.Timings.Cached + a.Timings.Computed
	second := append(first, a.Choices[0].Message, message{"user", "And then?"})
	want := say(t, s, "talker", second...) // without a swap
	third := append(second, want.Choices[0].Message, message{"user", "And at last?"})

	say(t, s, "other", message{"user", "Hello."})
	got := say(t, s, "talker", third...)
	if got.Timings.Cached < known*95/100 {
		t.Errorf("after a swap %d tokens came from the cache, want at least those of the first turn, %d", got.Timings.Cached, known)
	}
	if want := fmt.Sprintf("restored=%d", got.Timings.Cached); got.restored != want || a.restored != "" {
		t.Errorf("x-cache-tokens is %q, want %q, and %q before the swap", got.restored, want, a.restored)
	}
	fourth := append(third, got.Choices[0].Message, message{"user", "Tell it again."})
	control := say(t, s, "talker", fourth...)

	s.Stop()
	s = testenv.Start(t, testenv.Spec{Models: models, StateDir: s.StateDir})
	again := say(t, s, "talker", fourth...)
	if again.Timings.Cached < known*95/100 {
		t.Errorf("after a restart %d tokens came from the cache, want at least %d", again.Timings.Cached, known)
	}
	if x, y := again.Choices[0].Message.Content, control.Choices[0].Message.Content; x != y {
		t.Errorf("after a restart the response is %q, without one %q", x, y)
	}

	say(t, s, "other", message{"user", "Hello."})
	kit.Eventually(t, "the conversation is saved", func() bool {
		files, err := filepath.Glob(filepath.Join(s.StateDir, "conversations-local", "*"))
		return err == nil && len(files) > 0 && !strings.Contains(strings.Join(files, " "), "/unfinished-")
	})
	s.Kill()
	s = testenv.Start(t, testenv.Spec{Models: models, StateDir: s.StateDir})
	again = say(t, s, "talker", fourth...)
	if again.Timings.Cached < known*95/100 || again.Choices[0].Message != control.Choices[0].Message {
		t.Errorf("after a kill %d tokens came from the cache, want at least %d; the response is %q, without one %q",
			again.Timings.Cached, known, again.Choices[0].Message, control.Choices[0].Message)
	}

	command := func(args ...string) string {
		out, err := exec.Command(testenv.Build(t, "gateway"), append(append([]string{"conversations"}, args...), "--url="+s.URL, "--api-key="+s.AdminKey())...).CombinedOutput()
		if err != nil {
			t.Errorf("%v: %v: %s", args, err, out)
		}
		return string(out)
	}
	if out := command(); !strings.Contains(out, "talker  local  1 ") {
		t.Errorf("the list says %q", out)
	}
	if out := command("forget", "talker"); out != "local: 1 saved conversation forgotten, 1 loaded copy unloaded\n" {
		t.Errorf("forgetting says %q", out)
	}
	if out := command("list", "--json"); !strings.Contains(out, `"conversations": []`) {
		t.Errorf("then the list says %q", out)
	}
}

// What one engine saved is not given to one with other flags, and is there for the first again.
func TestConversationsOfOtherFlags(t *testing.T) {
	testenv.Engines(t)
	models := func(flags string) string {
		return `models:
  talker: {type: llm, recipe: llamacpp, checkpoint: .cache/models/tiny-gemma.gguf, device: cpu, options: {ctx_size: 8192, llamacpp_args: "-np 2 --swa-full` + flags + `"}}
`
	}
	s := testenv.Start(t, testenv.Spec{Models: models("")})
	first := say(t, s, "talker", about("Ada"))
	for _, flags := range []string{" --cache-type-k q8_0", " --rope-freq-scale 0.5", " -fa off"} {
		s.Stop()
		s = testenv.Start(t, testenv.Spec{Models: models(flags), StateDir: s.StateDir})
		if a := say(t, s, "talker", about("Ada")); a.Timings.Cached > 0 || a.restored != "" {
			t.Errorf("with%s %d tokens came from the cache, %q", flags, a.Timings.Cached, a.restored)
		}
	}
	s.Stop()
	s = testenv.Start(t, testenv.Spec{Models: models(""), StateDir: s.StateDir})
	if a := say(t, s, "talker", about("Ada")); a.Timings.Cached < 400 || a.Choices[0].Message != first.Choices[0].Message {
		t.Errorf("as before %d tokens came from the cache, %q in place of %q", a.Timings.Cached, a.Choices[0].Message, first.Choices[0].Message)
	}
}
