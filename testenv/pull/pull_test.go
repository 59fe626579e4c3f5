package pull

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	awss3 "github.com/aws/aws-sdk-go-v2/service/s3"

	"reveille/runner/weights/s3"
	"reveille/testenv"
	"reveille/testenv/aws"
	"reveille/testenv/calls"
	"reveille/testenv/hub"
	"reveille/testenv/kit"
	"reveille/testenv/worlds"
)

// world is a running system and the hub that it fetches from.
type world struct {
	*worlds.World
	hub *hub.Hub
}

func start(t *testing.T, models string, args ...string) *world {
	t.Helper()
	w := &world{hub: hub.Start(t)}
	w.hub.Private()
	w.World = worlds.Of(t, nil, testenv.Start(t, testenv.Spec{Models: models, Args: append([]string{"--hf-endpoint=" + w.hub.URL, "--hf-token=" + hub.Token}, args...)}))
	t.Cleanup(func() {
		for _, secret := range []string{hub.Token, hub.Signature} {
			if strings.Contains(w.Log(), secret) {
				t.Errorf("%s is in the log", secret)
			}
		}
	})
	return w
}

func (w *world) chat(model string) calls.Answer {
	return calls.Chat(w.T.Context(), w.Client, w.URL, model, 2, false)
}

// status is what GET /models/{id} tells of a load.
type status struct {
	State string `json:"value"`
	Done  *int64 `json:"bytes_done"`
	Total *int64 `json:"bytes_total"`
}

func (w *world) status(model string) (s status) {
	w.T.Helper()
	a := w.Get("/v1/models/" + model)
	var m struct{ Status status }
	if err := json.Unmarshal(a.Body, &m); err != nil || a.Status != 200 {
		w.T.Fatalf("status of %s: %d %s", model, a.Status, a.Body)
	}
	return m.Status
}

// pulling waits until clients can see how far a model's weights are.
func (w *world) pulling(model string, total int64) {
	w.T.Helper()
	var s status
	kit.Eventually(w.T, "bytes of "+model, func() bool {
		s = w.status(model)
		return s.State == "pulling" && s.Done != nil && *s.Done > 0 && *s.Done < total && *s.Total == total
	})
}

// A real model from a hub, served by the real engine. While its weights are on their way the status reports how far
// they are, and other models of the same host load and serve.
func TestModelFromAHub(t *testing.T) {
	testenv.Engines(t)
	raw, err := os.ReadFile(testenv.Models(t).MiniLM)
	if err != nil {
		t.Fatal(err)
	}
	w := start(t, `
models:
  minilm: {type: embedding, recipe: llamacpp, checkpoint: "hf://lab/minilm/gguf/minilm.gguf@v1", device: cpu}
  near: {type: llm, recipe: standin, device: cpu}
  other: {type: embedding, recipe: standin, device: cpu}
hosts: {local: {driver: local, devices: [cpu]}}
`)
	w.hub.Put("lab/minilm", "gguf/minilm.gguf", raw)
	w.hub.Shut()
	embed := `{"model":"minilm","input":"a cat on a mat"}`
	answer := worlds.Later(func() calls.Answer { return w.Post("/v1/embeddings", embed) })
	w.pulling("minilm", int64(len(raw)))
	if a := w.chat("near"); !a.OK() {
		t.Errorf("another model meanwhile: %d %s", a.Status, a.Body)
	}
	if a := w.Post("/v1/embeddings", `{"model":"other","input":"a"}`); !a.OK() { // whose slot the pulled one will need
		t.Errorf("another model of its type meanwhile: %d %s", a.Status, a.Body)
	}
	w.hub.Open()
	a := <-answer
	var out struct {
		Data []struct{ Embedding []float64 }
	}
	if err := json.Unmarshal(a.Body, &out); err != nil || !a.OK() || len(out.Data) != 1 || len(out.Data[0].Embedding) != 384 {
		t.Fatalf("%d %.300s", a.Status, a.Body)
	}
	if v := a.Header.Get("x-evicted"); v != "other" {
		t.Errorf("evicted %q", v)
	}
	reads := len(w.hub.Reads())
	if a := w.Post("/v1/unload", `{"model":"minilm"}`); a.Status != 200 {
		t.Fatalf("%d %s", a.Status, a.Body)
	}
	if a := w.Post("/v1/embeddings", embed); !a.OK() {
		t.Errorf("again: %d %s", a.Status, a.Body)
	}
	if n := len(w.hub.Reads()); n != reads {
		t.Errorf("%d more reads for a model that is there", n-reads)
	}
}

