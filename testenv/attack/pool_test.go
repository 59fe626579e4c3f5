package attack

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"sync"
	"testing"

	"reveille/testenv"
	"reveille/testenv/calls"
)

// TestPicturesBesideOthers sends pictures to the real llama-server while others use its context, together more than one
// context holds: each request has a context of its own, is answered, and the engines' processes stay.
func TestPicturesBesideOthers(t *testing.T) {
	testenv.Engines(t)
	const model = "recipe: llamacpp, checkpoint: .cache/models/tiny-gemma.gguf, mmproj: .cache/models/tiny-mmproj.gguf, mm_cache: none, device: cpu, hosts: [local]"
	s := testenv.Start(t, testenv.Spec{
		Models: "models:\n  see: {type: llm, " + model + ", options: {ctx_size: 1024, kv_unified: true, llamacpp_args: \"-t 1\"}}\n" +
			"  vec: {type: embedding, " + model + ", options: {ctx_size: 1024, n_batch: 512, llamacpp_args: \"--pooling mean -t 1\"}}\n" + calls.LocalHost,
		Args: []string{withKeys(t)},
	})
	body := func(v any) string {
		raw, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	picture := testenv.Picture(1, 32, 32)
	seen := []any{map[string]any{"type": "text", "text": "Look:"}}
	for range 8 {
		seen = append(seen, testenv.MediaPart(picture))
	}
	chat := func(content any, tokens int) string {
		return body(map[string]any{"model": "see", "max_tokens": tokens, "ignore_eos": true, "messages": []any{map[string]any{"role": "user", "content": content}}})
	}
	data := base64.StdEncoding.EncodeToString(picture)
	vector := body(map[string]any{"model": "vec", "input": []any{map[string]any{"prompt_string": strings.Repeat("<__media__>", 3), "multimodal_data": []string{data, data, data}}}})
	ask := func(path, body string) {
		t.Helper()
		if a := call(t, "POST", s.URL+path, body, bearer(inferKey)); !a.OK() {
			t.Errorf("%s: %v", path, a)
		}
	}
	ask("/v1/chat/completions", chat("hi", 1))
	ask("/v1/embeddings", vector)
	before := pids(t, s.URL, 2)
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() { ask("/v1/chat/completions", chat(strings.Repeat("a b ", 200), 400)) })
		wg.Go(func() { ask("/v1/chat/completions", chat(seen, 2)) })
	}
	wg.Wait()
	for range 10 {
		wg.Go(func() { ask("/v1/embeddings", vector) })
	}
	wg.Wait()
	if after := pids(t, s.URL, 2); after != before {
		t.Errorf("engines' processes were %s and are %s", before, after)
	}
}
