package httpapi

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"reveille/infra/logring"
	"reveille/infra/rpc"
)

func TestProbes(t *testing.T) {
	p := newPool(t, "")
	for _, path := range []string{"/live", "/ready", "/health", "/v1/live", "/v1/ready"} {
		if r := p.want(200, p.get(path)); r.json["status"] != "ok" || len(r.json) != 1 {
			t.Errorf("%s: %s", path, r.text)
		}
		p.want(200, p.do("HEAD", path, ""))
	}
	r := p.want(200, p.get("/metrics"))
	if !strings.HasPrefix(r.header.Get("Content-Type"), "text/plain; version=0.0.4") || !strings.Contains(r.text, "reveille_gateway_") || !strings.Contains(r.text, "process_cpu_seconds_total") {
		t.Errorf("metrics: %s %.200s", r.header.Get("Content-Type"), r.text)
	}
	p.server.Drain()
	if r := p.want(503, p.get("/ready")); r.json["status"] != "draining" {
		t.Error(r.text)
	}
	p.want(200, p.get("/live"))
	if r := p.want(503, p.post("/v1/load", `{"model_name":"one"}`)); r.code() != "draining" {
		t.Error(r.text)
	}
}

// The gateway's metrics contain the runners' metrics, added up and under their own names.
func TestMetricsOfRunners(t *testing.T) {
	p := newPool(t, "1")
	p.want(200, p.chat("one"))
	for _, line := range []string{"reveille_pool_runners 1\n", "reveille_pool_requests_total 1\n", `reveille_pool_request_seconds_bucket{le="+Inf"} 1` + "\n", "reveille_gateway_request_seconds_count "} {
		p.until("the metrics say "+line, func() bool { return strings.Contains(p.want(200, p.get("/metrics")).text, line) })
	}
	if text := p.get("/metrics").text; strings.Contains(text, "reveille_runner_") {
		t.Errorf("a runner's own names are in the gateway's metrics:\n%s", text)
	}
}

// Without the state store, listings come from the mirror, and routes that need the store say so.
func TestRequestsWhileRedisIsUnavailable(t *testing.T) {
	p := newPool(t, "1")
	p.want(200, p.chat("one"))
	p.want(200, p.get("/v1/health"))
	p.redis.SetError("LOADING the data set")
	defer p.redis.SetError("")
	if r := p.want(200, p.get("/v1/health")); r.json["model_loaded"] != "one" {
		t.Errorf("health: %s", r.text)
	}
	if r := p.want(200, p.get("/v1/models")); len(r.list("data")) == 0 {
		t.Error(r.text)
	}
	p.until("the gateway is not ready", func() bool {
		r := p.get("/ready")
		return r.status == 503 && r.json["status"] == "state_unavailable"
	})
	p.want(200, p.get("/live"))
	for _, c := range [][2]string{{"/v1/load", `{"model_name":"two"}`}, {"/v1/unload", ""}, {"/v1/internal/pin", `{"model_name":"one","pinned":true}`}} {
		if r := p.want(503, p.post(c[0], c[1])); r.code() != "state_unavailable" || r.header.Get("Retry-After") == "" {
			t.Errorf("%s: %s", c[0], r.text)
		}
	}
}

func TestAliases(t *testing.T) {
	p := newPool(t, "1")
	if r := p.want(200, p.get("/v1/internal/aliases")); len(r.json["aliases"].([]any)) != 0 {
		t.Error(r.text)
	}
	r := p.want(200, p.post("/v1/internal/aliases", `{"alias":"my/own:tag","target":"uno"}`))
	if r.json["alias"] != "my/own:tag" || r.json["target"] != "one" {
		t.Error(r.text)
	}
	if r := p.want(200, p.chat("my/own:tag")); r.header.Get("x-model") != "one" {
		t.Errorf("x-model is %q", r.header.Get("x-model"))
	}
	p.want(200, p.post("/internal/aliases", `{"alias":"other","target":"two"}`)) // Lemonade's clients know these without a prefix
	if r := p.get("/v1/models/two"); r.json["aliases"].([]any)[0] != "other" {
		t.Error(r.text)
	}
	if r := p.want(409, p.post("/v1/internal/aliases", `{"alias":"uno","target":"two"}`)); r.code() != "option_conflict" {
		t.Error(r.text)
	}
	if r := p.want(409, p.post("/v1/internal/aliases", `{"alias":"my/own:tag","target":"two"}`)); r.code() != "option_conflict" {
		t.Error("a name in use was given to another model:", r.text)
	}
	p.want(200, p.post("/v1/internal/aliases", `{"alias":"my/own:tag","target":"one"}`))
	for _, name := range []string{"My/own:tag", "OTHER", "One", "two:latest", "UNO"} {
		if r := p.want(409, p.post("/v1/internal/aliases", `{"alias":"`+name+`","target":"two"}`)); r.code() != "option_conflict" {
			t.Errorf("%s: %s", name, r.text)
		}
	}
	p.want(200, p.post("/v1/internal/aliases", `{"alias":"tagged:Latest:LATEST","target":"one"}`))
	p.want(200, p.chat("tagged"))
	p.want(200, p.do("DELETE", "/v1/internal/aliases/Tagged:latest", ""))
	p.want(404, p.chat("tagged"))
	p.want(404, p.post("/v1/internal/aliases", `{"alias":"x","target":"nobody"}`))
	p.want(400, p.post("/v1/internal/aliases", `{"alias":"a b","target":"one"}`))
	p.want(400, p.post("/v1/internal/aliases", `{"alias":"x"}`))
	p.want(200, p.do("DELETE", "/v1/internal/aliases/my%2Fown%3Atag", ""))
	p.want(404, p.do("DELETE", "/v1/internal/aliases/my/own:tag", ""))
	p.want(404, p.chat("my/own:tag"))
}

