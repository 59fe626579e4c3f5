package system

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"reveille/testenv"
	"reveille/testenv/calls"
	"reveille/testenv/kit"
	"reveille/testenv/worlds"
)

// batchPool is a pool of hosts that are awake and one asleep, and of two gateways with one folder of batches.
type batchPool struct {
	*worlds.World
	models, redis string
	hosts, args   []string
	dirs          map[string]string // of the runners' states
	woken         string            // the file that the sleeping host's command makes
}

func startBatchPool(t *testing.T, models calls.Catalogue, hosts ...string) *batchPool {
	t.Helper()
	dir := t.TempDir()
	p := &batchPool{
		hosts: hosts, redis: testenv.Redis(t), args: []string{"--batch-dir=" + filepath.Join(dir, "batches")}, woken: filepath.Join(dir, "woken"), dirs: map[string]string{},
		World: &worlds.World{T: t, Models: models, Client: calls.Client(t, 8), Runners: map[string]*testenv.Program{}, Host: "a"},
	}
	p.models = models.YAML(fmt.Sprintf("hosts:\n  asleep: {driver: exec, address: 127.0.0.1:1, commands: {wake: [touch, %q], sleep: [\"true\"]}, devices: [cpu]}\n", p.woken))
	for _, host := range hosts {
		p.dirs[host] = t.TempDir()
		p.models += fmt.Sprintf("  %s: {driver: exec, address: 127.0.0.1:1, commands: {wake: [\"true\"], sleep: [\"true\"]}, devices: [cpu]}\n", host)
		p.startRunner(host)
	}
	p.Rdb = worlds.RedisAt(t, p.redis)
	for range 2 {
		p.Gateways = append(p.Gateways, p.startGateway())
	}
	p.System = &testenv.System{Program: p.Gateways[0], RedisAddr: p.redis}
	for _, host := range p.hosts {
		kit.Becomes(t, "state of "+host, "ready", func() string { return p.HostField(host, "state") })
	}
	return p
}

func (p *batchPool) url() string { return "redis://" + p.redis + "/0" }

func (p *batchPool) startRunner(host string) {
	p.Runners[host], _ = testenv.StartRunner(p.T, p.url(), worlds.Secret, host, p.dirs[host], "--devices=cpu", "--max-loaded-models=1")
}

func (p *batchPool) startGateway() *testenv.Program {
	return testenv.StartGateway(p.T, p.url(), worlds.Secret, p.models, p.args...)
}

// upload uploads a file of lines and returns its id.
func (p *batchPool) upload(lines string) string {
	p.T.Helper()
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	_ = form.WriteField("purpose", "batch")
	part, _ := form.CreateFormFile("file", "lines.jsonl")
	_, _ = io.WriteString(part, lines)
	_ = form.Close()
	req, err := http.NewRequestWithContext(p.T.Context(), http.MethodPost, p.URL+"/v1/files", &body)
	if err == nil {
		req.Header.Set("Content-Type", form.FormDataContentType())
	}
	a := p.Do(req, err)
	var file struct{ ID string }
	if err := json.Unmarshal(a.Body, &file); err != nil || !a.OK() {
		p.T.Fatalf("upload: %v %s", a, a.Body)
	}
	return file.ID
}

// batchState is what a client sees of a batch.
type batchState struct {
	ID, Status string
	Output     string                                 `json:"output_file_id"`
	Errors     string                                 `json:"error_file_id"`
	Counts     struct{ Total, Completed, Failed int } `json:"request_counts"`
}

func (p *batchPool) batch(method, path, body string) (b batchState) {
	p.T.Helper()
	a := p.Call(p.T.Context(), method, path, body)
	if err := json.Unmarshal(a.Body, &b); err != nil || !a.OK() {
		p.T.Fatalf("%s: %v %s", path, a, a.Body)
	}
	return b
}

// startBatch makes a batch of lines of the models in turns.
func (p *batchPool) startBatch(window string, n int, models ...string) batchState {
	p.T.Helper()
	var lines strings.Builder
	for i := range n {
		fmt.Fprintf(&lines, `{"custom_id":"l%d","method":"POST","url":"/v1/chat/completions","body":{"model":%q,"messages":[{"role":"user","content":"say %d"}]}}`+"\n",
			i, models[i%len(models)], i)
	}
	return p.batch("POST", "/v1/batches", fmt.Sprintf(`{"input_file_id":%q,"endpoint":"/v1/chat/completions","completion_window":%q}`, p.upload(lines.String()), window))
}

// askPerson has a person use a model, and returns its host and the other ones.
func (p *batchPool) askPerson() (host string, free []string) {
	p.T.Helper()
	if a := p.Ask("person"); !a.OK() {
		p.T.Fatal(a)
	}
	host = p.hostsOf("person")[0]
	return host, slices.DeleteFunc(slices.Clone(p.hosts), func(h string) bool { return h == host })
}

// hostsOf returns the hosts that have a model loaded.
func (p *batchPool) hostsOf(model string) (hosts []string) {
	for _, p.Host = range p.hosts {
		if p.Field(model, "state") == "loaded" {
			hosts = append(hosts, p.Host)
		}
	}
	return hosts
}

