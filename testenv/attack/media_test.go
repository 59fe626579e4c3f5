package attack

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"reveille/testenv"
	"reveille/testenv/calls"
)

// TestEncoderCache tries to get one model's encoder outputs from another, one key's from another, and planted ones from
// Redis. The engine is real: a wrong float changes the probabilities of its tokens.
func TestEncoderCache(t *testing.T) {
	testenv.NeedInterposer(t)
	files := testenv.Models(t)
	dir := t.TempDir()
	projector, err := os.ReadFile(files.TinyVision)
	if err != nil {
		t.Fatal(err)
	}
	other := bytes.Clone(projector)
	for i := len(other) - 64<<10 + 3; i < len(other); i += 4 {
		other[i] ^= 0x80 // the sign of a weight
	}
	for name, content := range map[string][]byte{"a": projector, "b": other} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name, "mmproj.gguf"), content, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(files.Tiny, filepath.Join(dir, name, "model.gguf")); err != nil {
			t.Fatal(err)
		}
	}
	var models strings.Builder
	models.WriteString("models:\n")
	for name, m := range map[string]struct{ folder, fields, args string }{
		"a": {"a", "type: llm", ""}, "b": {"b", "type: llm", ""}, "shared": {"b", "type: llm, mm_cache: pool", ""},
	} {
		fmt.Fprintf(&models, "  %s: {%s, recipe: llamacpp, device: cpu, hosts: [local], checkpoint: %[3]s/model.gguf, mmproj: %[3]s/mmproj.gguf, "+
			"options: {ctx_size: 2048, llamacpp_args: \"-np 1 -t 1%s\"}}\n", name, m.fields, filepath.Join(dir, m.folder), m.args)
	}
	models.WriteString("hosts:\n  local: {driver: local, devices: [cpu]}\n")
	s := testenv.Start(t, testenv.Spec{
		Models: models.String(),
		Args:   []string{withKeys(t), "--max-loaded-models=-1", "--mm-lookup-wait=10s", "--mm-cache-bytes=0", "--hold=3m"},
	})
	rdb := s.Redis()
	picture := testenv.Picture(1, 320, 240)

	post := func(path, key string, body map[string]any) calls.Answer {
		t.Helper()
		text, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		var a calls.Answer
		for range 3 { // call waits half a minute, and a load on a slow machine may take longer
			if a = call(t, "POST", s.URL+path, string(text), bearer(key)); a.Err == nil {
				break
			}
		}
		if !a.OK() {
			t.Fatalf("%s: %v", path, a)
		}
		return a
	}
	// show returns the response's tokens with their probabilities.
	show := func(what, model, key, cache string) string {
		t.Helper()
		a := post("/v1/chat/completions", key, map[string]any{
			"model": model, "temperature": 0, "max_tokens": 4, "logprobs": true, "cache_prompt": false, "ignore_eos": true,
			"messages": []any{map[string]any{"role": "user", "content": []any{map[string]any{"type": "text", "text": "Look:"}, testenv.MediaPart(picture)}}},
		})
		var got struct {
			Choices []struct {
				Logprobs struct{ Content json.RawMessage }
			}
		}
		if err := json.Unmarshal(a.Body, &got); err != nil || len(got.Choices) != 1 {
			t.Fatalf("%s: %v: %v", what, err, a)
		}
		if is := a.Header.Get("x-media-cache"); is != cache {
			t.Errorf("%s: x-media-cache %q, want %q", what, is, cache)
		}
		return string(got.Choices[0].Logprobs.Content)
	}
	// entries are the values in Redis by key; there are to be n of them soon.
	entries := func(n int) map[string]string {
		t.Helper()
		for deadline := time.Now().Add(limit); ; time.Sleep(10 * time.Millisecond) {
			out := map[string]string{}
			for _, k := range rdb.Keys(t.Context(), "mm:main:*:*").Val() {
				out[k] = rdb.Get(t.Context(), k).Val()
			}
			if len(out) == n {
				return out
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d entries in Redis, want %d", len(out), n)
			}
		}
	}
	const seen, unseen = "hit=1, miss=0", "hit=0, miss=1"

	ofA := show("a picture", "a", inferKey, unseen)
	entries(1)
	if got := show("the same picture", "a", inferKey, seen); got != ofA {
		t.Errorf("a hit answers %s, a miss %s", got, ofA)
	}
	ofB := show("the same picture to a model of the same base names", "b", inferKey, unseen)
	if ofB == ofA {
		t.Error("one model answered with the other's encoder outputs, or is blind")
	}
	entries(2)
	if got := show("the same picture by another key", "a", otherKey, unseen); got != ofA {
		t.Errorf("another key's response is %s, want %s", got, ofA)
	}
	all := entries(3)
	if got := show("again by the other key", "a", otherKey, seen); got != ofA {
		t.Errorf("%s, want %s", got, ofA)
	}
	show("a shared model", "shared", inferKey, unseen)
	entries(4)
	if got := show("a shared model by another key", "shared", otherKey, seen); got != ofB {
		t.Errorf("%s, want %s", got, ofB)
	}
	for at := range all {
		for _, key := range []string{inferKey, otherKey} {
			if strings.Contains(at+all[at], key) {
				t.Error("Redis shows a key")
			}
		}
	}

	// Whoever writes Redis puts one model's, or one key's, value in the place of another's: all are refused.
	ats := make([]string, 0, len(all))
	for at := range all {
		ats = append(ats, at)
	}
	slices.Sort(ats)
	for i, at := range ats {
		if err := rdb.Set(t.Context(), at, all[ats[(i+1)%len(ats)]], 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if got := show("after planting", "a", inferKey, unseen); got != ofA {
		t.Errorf("a planted entry was served: %s, want %s", got, ofA)
	}
	if got := show("after planting", "b", inferKey, unseen); got != ofB {
		t.Errorf("a planted entry was served: %s, want %s", got, ofB)
	}

	// The projector of a is replaced in place: what its next engine serves is the new one's.
	if a := call(t, "POST", s.URL+"/v1/unload", `{"model_name":"a"}`, bearer(manageKey)); !a.OK() {
		t.Fatal(a)
	}
	if err := os.WriteFile(filepath.Join(dir, "a", "mmproj.gguf"), other, 0o644); err != nil {
		t.Fatal(err)
	}
	if got := show("after the projector was replaced", "a", otherKey, unseen); got != ofB {
		t.Errorf("%s, want the other projector's %s", got, ofB)
	}
}