func TestRuntimeSettings(t *testing.T) {
	p := newPool(t, "2")
	p.want(200, p.post("/v1/internal/set", `{"ctx_size":2048,"max_loaded_models":{"llm":3},"llamacpp":{"backend":"cpu","args":""}}`))
	r := p.want(200, p.get("/v1/internal/config"))
	if r.json["ctx_size"] != 2048.0 || r.json["max_loaded_models"].(map[string]any)["llm"] != 3.0 || r.json["llamacpp"].(map[string]any)["backend"] != "cpu" {
		t.Error(r.text)
	}
	p.want(200, p.post("/internal/set", `{"ctx_size":null,"max_loaded_models":null}`))
	p.until("the limits are those of the runner's flags", func() bool { // it must register again
		r = p.get("/internal/config")
		return r.json["max_loaded_models"].(map[string]any)["llm"] == 2.0
	})
	if n, there := r.json["ctx_size"]; !there || n != nil {
		t.Error(r.text)
	}
	for _, body := range []string{`{"nonsense":1}`, `{"ctx_size":"x"}`, `{"ctx_size":1.5}`, `{"ctx_size":-2}`, `{"ctx_size":9223372036854775807}`, `{"max_loaded_models":9223372036854775807}`, `{"max_loaded_models":0}`, `{"max_loaded_models":{"x":1}}`, `{"llamacpp":{"backend":1}}`, `{"llamacpp":"cpu"}`, `{"llamacpp":{"args":"-np 2"}}`, `{"whispercpp":{"args":"/etc/passwd"}}`, `{"llamacpp":{"backend":"-x"}}`, `[]`} {
		if r := p.post("/v1/internal/set", body); r.status != 400 {
			t.Errorf("%s: %d %s", body, r.status, r.text)
		}
	}
	if r := p.post("/v1/internal/set", `{"ctx_size":16777217}`); r.status != 400 || !strings.Contains(r.text, "want 1 to 16777216, or -1 for automatic") {
		t.Errorf("%d %s", r.status, r.text)
	}
}

func TestRegister(t *testing.T) {
	p := newPool(t, "1")
	r := p.want(200, p.post("/v1/models/register", `{"model_name":"user.mine","recipe":"standin","device":"cpu","labels":["embeddings"]}`))
	if r.json["status"] != "success" || r.json["canonical_model_name"] != "user.mine" || r.json["model"].(map[string]any)["type"] != "embedding" {
		t.Error(r.text)
	}
	p.want(200, p.post("/v1/load", `{"model_name":"mine"}`))
	if r := p.want(200, p.post("/v1/embeddings", `{"model":"user.mine","input":"x"}`)); r.header.Get("x-model") != "user.mine" {
		t.Error(r.text)
	}
	p.want(200, p.post("/v1/delete", `{"model_name":"user.mine"}`))
	p.want(404, p.get("/v1/models/user.mine"))
	if len(p.get("/v1/health").list("all_models_loaded")) != 0 {
		t.Error("a deleted model is still loaded")
	}
	for _, body := range []string{`{"recipe":"standin"}`, `{"model_name":"user.x"}`, `{"model_name":"user.x","recipe":"nothing"}`,
		`{"model_name":"user.x","recipe":"llamacpp"}`, `{"model_name":"user.x y","recipe":"standin","device":"cpu"}`,
		`{"model_name":"user.x","recipe":"standin","device":"abacus"}`, `{"model_name":"user.x","recipe":"standin","labels":"x"}`,
		`{"model_name":"builtin.x","recipe":"standin","device":"cpu"}`, `{"model_name":"user.extra.x","recipe":"standin","device":"cpu"}`} {
		if r := p.post("/v1/models/register", body); r.status != 400 {
			t.Errorf("%s: %d %s", body, r.status, r.text)
		}
	}
}

