package attack

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"reveille/gateway/api"
	"reveille/gateway/httpapi"
	"reveille/infra/rpc"
	"reveille/infra/state"
	"reveille/testenv"
	"reveille/testenv/calls"
	"reveille/testenv/kit"
)

// promised is who may use each route.
var promised = map[string]string{
	"everybody": "root live ready health_plain ui ui_file",
	"own page":  "ui_session ui_login ui_logout", // everybody but pages of other origins, those that may use the gateway, too
	"any key": "ui_stream metrics openapi health options_get stats system_info config_get aliases alias_get models model " +
		"ollama_version ollama_tags ollama_ps ollama_show running tei_info",
	"infer": "realtime chat completions responses response response_items response_delete file_create file_list file_get file_content file_delete batch_create batch_list batch_get batch_cancel message_batch_create message_batch_list message_batch_get message_batch_cancel message_batch_delete message_batch_results input_tokens embeddings transcriptions translations speech image_generations image_edits image_variations " +
		"tokenize detokenize apply_template messages count_tokens rerank ollama_chat ollama_generate ollama_embed ollama_embeddings tei_embed cohere_embed",
	"manage": "load unload unload_all pull pin host_wake host_forget host_sleep conversations conversations_forget conversations_forget_all ollama_pull costs",
	"admin": "keys_list keys_add keys_revoke register delete options_set options_delete config_set alias_set alias_set_one alias_delete ollama_delete " +
		"logs logs_stream logs_stream_model", // manage; without keys the local admin key
	"both": "upstream", // it manages and infers
}

// page is an origin that --cors-origins allows.
const page = "https://chat.example.org"

func basic(key string) string {
	return "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte("user:"+key))
}

// TestScopes sends every route of the table, in each of its places, with every kind of key.
func TestScopes(t *testing.T) {
	rights := map[string]string{}
	for right, names := range promised {
		for name := range strings.FieldsSeq(names) {
			rights[name] = right
		}
	}
	models := calls.Catalogue{"m": "llm"}.YAML(calls.LocalHost)
	closed := testenv.Start(t, testenv.Spec{Models: models, Args: []string{withKeys(t), "--admin-key=" + adminKey, "--cors-origins=" + page}})
	open := testenv.Start(t, testenv.Spec{Models: models})
	const all = "everybody, any key, infer, manage, admin, both"
	askers := []struct {
		name  string
		s     *testenv.System
		head  []string
		may   string
		other int // status of the others
	}{
		{"no key", closed, nil, "everybody", 401},
		{"a wrong key", closed, []string{bearer(ownerKey + "x")}, "everybody", 401},
		{"a wrong key in x-api-key", closed, []string{"x-api-key: " + inferKey[1:]}, "everybody", 401},
		{"the infer key", closed, []string{bearer(inferKey)}, "everybody, any key, infer", 403},
		{"the manage key", closed, []string{"x-api-key: " + manageKey}, "everybody, any key, manage, admin", 403},
		{"the owner's key", closed, []string{bearer(ownerKey)}, all, 0},
		{"the admin key", closed, []string{bearer(adminKey)}, all, 0},
		{"HTTP Basic", closed, []string{basic(ownerKey)}, all, 0},
		{"HTTP Basic of the infer key", closed, []string{basic(inferKey)}, "everybody, any key, infer", 403},
		{"HTTP Basic from a foreign page", closed, []string{basic(ownerKey), "Origin: https://evil.example"}, "", 403},
		{"HTTP Basic from an allowed page", closed, []string{basic(ownerKey), "Origin: " + page}, "everybody", 401},
		{"no key, without keys", open, nil, "everybody, any key, infer, manage", 401},
		{"a wrong key, without keys", open, []string{bearer(adminKey)}, "everybody, any key, infer, manage", 401},
		{"the local admin key", open, []string{bearer(open.AdminKey())}, all, 0},
		{"its HTTP Basic from an app's page", open, []string{basic(open.AdminKey()), "Origin: app://x"}, "everybody, any key, infer, manage", 401},
	}
	client := calls.Client(t, 4)
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	n := 0
	for _, r := range httpapi.Routes() {
		right := rights[r.Name]
		if right == "" {
			t.Errorf("the route %s is not in the list of what is promised", r.Name)
			continue
		}
		methods := map[string][]string{"GET": {"GET", "HEAD"}, "ANY": {"GET", "HEAD", "POST", "PUT", "DELETE"}}[r.Method]
		if methods == nil {
			methods = []string{r.Method}
		}
		for _, path := range spots(r) {
			for _, method := range methods {
				for _, a := range askers {
					n++
					status, body := begin(t, client, method, a.s.URL+path, a.head)
					may, other := slices.Contains(strings.Split(a.may, ", "), right), a.other
					if right == "own page" {
						may, other = !slices.ContainsFunc(a.head, func(h string) bool { return strings.HasPrefix(h, "Origin: ") }), 403
					}
					switch {
					case may && (status == 401 || status == 403 || status >= 500 && status != 501):
						t.Errorf("%s: %s %s (%s): %d %s", a.name, method, path, right, status, body)
					case !may && (status != other || method != "HEAD" && !json.Valid([]byte(body))):
						t.Errorf("%s: %s %s (%s): %d %s, want %d", a.name, method, path, right, status, body, other)
					}
				}
			}
		}
	}
	t.Log(n, "requests")
	for _, path := range []string{"/v1/nothing", "/upstream", "/internal", "/v1/internal/hosts/m"} { // a key comes before the route
		for _, a := range askers {
			want := 404
			if !strings.Contains(a.may, "any key") {
				want = a.other
			}
			if status, body := begin(t, client, "GET", a.s.URL+path, a.head); status != want {
				t.Errorf("%s: GET %s: %d %s, want %d", a.name, path, status, body, want)
			}
		}
	}
}