// A model from a bucket, found by the settings that AWS's own tools read.
func TestModelFromABucket(t *testing.T) {
	cloud := aws.Start(t, 0)
	for name, value := range map[string]string{
		"AWS_ENDPOINT_URL": cloud.URL, "AWS_REGION": aws.Region, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true",
	} {
		t.Setenv(name, value)
	}
	api, bucket, key, content := s3.Client(cloud.Config()), "models", "llm/far.bin", bytes.Repeat([]byte("far"), 1000)
	if _, err := api.CreateBucket(t.Context(), &awss3.CreateBucketInput{Bucket: &bucket}); err != nil {
		t.Fatal(err)
	}
	if _, err := api.PutObject(t.Context(), &awss3.PutObjectInput{Bucket: &bucket, Key: &key, Body: bytes.NewReader(content)}); err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	w := start(t, `
models:
  far: {type: llm, recipe: standin, device: cpu, checkpoint: "s3://models/llm/far.bin"}
  gone: {type: llm, recipe: standin, device: cpu, checkpoint: "s3://models/gone.bin"}
hosts: {local: {driver: local, devices: [cpu]}}
`, "--weights-dir="+folder)
	if a := w.chat("far"); !a.OK() {
		t.Errorf("%s", a)
	}
	found, _ := filepath.Glob(filepath.Join(folder, "local", "s3-models-far.bin-*", "far.bin"))
	if len(found) != 1 {
		t.Fatalf("found %v", found)
	}
	if got, err := os.ReadFile(found[0]); !bytes.Equal(got, content) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if a := w.chat("gone"); a.Status != 404 || a.Code() != "model_file_not_found" {
		t.Errorf("%s", a)
	}
}

// A client that streams hears of the bytes; a stranger sees the load.
func TestPullIsTold(t *testing.T) {
	w := start(t, `
models:
  far: {type: llm, recipe: standin, device: cpu, checkpoint: "hf://o/r/far.bin"}
hosts: {local: {driver: local, devices: [cpu]}}
`, "--commit-after=50ms", "--keepalive=50ms")
	w.hub.Put("o/r", "far.bin", make([]byte, 100_000))
	w.hub.Shut()
	resp, err := w.Client.Post(w.URL+"/v1/chat/completions", "application/json", strings.NewReader(calls.ChatBody("far", 2, true)))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewReader(resp.Body)
	next := func() string {
		t.Helper()
		e, err := calls.ReadEvent(lines)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	told := regexp.MustCompile(`^: loading model=far state=pulling host=local waited=\d+ position=1 bytes_done=[1-9]\d* bytes_total=100000$`)
	for end := time.Now().Add(kit.Patience); !told.MatchString(next()); {
		if time.Now().After(end) {
			t.Fatal("no comment tells the bytes")
		}
	}
	if a := w.Get("/v1/health"); !strings.Contains(string(a.Body), `"state":"pulling"`) {
		t.Errorf("listing of loads: %s", a)
	}
	w.hub.Open()
	for next() != "data: [DONE]" {
	}
}

// What cannot be fetched has its status at once, moves no other model, and is fetched once it can be.
func TestPullsThatFail(t *testing.T) {
	w := start(t, `
models:
  near: {type: llm, recipe: standin, device: cpu}
  gone: {type: llm, recipe: standin, device: cpu, checkpoint: "hf://o/r/gone.bin"}
  bad: {type: llm, recipe: standin, device: cpu, checkpoint: "hf://o/r/bad.bin"}
  huge: {type: llm, recipe: standin, device: cpu, checkpoint: "hf://o/r/huge.bin"}
  cloud: {type: llm, recipe: standin, device: cpu, checkpoint: "hf://o/r/bad.bin", sha256: "`+strings.Repeat("0", 64)+`"}
hosts: {local: {driver: local, devices: [cpu]}}
`, "--weights-bytes=50KB")
	w.hub.Put("o/r", "bad.bin", make([]byte, 20_000))
	w.hub.Put("o/r", "huge.bin", make([]byte, 60_000))
	w.hub.Damage("o/r", "bad.bin")
	if a := w.chat("near"); !a.OK() {
		t.Fatalf("%d %s", a.Status, a.Body)
	}
	for _, c := range []struct {
		model   string
		status  int
		code    string
		message string
	}{
		{"gone", 404, "model_file_not_found", "weights hf://o/r/gone.bin: not found: status 404 EntryNotFound"},
		{"huge", 507, "disk_full", "weights hf://o/r/huge.bin: not enough disk space: needs 58.6 KiB, only 48.8 KiB free"},
		{"bad", 500, "model_load_error", "weights hf://o/r/bad.bin: checksum mismatch: bad.bin"},
		{"cloud", 500, "model_load_error", "weights hf://o/r/bad.bin: checksum mismatch: bad.bin"},
	} {
		a := w.chat(c.model)
		if a.Status != c.status || a.Code() != c.code || a.Error().Message != c.message || a.Header.Get("x-should-retry") != "false" {
			t.Errorf("%s: %d %s; want %d %s %q", c.model, a.Status, a.Body, c.status, c.code, c.message)
		}
	}
	if a := w.chat("near"); !a.OK() || a.Header.Get("x-cold-start") != "" {
		t.Errorf("the loaded model was moved: %d %v", a.Status, a.Header)
	}
	w.hub.Put("o/r", "bad.bin", make([]byte, 20_000))
	w.hub.Put("o/r", "gone.bin", make([]byte, 20_000))
	for _, model := range []string{"gone", "bad"} {
		if a := w.chat(model); !a.OK() {
			t.Errorf("%s, mended: %d %s", model, a.Status, a.Body)
		}
	}
}