func TestPullAndDelete(t *testing.T) {
	p := newPool(t, "1", func(c *Config) {
		c.Withheld = func(id string) string { return map[string]string{"user.two": "a reason"}[id] }
	})
	if r := p.want(200, p.post("/v1/pull", `{"model_name":"one"}`)); r.json["status"] != "success" || r.json["message"] == nil {
		t.Error(r.text)
	}
	r := p.want(200, p.post("/v1/pull", `{"model_name":"one","stream":true}`))
	if !strings.HasPrefix(r.header.Get("Content-Type"), "text/event-stream") || !strings.Contains(r.text, "event: progress\ndata: {") || !strings.HasSuffix(r.text, "\n\n") || !strings.Contains(r.text, "event: complete\n") {
		t.Error(r.text)
	}
	p.want(404, p.post("/v1/pull", `{"model_name":"nobody"}`))
	if r := p.want(404, p.post("/v1/pull", `{"model_name":"gone"}`)); r.code() != "model_file_not_found" {
		t.Error(r.text)
	}
	if r := p.want(422, p.post("/v1/delete", `{"model_name":"nobody"}`)); r.code() != "model_not_found" {
		t.Error(r.text)
	}
	p.want(400, p.post("/v1/delete", `{}`))
	for _, name := range []string{"two", "user.two"} { // a model of the file, and a registered one that is not served
		if r := p.want(200, p.post("/v1/delete", `{"model_name":"`+name+`"}`)); r.json["message"] != "Deleted model: "+name {
			t.Errorf("%s: %s", name, r.text)
		}
	}
}

func TestOperatorRoutes(t *testing.T) {
	p := newPool(t, "1")
	if r := p.want(200, p.get("/running")); len(r.json["running"].([]any)) != 0 {
		t.Error(r.text)
	}
	if r := p.want(307, p.get("/upstream/org/three?x=1")); r.header.Get("Location") != "/upstream/org/three/?x=1" {
		t.Errorf("Location is %q", r.header.Get("Location"))
	}
	p.want(404, p.get("/upstream/nobody/health"))
	if r := p.want(409, p.get("/upstream/org/three/health")); r.code() != "model_not_loaded" {
		t.Errorf("a probe: %s", r.text)
	}
	for _, probe := range []string{"/upstream/org/three//health", "/upstream/org/three/%68ealth", "/upstream/org/three:latest/health", "/upstream/org/three/x/../Health/",
		"/upstream/org/three/v1/models", "/upstream/org/three/props?y=2", "/upstream/org/three/slots"} {
		if r := p.want(409, p.get(probe)); r.code() != "model_not_loaded" {
			t.Errorf("%s: %s", probe, r.text)
		}
	}
	if len(p.get("/v1/health").list("all_models_loaded")) != 0 {
		t.Error("something was loaded")
	}
	p.want(404, p.get("/upstream/org/three/")) // the engine has no page, but is loaded
	if r := p.want(200, p.get("/upstream/org/three/props?y=2")); r.header.Get("x-model") != "org/three" || r.json["model_alias"] != "org/three" || r.header.Get("Content-Security-Policy") != "sandbox" {
		t.Errorf("upstream: %s", r.text)
	}
	if r := p.want(200, p.post("/upstream/org/three/v1/chat/completions", chatOne)); len(r.list("choices")) != 1 {
		t.Error(r.text)
	}
	r := p.want(200, p.get("/running"))
	if got := shape(r.json["running"]); got != "[{cmd:string description:string model:string name:string proxy:string state:string ttl:number}]" {
		t.Errorf("running is %s", got)
	}
	if m := r.list("running")[0]; m["state"] != "ready" || m["ttl"] != 3600.0 {
		t.Errorf("running: %v", m)
	}
	time.Sleep(200 * time.Millisecond) // until the requests above have ended for the runner, too
	looked := float64(time.Now().UnixMilli()) / 1000
	p.want(200, p.get("/running"))
	p.want(200, p.get("/upstream/org/three/health"))
	time.Sleep(1200 * time.Millisecond) // the runner reports uses once a second
	if used := p.only()["last_use"].(float64); used >= looked {
		t.Errorf("a read is no use: last use %v, read at %v", used, looked)
	}
}

