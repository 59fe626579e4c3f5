package pull

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"

	"reveille/testenv/calls"
)

// Weights are fetched by hand before anybody asks for their model: the client sees how far they are, nothing is loaded, and
// the first request finds them there.
func TestPullByHand(t *testing.T) {
	w := start(t, `
models:
  far: {type: llm, recipe: standin, device: cpu, checkpoint: "hf://lab/far/far.bin"}
  none: {type: llm, recipe: standin, device: cpu, checkpoint: "hf://lab/far/none.bin"}
hosts: {local: {driver: local, devices: [cpu]}}
`)
	raw := bytes.Repeat([]byte("weights "), 1<<20)
	w.hub.Put("lab/far", "far.bin", raw)
	if a := w.Get("/v1/models"); !strings.Contains(string(a.Body), `"id":"far"`) {
		t.Errorf("the listing lacks a model that can be fetched: %s", a.Body)
	}
	w.hub.Shut()
	resp, err := w.Client.Post(w.URL+"/v1/pull", "application/json", strings.NewReader(`{"model_name":"far","stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		t.Fatalf("%s %v", resp.Status, resp.Header)
	}
	events := bufio.NewReader(resp.Body)
	for e := ""; !strings.Contains(e, `"bytes_total":8388608,`); {
		if e, err = calls.ReadEvent(events); err != nil {
			t.Fatal(err)
		}
	}
	w.pulling("far", int64(len(raw)))
	w.hub.Open()
	rest, err := io.ReadAll(events)
	text := string(rest)
	if err != nil {
		t.Fatal(err)
	}
	last := "event: progress\ndata: {\"file\":\"lab/far/far.bin\",\"file_index\":1,\"total_files\":1,\"bytes_downloaded\":8388608,\"bytes_total\":8388608,\"percent\":100}\n\n" +
		"event: complete\ndata: {\"status\":\"success\",\"message\":\"Model is installed: far\"}\n\n"
	if !strings.HasSuffix(text, last) || strings.Contains(text, "event: error") {
		t.Errorf("events:\n%s", text)
	}
	reads := len(w.hub.Reads())
	if a := w.Post("/v1/pull", `{"model_name":"far"}`); a.Status != http.StatusOK || !strings.Contains(string(a.Body), `"status":"success"`) {
		t.Errorf("again: %d %s", a.Status, a.Body)
	}
	if s := w.status("far"); s.State != "unloaded" {
		t.Errorf("the model is %s", s.State)
	}
	if a := w.chat("far"); !a.OK() {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	if n := len(w.hub.Reads()); n != reads {
		t.Errorf("%d more reads for weights that are there", n-reads)
	}
	if a := w.Post("/v1/pull", `{"model_name":"none"}`); a.Status != http.StatusNotFound || a.Header.Get("x-should-retry") != "false" || !strings.Contains(string(a.Body), "model_file_not_found") {
		t.Errorf("weights that are nowhere: %d %s", a.Status, a.Body)
	}
	if a := w.Post("/v1/pull", `{"model_name":"none","stream":true}`); a.Status != http.StatusOK || !strings.Contains(string(a.Body), "event: error\n") || strings.Contains(string(a.Body), "complete") {
		t.Errorf("weights that are nowhere, streamed: %d %s", a.Status, a.Body)
	}
	if a := w.Get("/metrics"); !strings.Contains(string(a.Body), "reveille_pool_pull_bytes_total 8.388608e+06\n") ||
		!strings.Contains(string(a.Body), "reveille_pool_pull_seconds_count 1\n") || !strings.Contains(string(a.Body), "reveille_pool_pull_failures_total 2\n") {
		t.Errorf("the sums of the pulls: %s", grep(string(a.Body), "pull"))
	}
}

// grep are the lines of a text with a word in them.
func grep(text, word string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		if strings.Contains(line, word) {
			out.WriteString(line)
		}
	}
	return out.String()
}
