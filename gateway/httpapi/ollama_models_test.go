package httpapi

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/policy"
	"reveille/infra/power"
	"reveille/infra/state"
	"reveille/warmer/sweep"
)

const (
	detailsShape = "{families:[] family:string format:string parameter_size:string parent_model:string quantization_level:string}"
	tagShape     = "{details:" + detailsShape + " digest:string model:string modified_at:string name:string size:number}"
	psShape      = "{context_length:number details:" + detailsShape +
		" digest:string expires_at:string model:string name:string size:number size_vram:number}"
	showShape = "{capabilities:[string] details:" + detailsShape +
		" model_info:{general.basename:string general.context_length:number} modelfile:string parameters:string template:string}"
)

// register adds a model at run time.
func (p *pool) register(name, checkpoint string) {
	p.t.Helper()
	p.want(200, p.post("/v1/models/register", fmt.Sprintf(`{"model_name":%q,"recipe":"standin","device":"cpu","checkpoint":%q}`, name, checkpoint)))
}

// weights writes a file of 8 bytes with the given modification time.
func (p *pool) weights(name string, at time.Time) (path string) {
	p.t.Helper()
	path = filepath.Join(p.t.TempDir(), name)
	if err := os.WriteFile(path, []byte("8 bytes!"), 0o600); err != nil {
		p.t.Fatal(err)
	}
	if err := os.Chtimes(path, at, at); err != nil {
		p.t.Fatal(err)
	}
	return path
}

// playHost makes a host ready whose runner is the test, and returns the generation that its writes carry.
func (p *pool) playHost(name string) uint64 {
	p.t.Helper()
	gen, _, err := p.store.Register(p.t.Context(), state.HostInfo{Name: name, Boot: "b", Addr: "127.0.0.1:9", Devices: "cpu gpu", Limits: "-1"})
	if err != nil {
		p.t.Fatal(err)
	}
	return gen
}

// putLoaded writes the record of a loaded model that was last used an age ago.
func (p *pool) putLoaded(host string, gen uint64, id string, age time.Duration, fields map[string]string) {
	p.t.Helper()
	fields["state"], fields["type"], fields["used_age_ms"] = "loaded", "llm", strconv.FormatInt(age.Milliseconds(), 10)
	if err := p.store.PutModels(p.t.Context(), host, gen, []state.ModelPut{{ID: id, Fields: fields}}); err != nil {
		p.t.Fatal(err)
	}
}

// errorLine checks that the whole body is an error in the dialect.
func (p *pool) errorLine(r reply) {
	p.t.Helper()
	if text, _ := r.json["error"].(string); text == "" || len(r.json) != 1 {
		p.t.Errorf("not an error of the dialect: %s", r.text)
	}
}

func TestOllamaVersion(t *testing.T) {
	p := newPool(t, "")
	if r := p.want(200, p.get("/api/version")); r.text != `{"version":"0.16.1"}` {
		t.Error(r.text)
	}
	p.want(200, p.do("HEAD", "/api/version", ""))
}

// tagged returns a model's name as Ollama's clients expect it.
func tagged(id string) string {
	if strings.Contains(id, ":") {
		return id
	}
	return id + ":latest"
}

// Tags are the models of the other listing.
func TestOllamaTags(t *testing.T) {
	p := newPool(t, "")
	at := time.Date(2025, 6, 7, 8, 9, 10, 0, time.UTC)
	p.register("user.near:q8", p.weights("near-1.5B.Q8_0.gguf", at))
	p.register("user.far", "hf://lab/far-GGUF/far-270m-it-q4_k_m.gguf")
	r := p.want(200, p.get("/api/tags"))
	var want, got []string
	for _, m := range p.get("/v1/models").list("data") {
		want = append(want, tagged(m["id"].(string)))
	}
	byName := map[string]map[string]any{}
	for _, m := range r.list("models") {
		name := m["name"].(string)
		got = append(got, name)
		byName[name] = m
		if shape(m) != tagShape {
			t.Errorf("a tag is\n%s, want\n%s", shape(m), tagShape)
		}
		if digest := m["digest"].(string); m["model"] != name || len(digest) != 64 || strings.Trim(digest, "0123456789abcdef") != "" {
			t.Errorf("tag: %v", m)
		}
	}
	if !slices.Equal(got, want) || slices.Contains(got, "gone:latest") || !slices.Contains(got, "org/three:latest") {
		t.Errorf("got %v, want %v", got, want)
	}
	near, far := byName["user.near:q8"], byName["user.far:latest"]
	if near["size"] != 8.0 || near["modified_at"] != "2025-06-07T08:09:10Z" || near["digest"] == far["digest"] {
		t.Errorf("near: %v", near)
	}
	if since, err := time.Parse(time.RFC3339, far["modified_at"].(string)); err != nil || time.Since(since) > time.Hour || far["size"] != 0.0 {
		t.Errorf("far: %v %v", far, err)
	}
	details := far["details"].(map[string]any)
	if details["format"] != "gguf" || details["parameter_size"] != "270M" || details["quantization_level"] != "Q4_K_M" {
		t.Errorf("far: %v", details)
	}
}

