package testenv

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// llama starts the pinned llama-server on the CPU and returns its base URL.
func llama(t *testing.T, args ...string) string {
	t.Helper()
	port := FreePort(t)
	cmd := exec.Command(Engines(t).LlamaServer,
		append([]string{"--host", "127.0.0.1", "--port", fmt.Sprint(port), "--device", "none", "-c", "2048", "-np", "1"}, args...)...)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	exited, err := StartChild(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-exited
		http.DefaultClient.CloseIdleConnections()
		if t.Failed() {
			t.Logf("llama-server:\n%s", log.String())
		}
	})
	url := fmt.Sprintf("http://127.0.0.1:%d", port)
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		resp, err := http.Get(url + "/health")
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == 200 {
				return url
			}
		}
		select {
		case <-exited:
			t.Fatalf("llama-server ended: %v", cmd.ProcessState)
		default:
		}
		if time.Now().After(deadline) {
			t.Fatal("llama-server is not ready after 2 minutes")
		}
	}
}

// ask posts a JSON body and decodes the answer into v.
func ask(t *testing.T, url string, body, v any) {
	t.Helper()
	raw, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 200 || json.Unmarshal(out, v) != nil {
		t.Fatalf("%s: %d %v %.500s", url, resp.StatusCode, err, out)
	}
}

func TestRealEmbeddingsKnowMeaning(t *testing.T) {
	url := llama(t, "--model", Models(t).MiniLM, "--embedding")
	var a struct {
		Data []struct{ Embedding []float64 }
	}
	ask(t, url+"/v1/embeddings", map[string]any{
		"input": []string{"A cat sits on the mat", "A kitten is resting on the rug", "The annual tax report is due"},
	}, &a)
	if len(a.Data) != 3 || len(a.Data[0].Embedding) != 384 {
		t.Fatalf("%d embeddings of %d dimensions", len(a.Data), len(a.Data[0].Embedding))
	}
	dot := func(i, j int) (sum float64) {
		for k, x := range a.Data[i].Embedding {
			sum += x * a.Data[j].Embedding[k]
		}
		return sum
	}
	if near, far := dot(0, 1), dot(0, 2); near < 0.6 || far > 0.1 {
		t.Errorf("cosine of cat and kitten %.2f, of cat and tax %.2f", near, far)
	}
}

func TestRealRerankRepeats(t *testing.T) {
	url := llama(t, "--model", Models(t).Reranker, "--rerank")
	type answer struct {
		Results []struct {
			Index int
			Score float64 `json:"relevance_score"`
		}
	}
	body := map[string]any{"query": "cat", "documents": []string{"a cat", "a tax report", "a dog"}}
	var first, second answer
	ask(t, url+"/v1/rerank", body, &first)
	ask(t, url+"/v1/rerank", body, &second)
	if len(first.Results) != 3 || !slices.Equal(first.Results, second.Results) {
		t.Errorf("%+v, then %+v", first, second)
	}
}

func TestRealVisionModelsAnswer(t *testing.T) {
	m := Models(t)
	for _, tc := range []struct{ name, model, projector string }{
		{"gemma", m.Gemma, m.GemmaVision},
		{"tiny", m.Tiny, m.TinyVision},
	} {
		t.Run(tc.name, func(t *testing.T) {
			url := llama(t, "--model", tc.model, "--mmproj", tc.projector)
			plain := chat(t, url, "Once upon a time")
			if again := chat(t, url, "Once upon a time"); plain == "" || again != plain {
				t.Errorf("temperature 0: %q, then %q", plain, again)
			}
			chat(t, url, []any{
				map[string]any{"type": "text", "text": "What is this?"},
				map[string]any{"type": "image_url", "image_url": map[string]any{"url": picture(t)}},
			})
		})
	}
}

// chat asks for eight tokens at temperature 0 and returns the text.
func chat(t *testing.T, url string, content any) string {
	t.Helper()
	var a struct {
		Choices []struct{ Message struct{ Content string } }
		Usage   struct {
			Completion int `json:"completion_tokens"`
		}
	}
	ask(t, url+"/v1/chat/completions", map[string]any{
		"temperature": 0, "max_tokens": 8, "messages": []any{map[string]any{"role": "user", "content": content}},
	}, &a)
	if len(a.Choices) != 1 || a.Usage.Completion == 0 {
		t.Fatalf("%+v", a)
	}
	return a.Choices[0].Message.Content
}

// picture is a small PNG as a data URL.
func picture(t *testing.T) string {
	t.Helper()
	img := image.NewRGBA(image.Rect(0, 0, 64, 64))
	for i := range 64 * 64 {
		img.Set(i%64, i/64, color.RGBA{uint8(i % 64 * 4), uint8(i / 64 * 4), 128, 255})
	}
	var b bytes.Buffer
	if err := png.Encode(&b, img); err != nil {
		t.Fatal(err)
	}
	return "data:image/png;base64," + base64.StdEncoding.EncodeToString(b.Bytes())
}

func TestPythonHasTheClient(t *testing.T) {
	if out, err := exec.Command(Python(t), "-c", "import openai").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

func TestFetchScripts(t *testing.T) {
	cmd := exec.Command("python3", "-B", "-m", "unittest")
	cmd.Dir = filepath.Join(Root(t), "testenv", "local")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
