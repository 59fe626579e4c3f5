package system

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"reveille/testenv/calls"
	"reveille/testenv/kit"
)

// collector is an OpenTelemetry collector over HTTP that keeps the spans it gets.
type collector struct {
	mu     sync.Mutex
	spans  []otlpSpan
	faults []string
}

type otlpSpan struct {
	TraceID, SpanID, ParentSpanID, Name string
	Kind                                int
	Start                               string `json:"startTimeUnixNano"`
	End                                 string `json:"endTimeUnixNano"`
	Status                              struct{ Code int }
	Attributes                          []otlpAttribute

	service string
}

type otlpAttribute struct {
	Key   string
	Value struct{ StringValue, IntValue string }
}

func (s otlpSpan) attribute(key string) string {
	for _, a := range s.Attributes {
		if a.Key == key {
			return a.Value.StringValue + a.Value.IntValue
		}
	}
	return ""
}

func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var message struct {
		ResourceSpans []struct {
			Resource   struct{ Attributes []otlpAttribute }
			ScopeSpans []struct{ Spans []otlpSpan }
		}
	}
	err := json.NewDecoder(r.Body).Decode(&message)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil || r.Method != http.MethodPost || r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/json" {
		c.faults = append(c.faults, fmt.Sprint(r.Method, r.URL, r.Header, err))
	}
	for _, resource := range message.ResourceSpans {
		service := otlpSpan{Attributes: resource.Resource.Attributes}.attribute("service.name")
		for _, scope := range resource.ScopeSpans {
			for _, s := range scope.Spans {
				s.service = strings.TrimPrefix(service, "reveille-")
				s.TraceID, s.SpanID, s.ParentSpanID = strings.ToLower(s.TraceID), strings.ToLower(s.SpanID), strings.ToLower(s.ParentSpanID)
				c.spans = append(c.spans, s)
			}
		}
	}
}

// trace returns a trace's spans by service and name.
func (c *collector) trace(id string) map[string]otlpSpan {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[string]otlpSpan{}
	for _, s := range c.spans {
		if s.TraceID == id {
			out[s.service+" "+s.Name] = s
		}
	}
	return out
}

// TestTraces: one trace shows a request through the wake of its host, the load of its model, the relay and the engine's work,
// and the access log has a line for it. The engine gets the trace's context.
func TestTraces(t *testing.T) {
	t.Parallel()
	c := &collector{}
	server := httptest.NewServer(c)
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "access.log")
	w := start(t, calls.Catalogue{"m": "llm, " + calls.Options("--load-time 300ms"), "e": "embedding"}, "--traces="+server.URL, "--access-log="+file)
	kit.Becomes(t, "host's state", "ready", func() string { return w.HostField("local", "state") }) // its start is not the wake
	if a := w.Manage("/internal/hosts/local/sleep", "{}"); a.Status != http.StatusOK {
		t.Fatal(a)
	}

	const trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	send := func(context string) calls.Answer {
		req, err := calls.Request(t.Context(), w.URL, "llm", "m")
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("traceparent", context)
		req.Header.Set("Authorization", "Bearer rv_a-key-that-nobody-configured")
		req.URL.RawQuery = "secret=in-the-query"
		return w.Do(req, nil)
	}
	if a := send("00-" + trace + "-" + parent + "-01"); a.Status != http.StatusOK {
		t.Fatal(a)
	}
	var spans map[string]otlpSpan
	parents := map[string]string{
		"gateway POST /chat/completions": "", "gateway hold": "gateway POST /chat/completions", "gateway relay": "gateway POST /chat/completions",
		"gateway wake": "gateway hold", "gateway load": "gateway hold",
		"runner runner": "gateway relay", "runner wait for a slot": "runner runner", "runner engine": "runner runner",
	}
	kit.Becomes(t, "missing spans", nil, func() (missing []string) {
		spans = c.trace(trace)
		for name := range parents {
			if _, ok := spans[name]; !ok {
				missing = append(missing, name)
			}
		}
		return missing
	})
	number := func(text string) int64 { n, _ := strconv.ParseInt(text, 10, 64); return n }
	for name, want := range parents {
		s, of := spans[name], spans[want]
		id := of.SpanID
		if want == "" {
			id = parent
		}
		if s.ParentSpanID != id || s.SpanID == "" || s.SpanID == s.ParentSpanID {
			t.Errorf("%s is %s below %s, want it below %s (%s)", name, s.SpanID, s.ParentSpanID, want, id)
		}
		if number(s.Start) > number(s.End) || want != "" && of.service == s.service && (number(s.Start) < number(of.Start) || number(s.End) > number(of.End)) {
			t.Errorf("%s goes from %s to %s, %s from %s to %s", name, s.Start, s.End, want, of.Start, of.End)
		}
		if s.Status.Code != 0 {
			t.Errorf("%s has failed", name)
		}
	}
	root := spans["gateway POST /chat/completions"]
	for key, want := range map[string]string{"http.response.status_code": "200", "gen_ai.request.model": "m", "reveille.host": "local", "reveille.cold": "true"} {
		if got := root.attribute(key); got != want {
			t.Errorf("%s is %q, want %q", key, got, want)
		}
	}
	if load := spans["gateway load"]; number(load.End)-number(load.Start) < 300e6 {
		t.Errorf("a load of at least 300 ms takes from %s to %s", load.Start, load.End)
	}
	w.Key = w.AdminKey()
	if engine := "traceparent=00-" + trace + "-" + spans["runner engine"].SpanID + "-01"; !strings.Contains(string(w.Get("/logs").Body), engine) {
		t.Errorf("the engine did not get %s", engine)
	}

	// A warm request of nobody's trace has its own, one that its client does not record has none, and both have a line.
	if a := send("not a context"); a.Status != http.StatusOK {
		t.Fatal(a)
	}
	const quiet = "1af7651916cd43dd8448eb211c80319c"
	if a := send("00-" + quiet + "-" + parent + "-00"); a.Status != http.StatusOK {
		t.Fatal(a)
	}
	w.Use("e")
	var lines []map[string]any
	kit.Eventually(t, "a line for each request", func() bool {
		lines = nil
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			var fields map[string]any
			if err := json.Unmarshal([]byte(line), &fields); err != nil {
				t.Fatalf("%v: %s", err, line)
			}
			if fields["model"] != nil {
				lines = append(lines, fields)
			}
			for _, secret := range []string{"in-the-query", "nobody-configured", "Authorization"} {
				if strings.Contains(line, secret) {
					t.Fatalf("the log has a secret: %s", line)
				}
			}
		}
		return len(lines) == 4
	})
	for i, want := range []map[string]any{
		{"path": "/v1/chat/completions", "status": 200.0, "model": "m", "host": "local", "cold": true, "trace": trace, "client": "127.0.0.1", "method": "POST", "route": "chat"},
		{"model": "m", "cold": false}, {"model": "m", "trace": nil}, {"model": "e", "path": "/v1/embeddings"},
	} {
		for key, value := range want {
			if lines[i][key] != value {
				t.Errorf("line %d: %s is %v, want %v", i, key, lines[i][key], value)
			}
		}
	}
	if own, _ := lines[1]["trace"].(string); len(own) != 32 || own == trace {
		t.Errorf("a request of nobody's trace has trace %q", own)
	}
	embedded, _ := lines[3]["trace"].(string)
	kit.Eventually(t, "the spans of an embedding request", func() bool { return c.trace(embedded)["runner runner"].SpanID != "" })
	if got := c.trace(quiet); len(got) > 0 {
		t.Errorf("a trace that its client does not record: %v", got)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.faults) > 0 {
		t.Error(c.faults)
	}
}
