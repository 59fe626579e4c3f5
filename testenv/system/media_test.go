package system

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"reveille/infra/config"
	"reveille/infra/mmstats"
	"reveille/testenv"
	"reveille/testenv/calls"
	"reveille/testenv/kit"
	"reveille/testenv/worlds"
)

// engineTime bounds one request to the real engine, its load on a slow machine included.
const engineTime = 3 * time.Minute

// mediaModels is a models file with two models of different hidden size that see and one that hears; each is there a
// second time without the cache, and a third time on another host. Equal files are equal models to the cache.
func mediaModels() string {
	files := map[string][2]string{
		"gemma-3-270m-vision": {"gemma-3-270m-q4_k_m.gguf", "gemma-3-270m-mmproj.gguf"},
		"tiny-vision":         {"tiny-gemma.gguf", "tiny-mmproj.gguf"},
		"tiny-audio":          {"tiny-gemma.gguf", "tiny-audio-mmproj.gguf"},
	}
	var b strings.Builder
	b.WriteString("models:\n")
	for _, name := range slices.Sorted(maps.Keys(files)) {
		for _, v := range []struct{ suffix, fields string }{
			{"", "hosts: [local]"}, {"-off", "hosts: [local], mm_cache: none"}, {"-far", "hosts: [far]"},
		} {
			fmt.Fprintf(&b, "  %s%s: {type: llm, recipe: llamacpp, checkpoint: .cache/models/%s, mmproj: .cache/models/%s, device: cpu, %s, "+
				"options: {ctx_size: 4096, llamacpp_args: \"-np 2 -t 1\"}}\n", name, v.suffix, files[name][0], files[name][1], v.fields)
		}
	}
	b.WriteString("hosts:\n  local: {driver: local, devices: [cpu]}\n  far: {driver: local, devices: [cpu]}\n")
	return b.String()
}

// viewer is a world whose models get pictures and sounds.
type viewer struct {
	*world
	outer *testing.T   // that the system ends with
	spec  testenv.Spec // of the system
}

// shown is a response: the tokens with their probabilities, which a single wrong float would change.
type shown []struct {
	Token   string
	Logprob float64
}

// show sends media to a model, which must answer, and checks what the response says of the cache.
func (v *viewer) show(model, cache string, media ...[]byte) shown {
	v.T.Helper()
	a := v.chatMedia(model, 6, media...)
	tokens, err := tokensOf(a)
	if err != nil {
		v.T.Fatalf("%s: %v: %v", model, err, a)
	}
	if got := a.Header.Get("x-media-cache"); got != cache {
		v.T.Errorf("%s: x-media-cache %q, want %q", model, got, cache)
	}
	return tokens
}

// chatMedia asks for tokens at temperature 0 about some media. It may be called from any goroutine.
func (v *viewer) chatMedia(model string, tokens int, media ...[]byte) calls.Answer {
	content := []any{map[string]any{"type": "text", "text": "Look:"}}
	for _, m := range media {
		content = append(content, testenv.MediaPart(m))
	}
	body, err := json.Marshal(map[string]any{
		"model": model, "messages": []any{map[string]any{"role": "user", "content": content}},
		"temperature": 0, "max_tokens": tokens, "logprobs": true, "ignore_eos": true, "cache_prompt": false,
	})
	if err != nil {
		return calls.Answer{Err: err}
	}
	ctx, cancel := context.WithTimeout(v.T.Context(), engineTime)
	defer cancel()
	return v.Call(ctx, http.MethodPost, "/v1/chat/completions", string(body))
}

func tokensOf(a calls.Answer) (shown, error) {
	var got struct {
		Choices []struct{ Logprobs struct{ Content shown } }
	}
	if a.Err != nil {
		return nil, a.Err
	}
	if err := json.Unmarshal(a.Body, &got); err != nil {
		return nil, err
	}
	if a.Status != http.StatusOK || len(got.Choices) != 1 || len(got.Choices[0].Logprobs.Content) == 0 {
		return nil, fmt.Errorf("status %d without tokens", a.Status)
	}
	return got.Choices[0].Logprobs.Content, nil
}

