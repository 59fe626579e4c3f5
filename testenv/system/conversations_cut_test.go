package system

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"reveille/testenv"
	"reveille/testenv/kit"
)

var (
	cuts     = flag.Int("cuts", 16, "how many files TestConversationsCutShort cuts short")
	restarts = flag.Int("restarts", 1, "how often TestConversationsOfAKilledRunner kills the runner")
)

// savedFiles waits until a pool's host has saved n conversations, and returns their files.
func savedFiles(t *testing.T, s *testenv.System, n int) (files []string) {
	t.Helper()
	kit.Eventually(t, fmt.Sprintf("%d saved conversations", n), func() bool {
		list, err := filepath.Glob(filepath.Join(s.StateDir, "conversations-local", "*"))
		if err != nil {
			t.Fatal(err)
		}
		files = slices.DeleteFunc(list, func(f string) bool { return strings.HasPrefix(filepath.Base(f), "unfinished-") })
		return len(files) >= n && len(files) == len(list)
	})
	return files
}

// What is on disk when the runner and its engines are killed is reused by the next.
func TestConversationsOfAKilledRunner(t *testing.T) {
	testenv.Engines(t)
	const models = `models:
  talker: {type: llm, recipe: llamacpp, checkpoint: .cache/models/gemma-3-270m-q4_k_m.gguf, device: cpu, options: {ctx_size: 4096, llamacpp_args: "-np 1 --swa-full"}}
  other: {type: llm, recipe: llamacpp, checkpoint: .cache/models/tiny-gemma.gguf, device: cpu, options: {ctx_size: 1024, llamacpp_args: "-np 1"}}
`
	talk := about("Ada")
	s := testenv.Start(t, testenv.Spec{Models: models})
	want := say(t, s, "talker", talk)
	all := want.Timings.Cached + want.Timings.Computed
	for n := range *restarts {
		say(t, s, "other", message{"user", "Hello."})
		savedFiles(t, s, 1)
		s.Kill()
		s = testenv.Start(t, testenv.Spec{Models: models, StateDir: s.StateDir})
		got := say(t, s, "talker", talk)
		if got.Timings.Cached < all*95/100 || got.Choices[0].Message != want.Choices[0].Message {
			t.Errorf("after %d kills %d of %d tokens came from the cache (%q); the answer is %q, before it was %q", n+1, got.Timings.Cached, all, got.restored, got.Choices[0].Message, want.Choices[0].Message)
		}
	}
}

// Files that are cut short at any place are removed; their model loads, and answers as one that never went.
func TestConversationsCutShort(t *testing.T) {
	testenv.Engines(t)
	const models = `models:
  talker: {type: llm, recipe: llamacpp, checkpoint: .cache/models/tiny-gemma.gguf, device: cpu, options: {ctx_size: 16384, llamacpp_args: "-np 8 --swa-full"}}
  other: {type: llm, recipe: llamacpp, checkpoint: .cache/models/tiny-gemma.gguf, device: cpu, options: {ctx_size: 1024, llamacpp_args: "-np 1"}}
`
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	dice := rand.New(rand.NewPCG(seed, 0))
	s := testenv.Start(t, testenv.Spec{Models: models})
	var talks [8]message
	var want [8]string
	for i := range talks {
		talks[i] = about(string(rune('A' + i)))
		want[i] = say(t, s, "talker", talks[i]).Choices[0].Message.Content
	}
	began, cut := time.Now(), 0
	for cut < *cuts {
		say(t, s, "other", message{"user", "Hello."})
		files := savedFiles(t, s, 1)
		for _, f := range files {
			info, err := os.Stat(f)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Truncate(f, dice.Int64N(info.Size())); err != nil {
				t.Fatal(err)
			}
		}
		cut += len(files)
		for i, talk := range talks {
			a := say(t, s, "talker", talk)
			if a.Choices[0].Message.Content != want[i] || a.restored != "" {
				t.Fatalf("after %d files the answer is %q, before it was %q; restored %q", cut, a.Choices[0].Message.Content, want[i], a.restored)
			}
		}
		for _, f := range files {
			if _, err := os.Stat(f); !os.IsNotExist(err) {
				t.Fatalf("%s was cut short and is still there: %v", f, err)
			}
		}
	}
	t.Logf("%d files cut short in %v", cut, time.Since(began).Round(time.Second))
}
