package install

import (
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"reveille/testenv"
	"reveille/testenv/calls"
	"reveille/testenv/kit"
)

var observe = flag.Bool("observe", false, "have a real Prometheus scrape a real pool, see make observe")

// tool finds a program of Debian's package prometheus. Without it the test is skipped; `make observe` installs it.
func tool(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not installed: run make observe", name)
	}
	return path
}

// TestAlertRules has promtool check the alert rules and try each on series that must and must not let it fire.
func TestAlertRules(t *testing.T) {
	promtool := tool(t, "promtool")
	cases := filepath.Join(testenv.Root(t), "testenv/install/testdata/alerts.yaml")
	for _, args := range [][]string{
		{"check", "rules", filepath.Join(testenv.Root(t), "infra/install/prometheus/alerts.yaml")},
		{"test", "rules", cases},
	} {
		if out, err := exec.CommandContext(t.Context(), promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %q: %v\n%s", args, err, out)
		}
	}
	text, err := os.ReadFile(cases)
	if err != nil {
		t.Fatal(err)
	}
	for _, rule := range alertRules(t) {
		if n := strings.Count(string(text), "alertname: "+rule.Alert+"\n") + strings.Count(string(text), "alertname: "+rule.Alert+"}"); n != 2 {
			t.Errorf("alert %s has %d tests, want one that it fires and one that it does not", rule.Alert, n)
		}
	}
}

// TestPrometheus has a real Prometheus scrape a gateway that swaps real models. Every query of the dashboard has data, and
// every alert rule can be evaluated.
func TestPrometheus(t *testing.T) {
	if !*observe {
		t.Skip("takes most of a minute: run make observe")
	}
	prometheus := tool(t, "prometheus")
	testenv.Engines(t)
	models, err := os.ReadFile(filepath.Join(testenv.Root(t), "testenv/local/models.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	s := testenv.Start(t, testenv.Spec{Models: string(models), Args: []string{"--max-loaded-models=1 1 1"}})
	p := &promServer{t: t, url: fmt.Sprintf("http://127.0.0.1:%d", testenv.FreePort(t))}
	p.start(prometheus, strings.TrimPrefix(s.URL, "http://"))

	picture := "data:image/png;base64," + base64.StdEncoding.EncodeToString(testenv.Picture(7, 64, 64))
	ask := func(path, body string) {
		t.Helper()
		if a := calls.Post(t.Context(), http.DefaultClient, s.URL+path, body); !a.OK() {
			t.Fatal(path, a)
		}
	}
	ask("/v1/chat/completions", calls.ChatBody("gemma-3-270m", 8, true))
	kit.Eventually(t, "a scrape of the first request", func() bool { return p.query("sum(reveille_gateway_request_seconds_count) > 0") != nil })
	for range 2 { // the first load evicts; the second picture is in the cache
		ask("/v1/chat/completions", `{"model":"gemma-3-270m-vision","max_tokens":4,"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"`+picture+`"}}]}]}`)
	}
	for n := range 2 { // the metrics of a model begin with its first batch, and rise with its second
		ask("/v1/embeddings", `{"model":"minilm-l6-v2","input":["a cat on a mat","a tax report"]}`)
		batches := fmt.Sprintf("sum(reveille_pool_embedding_batches_total) == %d", n+1)
		kit.Eventually(t, batches, func() bool { return p.query(batches) != nil })
	}

	for want, query := range map[float64]string{
		1: "max(reveille_pool_runners)", 2: "max(reveille_pool_models_loaded)", 3: "max(reveille_pool_loads_total)",
	} {
		kit.Becomes(t, query, []float64{want}, func() []float64 { return p.query(query) })
	}
	for _, expr := range dashboard(t) {
		expr = strings.ReplaceAll(expr, "$__rate_interval", "15m")
		kit.Eventually(t, "data for "+expr, func() bool { return len(p.query(expr)) > 0 })
	}
	p.evaluates(alertRules(t))
}

// promServer is a running Prometheus.
type promServer struct {
	t   *testing.T
	url string
}

// start starts Prometheus on a target and waits for a scrape.
func (p *promServer) start(binary, target string) {
	p.t.Helper()
	config := filepath.Join(p.t.TempDir(), "prometheus.yml")
	put(p.t, config, fmt.Sprintf(`global: {scrape_interval: 250ms, scrape_timeout: 250ms, evaluation_interval: 250ms}
scrape_configs:
  - job_name: reveille
    static_configs: [{targets: [%q]}]
rule_files: [%q]
`, target, filepath.Join(testenv.Root(p.t), "infra/install/prometheus/alerts.yaml")))
	testenv.StartProgram(p.t, "prometheus", binary, "--config.file="+config, "--storage.tsdb.path="+p.t.TempDir(),
		"--web.listen-address="+strings.TrimPrefix(p.url, "http://"), "--log.level=error")
	kit.Eventually(p.t, "a scrape", func() bool { return slices.Equal(p.query("up"), []float64{1}) })
}

// get reads a response of the API.
func (p *promServer) get(path string, into any) bool {
	a := calls.Get(p.t.Context(), http.DefaultClient, p.url+path)
	return a.OK() && json.Unmarshal(a.Body, into) == nil
}

// query returns the values of an instant vector that are numbers.
func (p *promServer) query(expr string) (values []float64) {
	var answer struct {
		Data struct {
			Result []struct{ Value [2]any }
		}
	}
	if !p.get("/api/v1/query?query="+url.QueryEscape(expr), &answer) {
		return nil
	}
	for _, r := range answer.Data.Result {
		text, _ := r.Value[1].(string)
		if v, err := strconv.ParseFloat(text, 64); err == nil && v == v {
			values = append(values, v)
		}
	}
	return values
}

// evaluates waits until every alert rule was evaluated without an error.
func (p *promServer) evaluates(rules []alertRule) {
	p.t.Helper()
	type rule struct {
		Name, Health, LastError string
		LastEvaluation          time.Time
	}
	var answer struct {
		Data struct{ Groups []struct{ Rules []rule } }
	}
	kit.Eventually(p.t, "an evaluation of every alert rule", func() bool {
		if !p.get("/api/v1/rules", &answer) || len(answer.Data.Groups) != 1 || len(answer.Data.Groups[0].Rules) != len(rules) {
			return false
		}
		for _, r := range answer.Data.Groups[0].Rules {
			if r.LastError != "" {
				p.t.Fatalf("%s: %s", r.Name, r.LastError)
			}
			if r.Health != "ok" || r.LastEvaluation.IsZero() {
				return false
			}
		}
		return true
	})
}