// Loaded models are listed once each, the most recently used first, with the memory of the copy that was used last.
func TestOllamaPS(t *testing.T) {
	p := newPool(t, "")
	if r := p.want(200, p.get("/api/ps")); r.text != `{"models":[]}` {
		t.Error(r.text)
	}
	here, there := p.playHost("here"), p.playHost("there")
	p.putLoaded("here", here, "two", 4*time.Second, map[string]string{"device": "gpu", "memory": "200", "options": `{"ctx_size":2048}`})
	p.putLoaded("there", there, "two", 5*time.Second, map[string]string{"device": "gpu", "memory": "999"})
	p.putLoaded("here", here, "one", 3*time.Second, map[string]string{"device": "cpu", "memory": "100"})
	p.putLoaded("there", there, "left", 2*time.Second, map[string]string{"device": "cpu gpu", "recipe": "left", "checkpoint": "/m/left-7B-Q8_0.gguf"})
	p.want(200, p.post("/v1/internal/pin", `{"model_name":"one","pinned":true}`))
	const stays = 100 * 365 * 24 * time.Hour
	tests := []struct {
		name                string
		size, vram, context float64
		in                  time.Duration // until it is unloaded
	}{
		{"left:latest", 0, 0, 0, stays},
		{"one:latest", 100, 0, 0, stays},
		{"two:latest", 200, 200, 2048, 10*time.Minute - 4*time.Second},
	}
	r := p.want(200, p.get("/api/ps"))
	list := r.list("models")
	if len(list) != len(tests) {
		t.Fatal(r.text)
	}
	for i, tt := range tests {
		m := list[i]
		if shape(m) != psShape || m["name"] != tt.name || m["model"] != tt.name || m["size"] != tt.size || m["size_vram"] != tt.vram || m["context_length"] != tt.context {
			t.Errorf("%s:\ngot  %v\n%s", tt.name, m, shape(m))
		}
		at, err := time.Parse(time.RFC3339, m["expires_at"].(string))
		if off := time.Until(at) - tt.in; err != nil || tt.in == stays && off < -time.Minute || tt.in != stays && off.Abs() > 2*time.Second {
			t.Errorf("%s goes at %v, %v %v", tt.name, at, off, err)
		}
	}
	if d := list[0]["details"].(map[string]any); d["parameter_size"] != "7B" || d["quantization_level"] != "Q8_0" {
		t.Errorf("left: %v", d)
	}
	for _, tag := range p.get("/api/tags").list("models") {
		if tag["name"] == "two:latest" && tag["digest"] != list[2]["digest"] {
			t.Error("a model has two digests")
		}
	}
}

func TestOllamaShow(t *testing.T) {
	p := newPool(t, "")
	r := p.want(200, p.post("/api/show", `{"model":"two"}`))
	if got := shape(r.json); got != showShape {
		t.Errorf("got\n%s, want\n%s", got, showShape)
	}
	num := func(n int) string { return fmt.Sprintf("%-30s %d", "num_ctx", n) }
	if r.json["parameters"] != num(512) || r.json["template"] != "" || r.header.Get("x-model") != "two" || !strings.HasSuffix(r.json["modelfile"].(string), "\nFROM two\n") {
		t.Error(r.text)
	}
	path := p.weights("near-1.5B.Q8_0.gguf", time.Now())
	p.register("user.near", path)
	if r := p.want(200, p.post("/api/show", `{"model":"near"}`)); !strings.HasPrefix(r.json["modelfile"].(string), "# Modelfile") ||
		!strings.HasSuffix(r.json["modelfile"].(string), "\nFROM near-1.5B.Q8_0.gguf\n") || strings.Contains(r.text, filepath.Dir(path)) {
		t.Error(r.text)
	}
	tests := []struct {
		body   string
		status int
		id     string // of the model that is found
	}{
		{`{"model":"uno"}`, 200, "one"},
		{`{"name":"org/three","verbose":true}`, 200, "org/three"},
		{`{"model":"one:latest","name":""}`, 200, "one"},
		{`{"model":"nobody"}`, 404, ""},
		{`{"model":""}`, 400, ""},
		{`{}`, 400, ""},
		{`{"model":1}`, 400, ""},
		{`[]`, 400, ""},
	}
	for _, tt := range tests {
		r := p.want(tt.status, p.post("/api/show", tt.body))
		if tt.status != 200 {
			p.errorLine(r)
		} else if info := r.json["model_info"].(map[string]any); info["general.basename"] != tt.id || len(info) != 1 || r.json["parameters"] != "" {
			t.Errorf("%s: %s", tt.body, r.text)
		}
	}
	p.putLoaded("here", p.playHost("here"), "one", 0, map[string]string{"device": "cpu", "options": `{"ctx_size":1024}`})
	if r := p.want(200, p.post("/api/show", `{"model":"one"}`)); r.json["parameters"] != num(1024) {
		t.Errorf("loaded with other options: %s", r.text)
	}
}

