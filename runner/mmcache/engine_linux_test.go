package mmcache

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"

	"reveille/infra/catalog"
	"reveille/infra/policy"
	"reveille/testenv"
	"reveille/testenv/kit"
)

func same(t *testing.T, what string, got, want answerTokens) {
	t.Helper()
	if !reflect.DeepEqual(got.Tokens, want.Tokens) {
		t.Errorf("%s: the response differs from the one without a cache:\n%v\n%v", what, got.Tokens, want.Tokens)
	}
}

// TestRealEnginesShareEncoderOutputs runs stock llama-servers of two hidden sizes on two hosts that share one Redis.
func TestRealEnginesShareEncoderOutputs(t *testing.T) {
	library(t)
	gemma, tiny := visionModels(t)
	p1, p2, p3 := testenv.Picture(1, 320, 240), testenv.Picture(2, 200, 448), testenv.Picture(3, 448, 448)

	off := startLlama(t, gemma, nil, "-np 2 -t 1")
	wantGemma := off.mustAsk(p1)
	off.stop()
	off = startLlama(t, tiny, nil, "-np 2 -t 1")
	wantTiny, wantTwo, wantNew := off.mustAsk(p1), off.mustAsk(p1, p2), off.mustAsk(p3)
	off.stop()

	srv := testenv.StartRedis(t)
	rdb := redisClient(t, srv.Addr)
	one := newServer(t, func(c *Config) { c.Redis = rdb })
	a, b := startLlama(t, gemma, one, "-np 2 -t 1"), startLlama(t, tiny, one, "-np 2 -t 1")
	var ca, cb [2]int64
	same(t, "A", a.mustAsk(p1), wantGemma)
	a.counts("A", 0, 1, &ca)
	same(t, "B", b.mustAsk(p1), wantTiny)
	b.counts("B", 0, 1, &cb)
	same(t, "A again", a.mustAsk(p1), wantGemma)
	a.counts("A again", 1, 0, &ca)
	a.stop()
	same(t, "two pictures, one of them seen", b.mustAsk(p1, p2), wantTwo)
	b.counts("two pictures, one of them seen", 1, 1, &cb)

	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			got, err := b.ask(p3)
			if err != nil {
				t.Error(err)
				return
			}
			// Requests that share a batch round differently; the picture decides only the first token.
			if got.Tokens[0].Token != wantNew.Tokens[0].Token {
				t.Errorf("concurrent: %v, want %v", got.Tokens, wantNew.Tokens)
			}
		})
	}
	wg.Wait()
	b.counts("ten concurrent requests with a new picture", 9, 1, &cb)
	kit.Eventually(t, "the writes behind", func() bool { return len(rdb.Keys(t.Context(), "mm:main:*:*").Val()) == 4 })
	b.stop()
	one.Close()

	// A restarted runner, and a second host without a memory tier.
	again := newServer(t, func(c *Config) { c.Redis = rdb })
	b = startLlama(t, tiny, again, "-np 2 -t 1")
	cb = [2]int64{}
	same(t, "after a restart", b.mustAsk(p1, p2), wantTwo)
	b.counts("after a restart", 2, 0, &cb)
	if n, saved := again.m.hits[tierRedis].Get(), again.m.saved.Get(); n != 2 || saved <= 0 {
		t.Errorf("%d hits in Redis saved %v s", n, saved)
	}
	b.stop()
	two := newServer(t, func(c *Config) { c.Redis, c.Bytes = rdb, -1 })
	b = startLlama(t, tiny, two, "-np 2 -t 1")
	cb = [2]int64{}
	same(t, "other host", b.mustAsk(p1), wantTiny)
	b.counts("other host", 1, 0, &cb)

	keys := rdb.Keys(t.Context(), redisKey("main", Sig(tiny.Signature()), Ident{})[:25]+"*").Val()
	if len(keys) != 3 {
		t.Fatal(keys)
	}
	for _, k := range keys {
		v := rdb.Get(t.Context(), k).Val()
		rdb.Set(t.Context(), k, v[:len(v)-5]+"wrong", 0)
	}
	same(t, "corrupt entry", b.mustAsk(p1), wantTiny)
	b.counts("corrupt entry", 0, 1, &cb)
	if two.m.refused[reasonInvalid].Get() != 1 {
		t.Error("the corrupt entry was not counted")
	}
	kit.Eventually(t, "the repair", func() bool { return two.m.redisWritten.Get() > 0 })
	same(t, "repaired", b.mustAsk(p1), wantTiny)
	b.counts("repaired", 1, 0, &cb)

	srv.Kill()
	same(t, "without Redis", b.mustAsk(p1), wantTiny)
	b.counts("without Redis", 0, 1, &cb)
	if log := b.log(); strings.Contains(log, "reveille-mm:") {
		t.Errorf("the interposer complained:\n%s", log)
	}

	// Without a runner the engine runs uncached and logs one line.
	b.a.Detach()
	for range 5 {
		same(t, "without a runner", b.mustAsk(p1), wantTiny)
	}
	if n := strings.Count(b.log(), "reveille-mm:"); n != 1 {
		t.Errorf("%d lines of the interposer\n%s", n, b.log())
	}
}

