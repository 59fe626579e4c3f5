package system

import (
	"bytes"
	"encoding/json"
	"flag"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"reveille/testenv"
	"reveille/testenv/kit"
)

var kills = flag.Int("kills", 2, "how often TestConversationsSurviveKills kills a process")

// Engines, or the runner and all engines with it, are killed at random moments while conversations are saved and restored, and files are cut short in
// between. Every load succeeds, and every response is that of an engine that never went.
func TestConversationsSurviveKills(t *testing.T) {
	testenv.Engines(t)
	const models = `models:
  talker: {type: llm, recipe: llamacpp, checkpoint: .cache/models/tiny-gemma.gguf, device: cpu, options: {ctx_size: 8192, n_parallel: 2}}
  other: {type: llm, recipe: llamacpp, checkpoint: .cache/models/tiny-gemma.gguf, device: cpu, options: {ctx_size: 1024, n_parallel: 1}}
`
	s := testenv.Start(t, testenv.Spec{Models: models})
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	dice := rand.New(rand.NewPCG(seed, 0))
	// ask sends a chat until it is answered: a request may fail whose engine was killed under it.
	ask := func(model, text string) (content string) {
		t.Helper()
		for end := time.Now().Add(2 * kit.Patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			if content := once(t, s.URL, model, text); content != "" {
				return content
			}
		}
		t.Fatalf("%s is not answered", model)
		return ""
	}
	texts := make([]string, 3)
	want := make([]string, len(texts))
	for i := range texts {
		texts[i] = strings.Repeat(string(rune('A'+i))+" rose by two feet. ", 120)
		want[i] = ask("talker", texts[i])
	}
	for n := range *kills {
		swapped := make(chan string, 1)
		target := []string{"talker", "other"}[dice.IntN(2)] // a load that restores, or one before which is saved
		if target == "talker" {
			ask("other", "Hello.")
		}
		pause := time.Duration(dice.IntN(1500)) * time.Millisecond
		if n%2 == 0 {
			go func() { swapped <- ask(target, texts[0]) }()
			time.Sleep(pause)
			family := s.Processes()
			for _, i := range dice.Perm(len(family)) {
				if p := family[i]; strings.Contains(p.Args, "llama-server") {
					if err := syscall.Kill(p.PID, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
						t.Fatal(err)
					}
					break
				}
			}
			<-swapped
		} else {
			go func() { swapped <- once(t, s.URL, target, texts[0]) }()
			time.Sleep(pause)
			s.Kill()
			<-swapped
			s = testenv.Start(t, testenv.Spec{Models: models, StateDir: s.StateDir})
		}
		files, err := filepath.Glob(filepath.Join(s.StateDir, "conversations-local", "*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if info, err := os.Stat(f); err == nil && dice.IntN(2) == 0 {
				_ = os.Truncate(f, dice.Int64N(info.Size()+1)) // it may be gone by now
			}
		}
		say(t, s, "other", message{"user", "Hello."})
		for _, i := range dice.Perm(len(texts)) {
			if got := say(t, s, "talker", message{"user", texts[i]}).Choices[0].Message.Content; got != want[i] {
				t.Fatalf("after %d kills the response is %q, before it was %q", n+1, got, want[i])
			}
		}
	}
}

// once sends a chat and returns the response's content, "" if it failed.
func once(t *testing.T, url, model, text string) string {
	body, err := json.Marshal(map[string]any{"model": model, "messages": []message{{"user", text}}, "temperature": 0, "max_tokens": 8})
	if err != nil {
		t.Error(err)
		return ""
	}
	resp, err := http.Post(url+"/v1/chat/completions", "application/json", bytes.NewReader(body))
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	var a turn
	if json.NewDecoder(resp.Body).Decode(&a) != nil || resp.StatusCode != http.StatusOK || len(a.Choices) != 1 {
		return ""
	}
	return a.Choices[0].Message.Content
}