func TestOllamaDelete(t *testing.T) {
	p := newPool(t, "1")
	p.register("user.mine", "")
	p.want(200, p.post("/v1/load", `{"model_name":"user.mine"}`))
	if list := p.get("/api/ps").list("models"); len(list) != 1 || list[0]["name"] != "user.mine:latest" {
		t.Errorf("loaded: %v", list)
	}
	if r := p.want(200, p.do("DELETE", "/api/delete", `{"model":"user.mine"}`)); r.text != "" {
		t.Errorf("an empty body: %q", r.text)
	}
	if list := p.get("/api/ps").list("models"); len(list) != 0 {
		t.Errorf("loaded: %v", list)
	}
	p.want(404, p.get("/v1/models/user.mine"))
	p.want(200, p.do("DELETE", "/api/delete", `{"name":"two"}`)) // the operator's: it is unloaded and stays
	p.want(200, p.get("/v1/models/two"))
	for body, status := range map[string]int{`{"model":"user.mine"}`: 404, `{"model":"nobody"}`: 404, `{}`: 400, `{`: 400} {
		p.errorLine(p.want(status, p.do("DELETE", "/api/delete", body)))
	}
}

const (
	lineManifest = `{"status":"pulling manifest"}`
	lineSuccess  = `{"status":"success"}`
)

// lineOf returns the line of a pull with this progress.
func lineOf(m *catalog.Model, done, total int) string {
	digest := fmt.Sprintf("%x", sha256.Sum256([]byte(m.ID+"\x00"+m.Checkpoint+"\x00"+m.MMProj)))
	return fmt.Sprintf(`{"status":"pulling %s","digest":"sha256:%s","total":%d,"completed":%d}`, digest[:12], digest, total, done)
}

// Weights stored on the hosts are present, or the model is unavailable.
func TestOllamaPull(t *testing.T) {
	p := newPool(t, "")
	path := p.weights("near.gguf", time.Now())
	p.register("user.near", path)
	const missing = `{"error":"The files of the model 'gone' are missing."}`
	tests := []struct {
		body   string
		status int
		want   string // lines
	}{
		{`{"model":"user.near"}`, 200, lineManifest + "\n" + lineSuccess + "\n"},
		{`{"name":"one:latest","stream":true}`, 200, lineManifest + "\n" + lineSuccess + "\n"},
		{`{"model":"one","stream":false}`, 200, lineSuccess},
		{`{"model":"gone"}`, 200, lineManifest + "\n" + missing + "\n"},
		{`{"model":"gone","stream":false}`, 404, missing},
		{`{"model":"nobody"}`, 404, `{"error":"The model 'nobody' does not exist."}`},
		{`{}`, 400, `{"error":"No model specified. Parameter 'model' or 'model_name' is required."}`},
	}
	for _, tt := range tests {
		r := p.want(tt.status, p.post("/api/pull", tt.body))
		media := "application/json; charset=utf-8"
		if strings.HasSuffix(tt.want, "\n") {
			media = "application/x-ndjson"
		}
		if r.text != tt.want || r.header.Get("Content-Type") != media {
			t.Errorf("%s: %s\n%s", tt.body, r.header.Get("Content-Type"), r.text)
		}
	}
	p.server.Drain()
	p.register("user.far", "hf://lab/far/far.gguf")
	p.errorLine(p.want(503, p.post("/api/pull", `{"model":"user.far"}`)))
}

// queued waits for the ticket of a model's load.
func (p *pool) queued(host, model string) (ticket string) {
	p.t.Helper()
	p.until(model+" is queued", func() bool {
		h := p.mirror.Snapshot().Hosts[host]
		if h == nil {
			return false // the mirror does not show it yet
		}
		for _, t := range h.Queue {
			if t.Model == model && t.State == "queued" {
				ticket = t.ID
			}
		}
		return ticket != ""
	})
	return ticket
}