// leavesPeopleAlone checks that the batch woke no host and that the person's model is still loaded.
func (p *batchPool) leavesPeopleAlone(host string) {
	p.T.Helper()
	if _, err := os.Stat(p.woken); err == nil {
		p.T.Error("the batch woke a host")
	}
	if p.Host = host; p.Field("person", "state") != "loaded" {
		p.T.Error("the batch evicted a person's model")
	}
}

// killEngines kills every engine of a model.
func (p *batchPool) killEngines(model string) {
	for _, host := range p.hosts {
		p.Host = host
		if pid := p.Field(model, "pid"); pid != "" {
			var n int
			_, _ = fmt.Sscan(pid, &n)
			_ = syscall.Kill(n, syscall.SIGKILL)
		}
	}
}

var batchLines = flag.Int("lines", 300, "lines of the batch of TestBatches, which kills a process for every 37 of them, at most 20")

// TestBatches: while gateways, runners and engines are killed, each line of a batch gets one outcome. The model is loaded
// on the two hosts with room. The host that is asleep is not woken, and a person's model is not evicted.
func TestBatches(t *testing.T) {
	t.Parallel()
	all := *batchLines
	quick := "llm, " + calls.Options("--token-delay 30ms --tokens 8") + ", replicas: {max: 2}"
	p := startBatchPool(t, calls.Catalogue{"person": "llm", "work": quick}, "a", "b", "c")
	persons, free := p.askPerson()
	b := p.startBatch("24h", all, "work")
	path := "/v1/batches/" + b.ID
	kills, copies := 0, 0
	for deadline := time.Now().Add(3*time.Minute + time.Duration(all)*20*time.Millisecond); b.Status != "completed"; time.Sleep(300 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%+v after %d kills\n%s", b, kills, p.Log())
		}
		copies = max(copies, len(p.hostsOf("work")))
		if b = p.batch("GET", path, ""); b.Counts.Completed > 0 && kills < min(all/37, 20) {
			switch kills++; kills % 4 {
			case 0:
				host := free[kills/4%2]
				p.Runners[host].Kill()
				p.startRunner(host)
			case 1, 3:
				i := kills % 2
				p.Gateways[i].Kill()
				p.Gateways[i] = p.startGateway()
				p.Program = p.Gateways[i]
			case 2:
				p.killEngines("work")
			}
		}
	}
	if copies != 2 {
		t.Errorf("%d copies at a time, want 2", copies)
	}
	t.Log(kills, "kills")
	seen := map[string]int{}
	for _, id := range []string{b.Output, b.Errors} {
		if id == "" {
			continue
		}
		for line := range strings.Lines(string(p.Get("/v1/files/" + id + "/content").Body)) {
			var o struct {
				ID       string `json:"custom_id"`
				Response struct {
					Status int `json:"status_code"`
				}
			}
			if err := json.Unmarshal([]byte(line), &o); err != nil || o.Response.Status != 200 {
				t.Errorf("%v: %s", err, line)
			}
			seen[o.ID]++
		}
	}
	for i := range all {
		if n := seen[fmt.Sprint("l", i)]; n != 1 {
			t.Errorf("line %d has %d outcomes", i, n)
		}
	}
	if len(seen) != all || b.Counts.Total != all || b.Counts.Completed != all {
		t.Errorf("%d lines, %+v", len(seen), b)
	}
	p.leavesPeopleAlone(persons)
}

// TestBatchOfTwoModels: the models of a batch take turns on the only host with room.
func TestBatchOfTwoModels(t *testing.T) {
	t.Parallel()
	p := startBatchPool(t, calls.Catalogue{"person": "llm", "one": "llm", "two": "llm"}, "a", "b")
	persons, free := p.askPerson()
	b := p.startBatch("24h", 40, "one", "two")
	for deadline := time.Now().Add(2 * time.Minute); b.Status != "completed"; time.Sleep(300 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%+v\n%s", b, p.Log())
		}
		b = p.batch("GET", "/v1/batches/"+b.ID, "")
	}
	if p.Host = free[0]; b.Counts.Completed != 40 || p.Field("two", "state") != "loaded" || p.Field("one", "state") != "" {
		t.Errorf("%+v", b)
	}
	p.leavesPeopleAlone(persons)
}

// TestUrgentBatch: a batch whose window may not suffice loads its model as a request with low priority does.
func TestUrgentBatch(t *testing.T) {
	t.Parallel()
	p := startBatchPool(t, calls.Catalogue{"one": "llm", "two": "llm", "batch": "llm"}, "a", "b")
	for _, m := range []string{"one", "two"} { // both hosts are full
		if a := p.Ask(m); !a.OK() {
			t.Fatal(a)
		}
	}
	b := p.startBatch("60s", 1, "batch")
	began := time.Now()
	for ; b.Status != "completed"; time.Sleep(20 * time.Millisecond) {
		if b = p.batch("GET", "/v1/batches/"+b.ID, ""); b.Status != "validating" && b.Status != "in_progress" && b.Status != "completed" {
			t.Fatalf("%+v", b)
		}
		if time.Since(began) < 40*time.Second && len(p.hostsOf("batch")) > 0 {
			t.Fatal("loaded early")
		}
	}
}