// tally is what /stats tells of a model's media.
func (v *viewer) tally(model string) mmstats.Stats {
	v.T.Helper()
	a := v.Get("/v1/stats")
	var stats struct {
		Media map[string]mmstats.Stats `json:"media_cache"`
	}
	if err := json.Unmarshal(a.Body, &stats); err != nil || a.Status != http.StatusOK {
		v.T.Fatalf("/v1/stats: %v %v", a, err)
	}
	return stats.Media[model]
}

// TestMedia tells the story of the encoder cache on the real engine. One system, each step goes on from the one before;
// what a response must be is told by the same model with the cache off.
func TestMedia(t *testing.T) {
	testenv.NeedInterposer(t)
	testenv.Models(t)
	server := testenv.StartRedis(t)
	spec := testenv.Spec{
		Models: mediaModels(), Redis: server, Args: []string{"--max-loaded-models=-1", "--mm-lookup-wait=10s", "--hold=" + engineTime.String()},
	}
	s := testenv.Start(t, spec)
	v := &viewer{world: &world{worlds.Of(t, nil, s)}, outer: t, spec: spec}
	p1, p2, p3 := testenv.Picture(1, 320, 240), testenv.Picture(2, 200, 448), testenv.Picture(3, 448, 448)
	const seen, unseen, off = "hit=1, miss=0", "hit=0, miss=1", ""

	gemma := v.show("gemma-3-270m-vision-off", off, p1)
	tiny, two, third := v.show("tiny-vision-off", off, p1), v.show("tiny-vision-off", off, p1, p2), v.show("tiny-vision-off", off, p3)
	if slices.Equal(tiny, third) || slices.Equal(tiny, two) {
		t.Error("the engine is blind: equal answers prove nothing")
	}
	step := func(name string, do func()) {
		ok := t.Run(name, func(t *testing.T) {
			outer := v.T
			v.T = t
			defer func() { v.T = outer }()
			do()
		})
		if !ok {
			t.FailNow() // the next would fail for this one's reason
		}
	}
	equal := func(got, want shown) {
		v.T.Helper()
		if !slices.Equal(got, want) {
			v.T.Errorf("answer %v, without the cache %v", got, want)
		}
	}

	step("A,_B,_A", func() {
		equal(v.show("gemma-3-270m-vision", unseen, p1), gemma)
		equal(v.show("tiny-vision", unseen, p1), tiny)
		equal(v.show("gemma-3-270m-vision", seen, p1), gemma)
	})
	step("two_pictures_of_which_one_was_seen", func() {
		equal(v.show("tiny-vision", "hit=1, miss=1", p1, p2), two)
	})
	step("ten_at_once_with_a_new_picture", func() {
		v.crowd("tiny-vision", p3, third)
		// Three pictures were encoded in all, and one was seen before.
		kit.Becomes(v.T, "hits and misses in /stats", [2]int64{1 + 9, 3}, func() [2]int64 {
			n := v.tally("tiny-vision")
			return [2]int64{n.Hits(), n.Misses}
		})
	})
	step("another_host", func() {
		kit.Becomes(v.T, "entries in Redis", 4, func() int { return len(v.entries("")) })
		equal(v.show("tiny-vision-far", seen, p1), tiny)
		kit.Becomes(v.T, "hits in Redis", int64(1), func() int64 { return v.tally("tiny-vision-far").HitsL2 })
	})
	step("sounds", func() {
		sound, _ := testenv.Sound(1, 1)
		want := v.show("tiny-audio-off", off, sound)
		equal(v.show("tiny-audio", unseen, sound), want)
		equal(v.show("tiny-audio", seen, sound), want)
	})
	step("killed", func() {
		v.kill("tiny-vision", p3)
		for _, model := range []string{"tiny-vision", "tiny-vision-far"} {
			equal(v.show(model, seen, p1), tiny) // nothing of it was left in memory
		}
	})
	step("entries_changed_by_hand", func() {
		sig := v.signature("tiny-vision")
		before := v.corrupt(sig)
		equal(v.show("tiny-vision", "hit=1, miss=1", p1, p2), two) // the first is in memory
		if n := v.metric(`reveille_runner_mm_refused_total{reason="invalid"}`); n != "1" {
			v.T.Errorf("%s entries refused for their MAC, want 1", n)
		}
		kit.Becomes(v.T, "entries repaired", 1, func() int { return v.repaired(sig, before) })
		equal(v.show("tiny-vision-far", "hit=2, miss=0", p1, p2), two)
	})
	step("Redis_stopped", func() {
		server.Kill()
		equal(v.show("tiny-vision", unseen, p3), third)
		equal(v.show("tiny-vision", "hit=1, miss=0", p1), tiny)
	})
}