func TestLogs(t *testing.T) {
	ring := logring.New(0)
	logring.Tee(slog.New(slog.NewTextHandler(io.Discard, nil)), ring, "known-secret").Info("hello", "url", "redis://:hunter22@here/0", "saw", "known-secret")
	p := newPool(t, "1", func(c *Config) { c.Ring = ring })
	p.want(404, p.get("/logs/stream/one"))
	p.want(200, p.chat("one"))
	r := p.want(200, p.get("/logs"))
	if !strings.HasPrefix(r.header.Get("Content-Type"), "text/plain") || !strings.Contains(r.text, "==> one on here <==") {
		t.Errorf("logs: %s", r.text)
	}
	if strings.Contains(r.text, "hunter22") || strings.Contains(r.text, "known-secret") || strings.Count(r.text, "[secret]") != 2 {
		t.Errorf("secrets are in the log: %s", r.text)
	}
	for _, want := range []string{"==> gateway <==\n", "==> runner here <==\n", `msg="runner listens"`} {
		if !strings.Contains(r.text, want) {
			t.Errorf("without %q: %s", want, r.text)
		}
	}
	if r := p.want(200, p.get("/logs?source=runner+here")); !strings.HasPrefix(r.text, "==> runner here <==\n") || strings.Contains(r.text, "==> one") {
		t.Errorf("one source: %s", r.text)
	}
	for path, want := range map[string]string{
		"/logs/stream/one": "", "/logs/stream?source=one+on+here": "[one on here] ", "/logs/stream?source=runner+here": "[runner here] time=", "/logs/stream?source=gateway": "[gateway] time=",
	} {
		p.follow(path, want)
	}
	for _, path := range []string{"/logs", "/logs/stream"} {
		if r := p.want(400, p.get(path+"?source=two+on+here")); !strings.Contains(r.text, "gateway, runner here, one on here") {
			t.Error(r.text)
		}
	}
	go p.post("/v1/load", `{"model_name":"broken"}`)
	p.until("the log of a loading engine is shown", func() bool { return strings.Contains(p.get("/logs").text, "==> broken on here <==\n") })
	p.until("the log of a failed load is kept", func() bool {
		return !strings.Contains(p.get("/logs").text, "==> broken") && strings.Contains(p.get("/logs?source=broken+on+here").text, "fail")
	})
}

// TestLogsAreFollowedAgain: a reader of all logs keeps an engine whose log once could not be read, until its key is
// withdrawn.
func TestLogsAreFollowedAgain(t *testing.T) {
	s, write := pageStage(t)
	s.warm("chat")
	var asked atomic.Int32
	s.serve(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == rpc.PathLogs+"chat" && asked.Add(1) == 1 {
			panic(http.ErrAbortHandler)
		}
		_, _ = io.WriteString(w, "hello\n")
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	resp := s.open(ctx, "GET", "/logs/stream?source=chat+on+here", "", "Authorization: Bearer manage-key")
	defer resp.Body.Close()
	lines := bufio.NewReader(resp.Body)
	if line, err := lines.ReadString('\n'); line != "[chat on here] hello\n" || asked.Load() < 2 {
		t.Errorf("%q after %d attempts: %v", line, asked.Load(), err)
	}
	write("infer-key infer\n")
	if _, err := io.Copy(io.Discard, lines); err != nil {
		t.Errorf("the stream of a withdrawn key: %v", err)
	}
}

// follow reads a stream of log lines until one begins as wanted, and leaves.
func (p *pool) follow(path, want string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", p.url+path, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+localKey)
	resp, err := p.http.Do(req)
	if err != nil {
		p.t.Fatal(path, err)
	}
	defer resp.Body.Close()
	line, err := bufio.NewReader(resp.Body).ReadString('\n')
	if err != nil && err != io.EOF || resp.StatusCode != 200 || !strings.HasPrefix(line, want) || len(line) < 2 {
		p.t.Errorf("%s: %d %q %v", path, resp.StatusCode, line, err)
	}
}

// A response counts for its model and its key on the day, and a host of the catalog that never woke has a row.
func TestCosts(t *testing.T) {
	p := newPool(t, "1")
	p.want(200, p.chat("one"))
	for _, by := range []string{"model", "key"} {
		name := map[string]string{"model": "one", "key": "none"}[by]
		p.until("the response counts by "+by, func() bool {
			text := p.want(200, p.get("/v1/internal/costs?by="+by)).text
			return strings.Contains(text, `"name":"`+name+`"`) && strings.Contains(text, `"requests":1`) && !strings.Contains(text, `"input_tokens":0`)
		})
	}
	if r := p.want(200, p.get("/internal/costs")); !strings.Contains(r.text, `"rows":[{"name":"`) || r.json["month"] != time.Now().UTC().Format("2006-01") {
		t.Error(r.text)
	}
	for _, bad := range []string{"month=2026", "by=day"} {
		if r := p.want(400, p.get("/v1/internal/costs?"+bad)); r.code() != "invalid_request" {
			t.Error(r.text)
		}
	}
}