// TestAudioIsCached sends sounds to a stock llama-server with an audio tower. One of them is too long for a single
// chunk.
func TestAudioIsCached(t *testing.T) {
	library(t)
	files := testenv.Models(t)
	ear := &catalog.Model{ID: "tiny-audio", Checkpoint: files.Tiny, MMProj: files.TinyAudio, Type: policy.LLM, MMCache: catalog.ShareAll}
	short, _ := testenv.Sound(1, 1)
	long, _ := testenv.Sound(2, 31)

	off := startLlama(t, ear, nil, "-np 1 -t 1")
	want, wantTwo := off.mustAsk(short), off.mustAsk(short, long)
	off.stop()
	if reflect.DeepEqual(want.Tokens, wantTwo.Tokens) {
		t.Error("the engine ignores audio: the test proves nothing")
	}

	rdb := redisClient(t, testenv.Redis(t))
	l := startLlama(t, ear, newServer(t, func(c *Config) { c.Redis = rdb }), "-np 1 -t 1")
	var counts [2]int64
	same(t, "new", l.mustAsk(short), want)
	l.counts("new", 0, 1, &counts)
	same(t, "again", l.mustAsk(short), want)
	l.counts("again", 1, 0, &counts)
	same(t, "two sounds, one of them seen", l.mustAsk(short, long), wantTwo)
	l.counts("two sounds, one of them seen", 1, 1, &counts)
	l.stop()

	kit.Eventually(t, "the writes behind", func() bool { return len(rdb.Keys(t.Context(), "mm:main:*:*").Val()) == 2 })
	l = startLlama(t, ear, newServer(t, func(c *Config) { c.Redis, c.Bytes = rdb, -1 }), "-np 1 -t 1")
	counts = [2]int64{}
	same(t, "other host", l.mustAsk(short, long), wantTwo)
	l.counts("other host", 2, 0, &counts)
	if log := l.log(); strings.Contains(log, "reveille-mm:") {
		t.Errorf("the interposer complained:\n%s", log)
	}
}

// TestEmbeddingModelsUseTheCache checks that pictures in embedding requests take the same path.
func TestEmbeddingModelsUseTheCache(t *testing.T) {
	library(t)
	_, tiny := visionModels(t)
	tiny.Type = policy.Embedding
	var answers [][]byte
	s := newServer(t, nil)
	for _, s := range []*Server{nil, s} {
		l := startLlama(t, tiny, s, "-np 1 -t 1 --pooling mean")
		var props struct {
			Marker string `json:"media_marker"`
		}
		if text, err := l.call("/props", nil); err != nil || json.Unmarshal(text, &props) != nil || props.Marker == "" {
			t.Fatalf("%v %s", err, text)
		}
		body, err := json.Marshal(map[string]any{"content": []any{map[string]any{
			"prompt_string": "Look: " + props.Marker, "multimodal_data": []string{base64.StdEncoding.EncodeToString(testenv.Picture(1, 320, 240))},
		}}})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			got, err := l.call("/embeddings", body)
			if err != nil {
				t.Fatalf("%v\n%s", err, l.log())
			}
			answers = append(answers, got)
			if s != nil { // the engine responds before the cache has stored the outputs
				kit.Eventually(t, "the outputs in memory", func() bool { n, _ := s.l1.size(); return n == 1 })
			}
		}
		if s != nil {
			l.counts("two requests with one picture", 1, 1, new([2]int64))
		}
		l.stop()
	}
	for _, a := range answers {
		if !bytes.Equal(a, answers[0]) {
			t.Errorf("embeddings differ: %.200s, %.200s", a, answers[0])
		}
	}
}

func TestLibraryIsFoundInTheFirstFolder(t *testing.T) {
	dir := t.TempDir()
	if _, err := FindLibrary(dir); err == nil {
		t.Error("found an entry that does not exist")
	}
	if err := os.WriteFile(filepath.Join(dir, LibraryName), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if p, err := FindLibrary("", "/none", dir); err != nil || p != filepath.Join(dir, LibraryName) {
		t.Errorf("%s %v", p, err)
	}
}
