package system

import (
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"reveille/testenv"
	"reveille/testenv/kit"
)

// tinyStates writes random models of architectures, and returns their folder.
func tinyStates(t *testing.T, archs ...string) string {
	t.Helper()
	dir := t.TempDir()
	script := filepath.Join(testenv.Root(t), "testenv/system/testdata/tiny_states.py")
	cmd := exec.Command(testenv.Python(t), append([]string{"-B", script, testenv.Models(t).Gemma, dir}, archs...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return dir
}

// talk is a chat with a model and what is known of it.
type talk struct {
	s        *testenv.System
	model    string
	messages []message
	known    int // tokens of its last turn
	last     turn
}

func newTalk(s *testenv.System, model string, topic, sentences int) *talk {
	var text strings.Builder
	for i := range sentences {
		fmt.Fprintf(&text, "In the year %d the river rose by %d feet. ", 100*topic+i, (topic+i*7)%13)
	}
	return &talk{s: s, model: model, messages: []message{{"user", text.String() + "What happened?"}}}
}

// turn sends the talk and appends the answer: letters only, because random models also say what no parser takes.
func (k *talk) turn(t *testing.T, stream bool) {
	t.Helper()
	k.last = k.ask(t, k.model, stream)
	k.known = k.last.Timings.Cached + k.last.Timings.Computed
	k.messages = append(k.messages, k.last.Choices[0].Message, message{"user", fmt.Sprintf("And %d days later?", len(k.messages))})
}

func (k *talk) ask(t *testing.T, model string, stream bool) turn {
	t.Helper()
	text, restored := post(t, k.s, "/v1/chat/completions", map[string]any{
		"model": model, "messages": k.messages, "temperature": 0, "max_tokens": 24, "grammar": "root ::= [a-z ]{16,24}", "stream": stream,
	})
	a := turn{restored: restored}
	if !stream {
		if err := json.Unmarshal([]byte(text), &a); err != nil || len(a.Choices) != 1 {
			t.Fatalf("%v: %s", err, text)
		}
		return a
	}
	a.Choices = make([]struct {
		Message message `json:"message"`
	}, 1)
	a.Choices[0].Message.Role = "assistant"
	for line := range strings.Lines(text) {
		var event struct {
			turn
			Choices []struct {
				Delta message `json:"delta"`
			} `json:"choices"`
		}
		if data, ok := strings.CutPrefix(line, "data: {"); ok && json.Unmarshal([]byte("{"+data), &event) == nil {
			for _, c := range event.Choices {
				a.Choices[0].Message.Content += c.Delta.Content
			}
			if event.Timings.Computed > 0 {
				a.Timings = event.Timings
			}
		}
	}
	return a
}

// post sends a request that must succeed, and returns the response and its x-cache-tokens.
func post(t *testing.T, s *testenv.System, path string, request map[string]any) (response, restored string) {
	t.Helper()
	body, err := json.Marshal(request)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Post(s.URL+path, "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %d: %v, %s", path, resp.StatusCode, err, text)
	}
	return string(text), resp.Header.Get("x-cache-tokens")
}

// reuses checks that the last turn took at least 95% of what the turn before it knew from a cache.
func (k *talk) reuses(t *testing.T, what string, before int) {
	t.Helper()
	if k.last.Timings.Cached < before*95/100 {
		t.Errorf("%s, %s: %d of %d tokens came from the cache", k.model, what, k.last.Timings.Cached, before)
	}
}

// awaitSaved waits until a model's saved conversations have so many tokens.
func awaitSaved(t *testing.T, s *testenv.System, model string, tokens int) {
	t.Helper()
	var out []byte
	kit.Eventually(t, "the conversations of "+model+" are saved", func() bool {
		var err error
		out, err = exec.Command(testenv.Build(t, "gateway"), "conversations", "list", "--json", "--url="+s.URL, "--api-key="+s.AdminKey()).CombinedOutput()
		var list struct {
			Conversations []struct {
				Model  string `json:"model_name"`
				Tokens int    `json:"tokens"`
			} `json:"conversations"`
		}
		if err != nil || json.Unmarshal(out, &list) != nil {
			return false
		}
		for _, c := range list.Conversations {
			if c.Model == model && c.Tokens >= tokens {
				return true
			}
		}
		return false
	})
}

var allArchitectures = flag.Bool("architectures", false, "TestConversationsOfEveryArchitecture takes all it knows, in minutes")

var architectures = map[string]string{
	"qwen35": "hybrid, attention and delta net", "granitehybrid": "hybrid, attention or Mamba 2",
	"falcon-h1": "hybrid, attention and Mamba 2 in each layer", "lfm2": "hybrid, attention or convolution", "mamba2": "recurrent",
	"llama": "dense", "gemma3": "dense, with a sliding window that is kept whole",
}

// The state of a model is saved where the next turn goes on, also if it cannot go back. So conversations go on after a
// swap, a kill and a restart, with the answers of a model whose engine computes everything; and not with other
// flags.
func TestConversationsOfEveryArchitecture(t *testing.T) {
	testenv.Engines(t)
	archs := []string{"llama", "mamba2", "qwen35"}
	if *allArchitectures {
		archs = slices.Sorted(maps.Keys(architectures))
	}
	dir := tinyStates(t, archs...)
	models := func(flags string) string {
		text := "models:\n  other: {type: llm, recipe: llamacpp, checkpoint: .cache/models/tiny-gemma.gguf, device: cpu, options: {ctx_size: 1024, n_parallel: 1}}\n"
		for _, arch := range archs {
			text += fmt.Sprintf("  %s: {type: llm, recipe: llamacpp, checkpoint: %q, device: cpu, options: {ctx_size: 8192, n_parallel: 2, llamacpp_args: %q}}\n",
				arch, filepath.Join(dir, arch+".gguf"), flags)
			text += fmt.Sprintf("  %s-anew: {type: llm, recipe: llamacpp, checkpoint: %q, device: cpu, options: {ctx_size: 8192, n_parallel: 2, llamacpp_args: --no-cache-prompt}}\n",
				arch, filepath.Join(dir, arch+".gguf"))
		}
		return text
	}
	s := testenv.Start(t, testenv.Spec{Models: models("")})
	talks := map[string]*talk{}
	for i, arch := range archs {
		talks[arch] = newTalk(s, arch, 10+i, 40)
	}
	// round has a turn of each talk, and compares it with what an engine says that reuses nothing.
	round := func(what string, minimum float64) {
		t.Helper()
		for i, arch := range archs {
			k := talks[arch]
			k.s = s
			before := k.known
			want := k.ask(t, arch+"-anew", false).Choices[0].Message
			k.turn(t, i%2 == 0)
			if got := k.last.Choices[0].Message; got != want {
				t.Errorf("%s, %s: the answer is %q, without reuse %q", arch, what, got.Content, want.Content)
			}
			if minimum > 0 {
				k.reuses(t, what, before)
			} else if k.last.Timings.Cached > 0 {
				t.Errorf("%s, %s: %d tokens came from the cache", arch, what, k.last.Timings.Cached)
			}
			t.Logf("%s (%s), %s: %d of %d tokens from the cache, %q", arch, architectures[arch], what, k.last.Timings.Cached, k.known, k.last.restored)
			awaitSaved(t, s, arch, k.known)
		}
	}
	round("at first", 0)
	round("after swaps", 0.95)
	s.Kill()
	s = testenv.Start(t, testenv.Spec{Models: models(""), StateDir: s.StateDir})
	round("after a kill", 0.95)
	s.Stop()
	s = testenv.Start(t, testenv.Spec{Models: models(""), StateDir: s.StateDir})
	round("after a restart", 0.95)
	s.Stop()
	s = testenv.Start(t, testenv.Spec{Models: models("-ub 256"), StateDir: s.StateDir})
	round("with other flags", 0)
}

var chats = flag.Int("chats", 6, "how many chats TestMoreConversationsThanSlots has; with more, the engine has 4 slots")

// More chats than slots go on in any order: each is restored into a slot of the running engine before its next turn.
// The same after the engine ended.
func TestMoreConversationsThanSlots(t *testing.T) {
	testenv.Engines(t)
	slots, sentences := 2, 40
	if *chats > 6 {
		slots, sentences = 4, 90
	}
	dir := tinyStates(t, "qwen35")
	for _, kind := range []struct{ arch, share string }{{"qwen35", "pool"}, {"qwen35", "key"}} {
		t.Run(kind.arch+" "+kind.share, func(t *testing.T) {
			s := testenv.Start(t, testenv.Spec{Models: fmt.Sprintf(`models:
  talker: {type: llm, conversations: %s, recipe: llamacpp, checkpoint: %q, device: cpu, options: {ctx_size: 16384, n_parallel: %d}}
`, kind.share, filepath.Join(dir, kind.arch+".gguf"), slots)})
			var talks []*talk
			total, uncached := 0, 0.0
			for i := range *chats {
				k := newTalk(s, "talker", 10+i, sentences)
				k.turn(t, false)
				talks, total, uncached = append(talks, k), total+k.known, uncached+k.last.Timings.PromptMS/float64(*chats)
			}
			// saved waits for what an engine that chooses its slots saves when nobody waits for it.
			saved := func() {
				if kind.share == "pool" && *chats == 6 {
					awaitSaved(t, s, "talker", total)
				}
			}
			saved()
			for _, what := range []string{"in any order", "after an unload"} {
				reused, quick := 0, 0
				for _, i := range rand.Perm(len(talks)) {
					k := talks[i]
					before := k.known
					k.turn(t, i%2 == 0)
					total += k.known - before
					saved()
					if k.last.Timings.Cached >= before*95/100 {
						reused++
					}
					if k.last.Timings.PromptMS <= 0.15*uncached {
						quick++
					}
				}
				t.Logf("%s, %d chats of %d tokens: %d reused 95%% and more, %d took at most 0.15 of the uncached %.0f ms", what, *chats, total / *chats, reused, quick, uncached)
				minimum := *chats / 2 // on a slow day a few steps take too long to be worth it
				if *chats > 6 {
					minimum = (*chats*95 + 99) / 100
				}
				if reused < minimum {
					t.Errorf("%s: %d of %d chats were reused", what, reused, *chats)
				}
				post(t, s, "/v1/unload", map[string]any{"model_name": "talker"})
			}
		})
	}
}

// A conversation on Anthropic's route is restored after an unload, whether its responses are streams or not.
func TestConversationsOnAnthropicsRoute(t *testing.T) {
	testenv.Engines(t)
	s := testenv.Start(t, testenv.Spec{Models: fmt.Sprintf(`models:
  talker: {type: llm, recipe: llamacpp, checkpoint: %q, device: cpu, options: {ctx_size: 8192, n_parallel: 2}}
`, filepath.Join(tinyStates(t, "qwen35"), "qwen35.gguf"))})
	k := newTalk(s, "talker", 10, 40)
	for i, stream := range []bool{true, false, true} {
		text, restored := post(t, s, "/v1/messages", map[string]any{
			"model": "talker", "messages": k.messages, "temperature": 0, "max_tokens": 8, "stream": stream,
		})
		type usage struct {
			Input  int `json:"input_tokens"`
			Cached int `json:"cache_read_input_tokens"`
		}
		var prompt usage
		answer := message{Role: "assistant"}
		for line := range strings.Lines(text) {
			var v struct {
				Message struct{ Usage usage } // of a stream's first event
				Usage   usage
				Delta   struct{ Text string }
				Content []struct{ Text string }
			}
			if json.Unmarshal([]byte(strings.TrimPrefix(line, "data: ")), &v) != nil {
				continue
			}
			if used := cmp.Or(v.Message.Usage, v.Usage); used.Input > 0 {
				prompt = used
			}
			for _, part := range append(v.Content, v.Delta) {
				answer.Content += part.Text
			}
		}
		if i > 0 && (prompt.Cached < k.known*95/100 || restored == "") {
			t.Errorf("turn %d: %d of %d tokens came from the cache, restored %q", i+1, prompt.Cached, k.known, restored)
		}
		k.known = prompt.Input + prompt.Cached
		t.Logf("turn %d: %d of %d tokens came from the cache, %q; the answer is %q", i+1, prompt.Cached, k.known, restored, answer.Content)
		k.messages = append(k.messages, answer, message{"user", fmt.Sprintf("And %d days later?", i)})
		post(t, s, "/v1/unload", map[string]any{"model_name": "talker"})
	}
}
