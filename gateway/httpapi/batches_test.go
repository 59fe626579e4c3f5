package httpapi

import (
	"bytes"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"strings"
	"testing"
	"time"

	"reveille/gateway/batches"
	"reveille/infra/catalog"
)

// upload sends a file in a form.
func (s *stage) upload(file io.Reader, size int64) reply {
	s.t.Helper()
	var form bytes.Buffer
	w := multipart.NewWriter(&form)
	_ = w.WriteField("purpose", "batch")
	_, _ = w.CreateFormFile("file", "in.jsonl")
	begin := bytes.Clone(form.Bytes())
	form.Reset()
	_ = w.Close()
	req, err := http.NewRequestWithContext(s.t.Context(), "POST", "http://"+s.addr+"/v1/files", io.MultiReader(bytes.NewReader(begin), file, &form))
	if err != nil {
		s.t.Fatal(err)
	}
	if size >= 0 {
		req.ContentLength = size + int64(len(begin)+form.Len())
	}
	req.Header.Set("Content-Type", w.FormDataContentType())
	resp, err := s.http.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	return s.read(resp)
}

// The lines of a batch run as requests in the background, and each gets its own outcome.
func TestBatches(t *testing.T) {
	s := newStage(t, func(_ *stage, c *Config) { c.BatchDir, c.BatchBytes = t.TempDir(), 1<<30 }).warm("chat")
	var lines strings.Builder
	add := func(id, body string) {
		fmt.Fprintf(&lines, `{"custom_id":%q,"method":"POST","url":"/v1/chat/completions","body":%s}`+"\n", id, body)
	}
	const messages = `"messages":[{"role":"user","content":"hi"}]`
	add("one", `{"model":"chat",`+messages+`}`)
	add("none", `{"model":"nothing",`+messages+`}`)
	add("stream", `{"model":"chat","stream":true,`+messages+`}`)
	add("empty", `{"model":"chat"}`)
	add("two", `{"model":"nick",`+messages+`}`)
	file := s.upload(strings.NewReader(lines.String()), -1)
	if file.status != 200 {
		t.Fatal(file.status, file.text)
	}
	b := s.ask("POST", "/v1/batches", fmt.Sprintf(`{"input_file_id":%q,"endpoint":"/v1/chat/completions","completion_window":"24h"}`, file.json["id"]))
	if b.status != 200 || b.json["status"] != "validating" {
		t.Fatal(b.status, b.text)
	}
	path := "/v1/batches/" + b.json["id"].(string)
	s.until("the batch's end", func() bool { b = s.ask("GET", path, ""); return b.json["status"] == "completed" })
	if counts := fmt.Sprint(b.json["request_counts"]); counts != "map[completed:2 failed:3 total:5]" {
		t.Error(b.text)
	}
	output := s.ask("GET", fmt.Sprintf("/v1/files/%s/content", b.json["output_file_id"]), "").text
	errors := s.ask("GET", fmt.Sprintf("/v1/files/%s/content", b.json["error_file_id"]), "").text
	for _, want := range []string{`"custom_id":"one","response":{"status_code":200,"request_id":"req_`, `"body":{"ok":true,"usage"`, `"custom_id":"two"`} {
		if !strings.Contains(output, want) {
			t.Errorf("no %s in %s", want, output)
		}
	}
	for _, want := range []string{`"status_code":404`, `"code":"model_not_found"`, `"param":"stream"`, `"param":"messages"`} {
		if !strings.Contains(errors, want) {
			t.Errorf("no %s in %s", want, errors)
		}
	}
	for _, r := range s.got() {
		if r.priority != "background" || r.background != "1" {
			t.Errorf("%+v", r)
		}
	}
	if r := s.ask("GET", "/metrics", ""); !strings.Contains(r.text, `reveille_gateway_batch_lines_total{outcome="failed"} 3`) {
		t.Error("lines are not counted")
	}
	if n := s.server.bodies.Buffered(); n != 0 {
		t.Error(n, "bytes are held")
	}
}

// In batch_hours, lines run as requests that wait for their model's load.
func TestBatchHours(t *testing.T) {
	s := newStage(t, func(_ *stage, c *Config) {
		c.BatchDir, c.BatchBytes = t.TempDir(), 1<<30
		cat := *c.Catalog()
		cat.BatchHours = &catalog.Period{For: catalog.Duration(time.Hour)}
		if err := cat.BatchHours.Schedule.UnmarshalText([]byte("*/10 * * * *")); err != nil {
			t.Fatal(err)
		}
		c.Catalog = func() *catalog.Catalog { return &cat }
	})
	const text = `{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"model":"chat","messages":[{"role":"user","content":"hi"}]}}`
	b := s.ask("POST", "/v1/batches", fmt.Sprintf(`{"input_file_id":%q,"endpoint":"/v1/chat/completions","completion_window":"24h"}`, s.upload(strings.NewReader(text), -1).json["id"]))
	path := "/v1/batches/" + b.json["id"].(string)
	s.until("the batch's end", func() bool { b = s.ask("GET", path, ""); return b.json["status"] == "completed" })
	if got := s.got(); len(got) != 1 || got[0].priority != "low" || got[0].background != "" {
		t.Errorf("%+v", got)
	}
}