// spots are the paths under which a route is.
func spots(r *api.Route) (out []string) {
	path := strings.ReplaceAll(r.Path, "{id}", "m")
	if r.Mount&api.Bare != 0 {
		out = append(out, path, path+"/")
	}
	if r.Mount&api.Prefixed != 0 {
		out = append(out, "/v1"+path, "/v0"+path, "/api/v1"+path, "/api/v0"+path+"/?a=b")
	}
	return out
}

// begin makes a request whose body no route accepts and returns the status. It reads the body of errors alone: logs have
// no end.
func begin(t *testing.T, client *http.Client, method, url string, headers []string) (status int, body string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader("[]"))
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode < 400 {
		return resp.StatusCode, ""
	}
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	return resp.StatusCode, string(text)
}

// TestRightsOfKeys holds what a key may do within routes that it may use.
func TestRightsOfKeys(t *testing.T) {
	s := testenv.Start(t, testenv.Spec{Models: calls.Catalogue{"m": "llm"}.YAML(calls.LocalHost), Args: []string{withKeys(t)}})
	ask := func(key, method, path, body string, status int) string {
		t.Helper()
		a := call(t, method, s.URL+path, body, bearer(key))
		if a.Err != nil || a.Status != status {
			t.Errorf("%s %s %s by %.12s: %v, want %d", method, path, body, key, a, status)
		}
		return string(a.Body)
	}
	const generate, bare = "/api/generate", `{"model":"m","prompt":"","keep_alive":0}`
	chat := func(keep string) string {
		return `{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":false,"options":{"num_ctx":1234},"keep_alive":` + keep + `}`
	}
	engine := func() string {
		var h struct {
			Loaded []struct {
				PID     int             `json:"pid"`
				Options json.RawMessage `json:"recipe_options"`
			} `json:"all_models_loaded"`
		}
		if err := json.Unmarshal([]byte(ask(manageKey, "GET", "/v1/health", "", 200)), &h); err != nil || len(h.Loaded) != 1 {
			t.Fatalf("%v %+v", err, h)
		}
		return fmt.Sprint(h.Loaded[0].PID, string(h.Loaded[0].Options))
	}
	idle := func() string { return s.Redis().HGet(t.Context(), "rv:{main}:settings:idle", "m").Val() }
	ask(ownerKey, "POST", "/v1/internal/set", `{"llamacpp":{"backend":"cpu"}}`, 200)
	ask(ownerKey, "POST", "/v1/load", `{"model_name":"m"}`, 200)

	before := engine()
	for _, key := range []string{inferKey, manageKey} {
		ask(key, "POST", generate, bare, 403)
		ask(key, "GET", "/upstream/m/health", "", 403)
		ask(key, "POST", "/upstream/m/v1/chat/completions", calls.ChatBody("m", 1, false), 403)
	}
	ask(manageKey, "POST", "/api/chat", chat("60"), 403)
	for _, keep := range []string{"0", "-1", `"-1h"`} {
		ask(inferKey, "POST", "/api/chat", chat(keep), 200)
		if after := engine(); after != before || idle() != "" {
			t.Errorf("keep_alive %s of an infer key: %s, idle %q; before %s", keep, after, idle(), before)
		}
	}
	ask(ownerKey, "POST", "/api/chat", chat("7200"), 200)
	kit.Becomes(t, "the idle time that an owner set", "7200000", idle)

	ask(ownerKey, "GET", "/upstream/m/health", "", 200)
	ask(inferKey, "GET", "/logs", "", 403)
	ask(manageKey, "GET", "/logs", "", 200)
	for path, secrets := range map[string][]string{
		"/v1/health": {`"backend_url":"http`, `"sandbox":`}, "/running": {`"proxy":"http`, `"cmd":"/`},
	} {
		full, open := ask(manageKey, "GET", path, "", 200), ask(inferKey, "GET", path, "", 200)
		for _, text := range secrets {
			if !strings.Contains(full, text) || strings.Contains(open, text) {
				t.Errorf("%s: %s is for managers:\n%s\n%s", path, text, full, open)
			}
		}
	}
	if open := ask(inferKey, "GET", "/v1/internal/config", "", 200); !strings.Contains(open, `"backend":"cpu"`) {
		t.Errorf("the rest of the settings is for all keys: %s", open)
	}
}

