package attack

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"hash/fnv"
	"reflect"
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

// TestPicturesOfOneHash: llama-server takes a picture for an earlier one of the same 64-bit hash, which anybody can make. No
// key is answered about a picture of another one's.
func TestPicturesOfOneHash(t *testing.T) {
	testenv.NeedInterposer(t)
	const model = "recipe: llamacpp, checkpoint: .cache/models/tiny-gemma.gguf, mmproj: .cache/models/tiny-mmproj.gguf, device: cpu, hosts: [local], " +
		`options: {ctx_size: 1024, llamacpp_args: "-np 1 -t 1"}}`
	for _, cache := range []string{"key", "none"} {
		s := testenv.Start(t, testenv.Spec{
			Models: "models:\n  see: {type: llm, mm_cache: " + cache + ", " + model + "\n" + calls.LocalHost, Args: []string{withKeys(t)},
		})
		type answer struct {
			Choices []struct {
				Logprobs struct{ Content []struct{ Logprob float64 } }
			}
			Usage struct {
				Details struct {
					Cached int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			}
		}
		ask := func(key string, picture []byte) (a answer) {
			t.Helper()
			url := map[string]any{"url": "data:image/bmp;base64," + base64.StdEncoding.EncodeToString(picture)}
			body, err := json.Marshal(map[string]any{
				"model": "see", "max_tokens": 4, "temperature": 0, "logprobs": true, "ignore_eos": true,
				"messages": []any{map[string]any{"role": "user", "content": []any{map[string]any{"type": "image_url", "image_url": url}, map[string]any{"type": "text", "text": "?"}}}},
			})
			if err != nil {
				t.Fatal(err)
			}
			got := call(t, "POST", s.URL+"/v1/chat/completions", string(body), bearer(key))
			if err := json.Unmarshal(got.Body, &a); err != nil || len(a.Choices) != 1 || len(a.Choices[0].Logprobs.Content) != 4 {
				t.Fatalf("%v, %v", got, err)
			}
			return a
		}
		victim := bitmap(10, 10, 250)
		forged, err := hex.DecodeString("b9612b1a0e08fe10771b2a1d001d03f00413001f")
		if err != nil {
			t.Fatal(err)
		}
		forged = append(bitmap(250, 10, 10), forged...)
		a, b := fnv.New64a(), fnv.New64a()
		_, _ = a.Write(victim) // never fails
		_, _ = b.Write(forged)
		if a.Sum64() != b.Sum64() {
			t.Fatal("the pictures have different hashes")
		}
		attacked := ask(inferKey, forged)
		got := ask(otherKey, victim)
		if n := got.Usage.Details.Cached; n > 16 {
			t.Errorf("mm_cache %s: %d tokens of another key's picture were reused", cache, n)
		}
		if a := call(t, "POST", s.URL+"/v1/unload", `{"model_name":"see"}`, bearer(ownerKey)); !a.OK() {
			t.Fatal(a)
		}
		alone := ask(otherKey, victim)
		if !reflect.DeepEqual(got.Choices, alone.Choices) {
			t.Errorf("mm_cache %s: the response is that of another key's picture", cache)
		}
		if reflect.DeepEqual(attacked.Choices, alone.Choices) {
			t.Error("the engine is blind: equal answers prove nothing")
		}
		if again := ask(otherKey, victim); again.Usage.Details.Cached < 32 {
			t.Errorf("mm_cache %s: %d tokens of one's own picture were reused", cache, again.Usage.Details.Cached)
		}
	}
}

// bitmap is a BMP file of one colour.
func bitmap(r, g, b byte) []byte {
	const side = 32
	pixels := bytes.Repeat([]byte{b, g, r}, side*side)
	var out bytes.Buffer
	out.WriteString("BM")
	for _, v := range []any{
		uint32(54 + len(pixels)), uint32(0), uint32(54), uint32(40), int32(side), int32(side), uint16(1), uint16(24), uint32(0), uint32(len(pixels)),
		int32(2835), int32(2835), uint32(0), uint32(0),
	} {
		_ = binary.Write(&out, binary.LittleEndian, v) // never fails
	}
	out.Write(pixels)
	return out.Bytes()
}