// Responses of lines that wait for earlier ones take none of the memory of people's requests.
func TestBatchMemory(t *testing.T) {
	s := newStage(t, func(_ *stage, c *Config) { c.BatchDir, c.BatchBytes, c.MaxBufferedBytes = t.TempDir(), 1<<30, 1<<20 }).warm("chat")
	first := make(chan struct{})
	response := `{"text":"` + strings.Repeat("x", 200<<10) + `"}`
	s.serve(func(w http.ResponseWriter, r *http.Request) {
		if body, _ := io.ReadAll(r.Body); bytes.Contains(body, []byte("line 0")) {
			<-first
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, response)
	})
	var lines strings.Builder
	for i := range 12 {
		fmt.Fprintf(&lines, `{"custom_id":"%d","method":"POST","url":"/v1/chat/completions","body":{"model":"chat","messages":[{"role":"user","content":"line %d"}]}}`+"\n", i, i)
	}
	b := s.ask("POST", "/v1/batches", fmt.Sprintf(`{"input_file_id":%q,"endpoint":"/v1/chat/completions","completion_window":"24h"}`, s.upload(strings.NewReader(lines.String()), -1).json["id"]))
	s.until("all lines but the first have run", func() bool {
		return strings.Contains(s.ask("GET", "/metrics", "").text, "reveille_gateway_requests_open 1\n") && len(s.got()) >= 12
	})
	if r := s.ask("POST", "/v1/chat/completions", `{"model":"chat","messages":[{"role":"user","content":"person"}]}`); r.status != 200 {
		t.Error(r.status, r.text)
	}
	close(first)
	path := "/v1/batches/" + b.json["id"].(string)
	s.until("the batch's end", func() bool { b = s.ask("GET", path, ""); return b.json["status"] == "completed" })
	if counts := fmt.Sprint(b.json["request_counts"]); counts != "map[completed:12 failed:0 total:12]" {
		t.Error(counts)
	}
}

// Uploads are as large as OpenAI's, whatever their form, and are not held in memory.
func TestUploads(t *testing.T) {
	s := newStage(t, func(_ *stage, c *Config) {
		c.BatchDir, c.BatchBytes, c.MaxBody, c.MaxBufferedBytes = t.TempDir(), 1<<30, 1<<20, 2<<20
	})
	const large = 40 << 20
	for _, size := range []int64{large, -1} {
		r := s.upload(io.LimitReader(letters{}, large), size)
		if r.status != 200 || r.json["bytes"] != float64(large) {
			t.Error(size, r.status, r.text)
		}
	}
	for _, size := range []int64{batches.MaxFile + maxForm, -1} {
		if r := s.upload(io.LimitReader(letters{}, batches.MaxFile+maxForm), size); r.status != 413 {
			t.Error(size, r.status, r.text)
		}
	}
	if r := newStage(t).upload(strings.NewReader("x"), -1); r.status != 501 || !strings.Contains(r.text, "--batch-dir") {
		t.Error(r.status, r.text)
	}
}

// The requests of a message batch come in one body, which may be as large as any other for a model.
func TestLargeMessageBatch(t *testing.T) {
	s := newStage(t, func(_ *stage, c *Config) { c.BatchDir, c.BatchBytes, c.MaxBody = t.TempDir(), 1<<30, 4<<20 })
	for size, want := range map[int]int{3 << 20: 200, 4 << 20: 413} {
		body := fmt.Sprintf(`{"requests":[{"custom_id":"a","params":{"model":"chat","max_tokens":1,"messages":[{"role":"user","content":%q}]}}]}`,
			strings.Repeat("x", size))
		if r := s.ask("POST", "/v1/messages/batches", body); r.status != want {
			t.Errorf("%d bytes: %d %s", len(body), r.status, r.text)
		}
	}
	if r := s.ask("POST", "/v1/batches", `{"input_file_id":"`+strings.Repeat("x", maxManagementBody)+`"}`); r.status != 413 {
		t.Error(r.status, r.text)
	}
}

// HEAD of the results leaves the connection ready for the next request.
func TestHeadOfResults(t *testing.T) {
	s := newStage(t, func(_ *stage, c *Config) { c.BatchDir, c.BatchBytes = t.TempDir(), 1<<30 }).warm("chat")
	b := s.ask("POST", "/v1/messages/batches", `{"requests":[{"custom_id":"a","params":{"model":"chat","max_tokens":1,"messages":[{"role":"user","content":"hi"}]}}]}`)
	path := fmt.Sprintf("/v1/messages/batches/%s", b.json["id"])
	s.until("the batch's end", func() bool { return s.ask("GET", path, "").json["processing_status"] == "ended" })
	c := s.dial()
	for _, request := range []string{"HEAD " + path + "/results", "GET " + path + "/results"} {
		if r := c.say(request + " HTTP/1.1\r\nHost: localhost\r\n\r\n"); r.status != 200 || r.header.Get("Content-Type") != "application/x-jsonl" {
			t.Errorf("%s: %d %s", request, r.status, r.text)
		}
	}
}

// letters is an endless text.
type letters struct{}

func (letters) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}
