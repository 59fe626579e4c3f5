package plan

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"reveille/infra/policy"
	"reveille/infra/recipe"
	"reveille/runner/engine"
	"reveille/testenv"
)

// TestRealEngineAcceptsThePlans: a text, an embedding and a reranking model run side by side, each by its own plan, and
// the plans are the same whichever was loaded first.
func TestRealEngineAcceptsThePlans(t *testing.T) {
	files := testenv.Models(t)
	models := []struct {
		file       string
		typ        policy.Type
		path, body string
		kind       Kind
		context    int
	}{
		{files.Gemma, policy.LLM, "/v1/completions", `{"prompt":"a","max_tokens":4}`, Paged, 32_768},
		{files.MiniLM, policy.Embedding, "/v1/embeddings", `{"input":["a","b"]}`, Plain, 4096},
		{files.Reranker, policy.Reranking, "/v1/rerank", `{"query":"a","documents":["b","c"]}`, Plain, 4096},
	}
	plans := map[string]Plan{}
	var reader Reader
	for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		for loaded, i := range order {
			m := models[i]
			p := reader.For(m.file, Options{Type: m.typ, Devices: policy.CPU, Engine: "llamacpp", Context: -1}, ShareOf(8<<30, 1, loaded, 0))
			if was, known := plans[m.file]; known && fmt.Sprint(was) != fmt.Sprint(p) {
				t.Errorf("order %v: %+v, was %+v", order, p, was)
			}
			plans[m.file] = p
		}
	}
	r := recipe.Shipped()["llamacpp"]
	urls := make([]string, len(models))
	for i, m := range models {
		p := plans[m.file]
		if p.Kind != m.kind || p.Context != m.context {
			t.Errorf("%s: %+v", m.file, p)
		}
		opts := p.Apply(&r, r.Effective(recipe.Layers{}))
		urls[i] = run(t, engine.Spec{
			Recipe: r, Program: testenv.Engines(t).LlamaServer, Model: "m", Checkpoint: m.file, Type: m.typ, Devices: policy.CPU, Options: opts, Host: "127.0.0.1",
		})
	}
	for i, m := range models { // all are loaded, so all answer
		if status, answer := post(t, urls[i]+m.path, m.body); status != 200 {
			t.Errorf("%s: %d %s", m.path, status, answer)
		}
		_, answer := get(t, urls[i]+"/props")
		var props struct {
			Slots int `json:"total_slots"`
		}
		if err := json.Unmarshal(answer, &props); err != nil || props.Slots != plans[m.file].Parallel {
			t.Errorf("%s: %d slots, planned %d, %v", m.file, props.Slots, plans[m.file].Parallel, err)
		}
	}
}

// run starts an engine on a free port and waits until it serves.
func run(t *testing.T, s engine.Spec) (url string) {
	t.Helper()
	s.Port = testenv.FreePort(t)
	argv, err := engine.Argv(s)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	ended, err := testenv.StartChild(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
		if t.Failed() {
			t.Log(strings.Join(argv, " "), "\n", log.String()[max(0, log.Len()-3000):])
		}
	})
	for end := time.Now().Add(60 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if resp, err := http.Get(s.HealthURL()); err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == 200 {
				return s.BaseURL()
			}
		}
		if time.Now().After(end) {
			t.Fatal("not ready")
		}
	}
}

func post(t *testing.T, url, body string) (int, []byte) {
	t.Helper()
	return read(t)(http.Post(url, "application/json", strings.NewReader(body)))
}

func get(t *testing.T, url string) (int, []byte) {
	t.Helper()
	return read(t)(http.Get(url))
}

func read(t *testing.T) func(*http.Response, error) (int, []byte) {
	return func(resp *http.Response, err error) (int, []byte) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, body
	}
}