// crowd shows a new picture ten times at once: it is encoded once. Requests that share a batch round differently, so
// that only the first token, which the picture decides, is compared.
func (v *viewer) crowd(model string, picture []byte, want shown) {
	answers := make([]calls.Answer, 10)
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() { answers[i] = v.chatMedia(model, 6, picture) })
	}
	wg.Wait()
	for i, a := range answers {
		if got, err := tokensOf(a); err != nil || got[0].Token != want[0].Token {
			v.T.Errorf("request %d: %v, %v, want %v", i, a, got, want)
		}
	}
}

// kill kills the system while a request with a picture is in an engine, which is held there, and starts it again.
func (v *viewer) kill(model string, picture []byte) {
	v.T.Helper()
	if err := syscall.Kill(v.Engine(model), syscall.SIGSTOP); err != nil {
		v.T.Fatal(err)
	}
	waiting := make(chan calls.Answer, 1)
	go func() { waiting <- v.chatMedia(model, 6, picture) }()
	kit.Becomes(v.T, "open requests", "1", func() string { return v.Field(model, "in_flight") })
	v.Kill() // fails if an engine outlives it
	select {
	case a := <-waiting:
		if a.Err == nil {
			v.T.Errorf("the open request got %v", a)
		}
	case <-time.After(engineTime):
		v.T.Error("the open request got no answer")
	}
	again := v.spec
	again.StateDir = v.StateDir
	v.System = testenv.Start(v.outer, again)
}

// signature is a model's, as `gateway mm` tells it.
func (v *viewer) signature(model string) string {
	v.T.Helper()
	ctx, cancel := context.WithTimeout(v.T.Context(), kit.Patience)
	defer cancel()
	redisURL := "redis://" + v.RedisAddr
	if strings.HasPrefix(v.RedisAddr, "/") {
		redisURL = config.SocketURL(v.RedisAddr)
	}
	out, err := exec.CommandContext(ctx, testenv.Build(v.T, "gateway"), "mm", "--json", "--redis-url="+redisURL).Output()
	var rows []struct {
		Signature     string
		Models        []string
		Media, Misses int
		Hits          int `json:"hits_l1_total"`
	}
	if err != nil || json.Unmarshal(out, &rows) != nil {
		v.T.Fatalf("gateway mm: %v %s", err, out)
	}
	for _, r := range rows {
		if slices.Contains(r.Models, model) {
			if r.Media == 0 || r.Hits == 0 {
				v.T.Errorf("gateway mm: %+v", r)
			}
			return r.Signature
		}
	}
	v.T.Fatalf("gateway mm does not list %s: %s", model, out)
	return ""
}

// entries are the values in Redis of a signature, of all with "", by key.
func (v *viewer) entries(sig string) map[string]string {
	v.T.Helper()
	out := map[string]string{}
	keys, err := v.Rdb.Keys(v.T.Context(), "mm:main:"+sig+"*:*").Result()
	if err != nil {
		v.T.Fatal(err)
	}
	for _, k := range keys {
		out[k] = v.Rdb.Get(v.T.Context(), k).Val()
	}
	return out
}

// corrupt changes the last byte of each entry of a signature and returns what is there now.
func (v *viewer) corrupt(sig string) map[string]string {
	v.T.Helper()
	bad := v.entries(sig)
	for at, value := range bad {
		changed := []byte(value)
		changed[len(changed)-1] ^= 1
		bad[at] = string(changed)
		if err := v.Rdb.Set(v.T.Context(), at, bad[at], 0).Err(); err != nil {
			v.T.Fatal(err)
		}
	}
	if len(bad) == 0 {
		v.T.Fatal("no entries")
	}
	return bad
}

// repaired counts the entries of a signature that are no longer as they were.
func (v *viewer) repaired(sig string, before map[string]string) int {
	n := 0
	for at, value := range v.entries(sig) {
		if before[at] != value {
			n++
		}
	}
	return n
}