// TestPriorityOverTheWire puts a stub in a runner's place, which sees what a gateway passes on of x-priority and of keys.
func TestPriorityOverTheWire(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(file, []byte(inferKey+" infer\n"+otherKey+" infer priority=high\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	rds := testenv.StartRedis(t)
	secret := strings.Repeat("s", 32)
	g := testenv.StartGateway(t, "redis://"+rds.Addr+"/0", secret, calls.Catalogue{"m": "llm"}.YAML("hosts:\n  h: {driver: exec, devices: [cpu], address: \"127.0.0.1:9\", commands: {wake: [\"false\"], sleep: [\"false\"]}}\n"), "--api-keys-file="+file)
	heads := make(chan http.Header, 1)
	stub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		heads <- r.Header
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"choices":[{"index":0,"finish_reason":"stop","message":{"role":"assistant","content":"hi"}}],"usage":{}}`)
	}))
	defer stub.Close()
	store, err := state.Open(state.Options{URL: "redis://" + rds.Addr + "/0", Secret: []byte(secret), Timeout: limit})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	generation, _, err := store.Register(t.Context(), state.HostInfo{Name: "h", Boot: "b", Addr: strings.TrimPrefix(stub.URL, "http://"), Devices: "cpu", Limits: "-1"})
	if err == nil {
		err = store.PutModels(t.Context(), "h", generation, []state.ModelPut{{ID: "m", Fields: map[string]string{"used_age_ms": "0", "type": "llm", "state": "loaded", "device": "cpu"}}})
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ key, priority, want string }{
		{inferKey, "high", ""}, {inferKey, "High", ""}, {inferKey, "low", "low"}, {inferKey, "high, low", ""},
		{otherKey, "high", "high"}, {otherKey, "higher", ""}, {otherKey, "normal", ""},
	} {
		for _, as := range []string{"Authorization: Bearer ", "x-api-key: "} {
			if a := call(t, "POST", g.URL+"/v1/chat/completions", calls.ChatBody("m", 1, false), as+c.key, "x-priority: "+c.priority); !a.OK() {
				t.Fatalf("%.12s with %q: %v", c.key, c.priority, a)
			}
			if h := <-heads; h.Get("X-Priority") != c.want || h.Get("Authorization") != "" || h.Get("X-Api-Key") != "" {
				t.Errorf("%.12s with %q: the runner was sent %v, want the priority %q and no key", c.key, c.priority, h, c.want)
			}
		}
	}
}

// TestRunnerMetrics: a runner's metrics are for its own machine and for gateways, on whatever address of the machine it
// listens. runner/httpapi/TestRemoteMetricsNeedASignature holds the same where a machine has loopback addresses only.
func TestRunnerMetrics(t *testing.T) {
	rds := testenv.StartRedis(t)
	own, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for i, a := range own {
		ip := a.(*net.IPNet).IP
		if ip.IsLinkLocalUnicast() {
			continue
		}
		_, addr := testenv.StartRunner(t, "redis://"+rds.Addr+"/0", strings.Repeat("s", 32), fmt.Sprint("h", i), t.TempDir(), "--devices=cpu", "--runner-tls=off", "--runner-addr="+net.JoinHostPort(ip.String(), "0"))
		want := 200
		if !ip.IsLoopback() {
			want = rpc.StatusRefused
		}
		for _, head := range [][]string{nil, {"X-Forwarded-For: 127.0.0.1"}, {"Forwarded: for=127.0.0.1"}, {"X-Real-IP: 127.0.0.1"}, {"Host: localhost"}, {bearer("x")}} {
			got := call(t, "GET", "http://"+addr+rpc.PathMetrics, "", head...)
			if got.Status != want || want != 200 && strings.Contains(string(got.Body), "reveille_runner_") {
				t.Errorf("%s with %q: %v, want %d", addr, head, got, want)
			}
		}
	}
}