// A pull from elsewhere reports its progress, repeats it while nothing changes, and ends with its outcome.
func TestOllamaPullOfRemoteWeights(t *testing.T) {
	far := &catalog.Model{ID: "user.far", Checkpoint: "hf://lab/far/far.gguf"}
	tests := []struct {
		name    string
		outcome state.Outcome
		last    []string
		status  int // of the same call that wants no stream
	}{
		{"fetched", state.Outcome{}, []string{lineOf(far, 9, 9), lineSuccess}, 200},
		{"failed", state.Outcome{Failed: true, Fields: map[string]string{"code": "model_file_not_found", "message": "It is not there."}},
			[]string{`{"error":"It is not there."}`}, 404},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := newPool(t, "", func(c *Config) { c.Keepalive = time.Millisecond })
			gen := p.playHost("here")
			p.register(far.ID, far.Checkpoint)
			finish := func() {
				p.until("the ticket is finished", func() bool { // the mirror may still show the one before it
					_, err := p.store.Finish(t.Context(), "here", gen, p.queued("here", far.ID), tt.outcome)
					return err == nil
				})
			}
			resp, err := p.http.Post(p.url+"/api/pull", "", strings.NewReader(`{"model":"far:latest"}`))
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "application/x-ndjson" {
				t.Errorf("%s %v", resp.Status, resp.Header)
			}
			lines := newLines(t, resp.Body)
			lines.want(lineManifest)
			if err := p.store.PutPulled(t.Context(), "here", gen, p.queued("here", far.ID), &state.Pulled{Done: 3, Total: 9}); err != nil {
				t.Fatal(err)
			}
			lines.want(lineOf(far, 3, 9))
			lines.again()
			finish()
			for _, line := range tt.last {
				lines.want(line)
			}
			if lines.Scan() {
				t.Errorf("after the end: %s", lines.Text())
			}

			whole := make(chan reply, 1)
			go func() { whole <- p.post("/api/pull", `{"model":"far","stream":false}`) }()
			finish()
			if r := p.want(tt.status, <-whole); r.text != tt.last[len(tt.last)-1] {
				t.Error(r.text)
			}
		})
	}
}

// lines reads the lines of a stream.
type lines struct {
	*bufio.Scanner
	t *testing.T
}

func newLines(t *testing.T, r io.Reader) lines { return lines{bufio.NewScanner(r), t} }

// want reads until the given line, past repeats of the one before it only.
func (l lines) want(line string) {
	l.t.Helper()
	before := l.Text()
	for l.Scan() {
		if l.Text() == line {
			return
		}
		if l.Text() != before {
			break
		}
	}
	l.t.Fatalf("got %s, want %s", l.Text(), line)
}

// again reads a repeat of the line before.
func (l lines) again() {
	l.t.Helper()
	before := l.Text()
	if !l.Scan() || l.Text() != before {
		l.t.Fatalf("got %s, want %s", l.Text(), before)
	}
}

// A model without an idle time from a call or the catalog is unloaded after the warmer's; a pinned one stays. An
// invalid idle time in Redis counts as none.
func TestListingsReportTheWarmersIdleTime(t *testing.T) {
	p := newPool(t, "")
	here := p.playHost("here")
	for _, id := range []string{"left", "one"} {
		p.putLoaded("here", here, id, time.Second, map[string]string{"device": "cpu"})
	}
	if _, err := sweep.Run(t.Context(), sweep.Deps{Store: p.store, Power: func(*catalog.Catalog) sweep.Power { return power.NewSet(power.SetConfig{}) }},
		sweep.Settings{SweepSettings: policy.SweepSettings{Idle: 7 * time.Minute, HostIdle: -1}}); err != nil {
		t.Fatal(err)
	}
	p.want(200, p.post("/v1/internal/pin", `{"model_name":"one","pinned":true}`))
	shows := func(id string, ttl float64, in time.Duration) func() bool {
		return func() bool {
			for _, m := range p.get("/running").list("running") {
				if m["model"] == id && m["ttl"] != ttl {
					return false
				}
			}
			for _, m := range p.get("/api/ps").list("models") {
				at, err := time.Parse(time.RFC3339, m["expires_at"].(string))
				if m["name"] == id+":latest" {
					return err == nil && (time.Until(at)-in).Abs() < time.Minute
				}
			}
			return false
		}
	}
	const never = 100 * 365 * 24 * time.Hour
	leap := time.Until(time.Now().AddDate(100, 0, 0)) - never
	p.until("the warmer's idle time shows", shows("left", 420, 7*time.Minute))
	p.until("a pinned model stays", shows("one", 0, never+leap))
	if err := p.store.Set(t.Context(), state.IdleTTL, "", "no number"); err != nil {
		t.Fatal(err)
	}
	p.until("no number is no idle time", shows("left", 0, never+leap))
}