// metric reads a metric of the local host's runner.
func (v *viewer) metric(name string) string {
	v.T.Helper()
	for line := range strings.Lines(v.runnerMetrics()) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	v.T.Fatalf("the runner has no metric %s", name)
	return ""
}

// TestEmbeddingsOfPictures: pictures in embedding requests go through the gateway to the real engine and through the encoder
// cache; what a response must be is told by the same model with the cache off.
func TestEmbeddingsOfPictures(t *testing.T) {
	testenv.NeedInterposer(t)
	testenv.Models(t)
	const model = "{type: embedding, recipe: llamacpp, checkpoint: .cache/models/tiny-gemma.gguf, device: cpu, " +
		`options: {ctx_size: 4096, llamacpp_args: "--pooling last -np 2 -t 1"}`
	models := "models:\n  sees: " + model + ", mmproj: .cache/models/tiny-mmproj.gguf}\n" +
		"  sees-off: " + model + ", mmproj: .cache/models/tiny-mmproj.gguf, mm_cache: none}\n" +
		"  blind: " + model + "}\nhosts:\n  local: {driver: local, devices: [cpu]}\n"
	s := testenv.Start(t, testenv.Spec{Models: models, Args: []string{"--max-loaded-models=-1", "--mm-lookup-wait=10s", "--hold=" + engineTime.String()}})
	w := &world{worlds.Of(t, nil, s)}
	picture := func(seed uint64) string { return base64.StdEncoding.EncodeToString(testenv.Picture(seed, 320, 240)) }
	pictured := func(text string, seeds ...uint64) any {
		var data []string
		for _, s := range seeds {
			data = append(data, picture(s))
		}
		return map[string]any{"prompt_string": text, "multimodal_data": data}
	}
	// ask checks what the response says of the cache and returns the vectors with the usage.
	ask := func(model, cache string, input ...any) string {
		t.Helper()
		a := w.embedAny(t.Context(), model, input)
		if got := a.Header.Get("x-media-cache"); got != cache {
			t.Errorf("%s: x-media-cache %q, want %q", model, got, cache)
		}
		return w.vectors(a)
	}
	const mark, off = "<__media__>", ""
	one, two := pictured(mark, 1), pictured("A "+mark+" is no "+mark+".", 1, 2)
	wantOne, wantTwo, wantMixed := ask("sees-off", off, one), ask("sees-off", off, two), ask("sees-off", off, "a text", one)
	if other := ask("sees-off", off, pictured(mark, 2)); other == wantOne {
		t.Error("the engine is blind: equal answers prove nothing")
	}
	for _, step := range []struct {
		cache, want string
		input       []any
	}{
		{"hit=0, miss=1", wantOne, []any{one}},
		{"hit=1, miss=0", wantOne, []any{one}},
		{"hit=1, miss=1", wantTwo, []any{two}},
		{"hit=1, miss=0", wantMixed, []any{"a text", one}},
	} {
		if got := ask("sees", step.cache, step.input...); got != step.want {
			t.Errorf("%s: the vectors differ from those without the cache", step.cache)
		}
	}
	for name, input := range map[string]any{
		"an address":    map[string]any{"prompt_string": mark, "multimodal_data": []string{"http://127.0.0.1/x.png"}},
		"a data: URL":   map[string]any{"prompt_string": mark, "multimodal_data": []string{"data:image/png;base64," + picture(1)}},
		"no picture":    map[string]any{"prompt_string": mark, "multimodal_data": []string{"AAAA"}},
		"fewer markers": pictured(mark, 1, 2),
		"a chat's part": testenv.MediaPart(testenv.Picture(1, 32, 32)),
		"nine pictures": pictured(strings.Repeat(mark, 9), 1, 1, 1, 1, 1, 1, 1, 1, 1),
	} {
		if a := w.embedAny(t.Context(), "sees", []any{input}); a.Status != http.StatusBadRequest {
			t.Errorf("%s: %v", name, a)
		}
	}
	if a := w.embedAny(t.Context(), "blind", []any{one}); a.Status != http.StatusBadRequest || a.Code() != "unsupported_parameter" {
		t.Errorf("a model without a projector: %v", a)
	}
	if loaded := w.Loaded(); slices.Contains(loaded, "blind") {
		t.Errorf("a refused request loaded its model: %v", loaded)
	}
}
