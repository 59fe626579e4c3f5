package attack

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"reveille/gateway/api"
	"reveille/gateway/httpapi"
	"reveille/testenv"
	"reveille/testenv/calls"
	"reveille/testenv/kit"
)

// foreign are heads of requests that a hostile web page makes its visitor's browser send to a gateway without keys.
var foreign = map[string]string{
	"another origin":             "Host: {gw}\r\nOrigin: https://evil.example\r\n",
	"its case":                   "HOST: {gw}\r\norigin: HTTPS://EVIL.EXAMPLE\r\n",
	"its port":                   "Host: {gw}\r\nOrigin: http://evil.example:8080\r\n",
	"a trailing dot":             "Host: {gw}\r\nOrigin: https://evil.example.\r\n",
	"a sandboxed frame":          "Host: {gw}\r\nOrigin: null\r\n",
	"a file":                     "Host: {gw}\r\nOrigin: file://\r\n",
	"an extension":               "Host: {gw}\r\nOrigin: chrome-extension://abcdefgh\r\n",
	"a name like localhost":      "Host: {gw}\r\nOrigin: http://localhost.evil.example\r\n",
	"a name like an address":     "Host: {gw}\r\nOrigin: http://127.0.0.1.nip.io:8080\r\n",
	"user information":           "Host: {gw}\r\nOrigin: http://localhost@evil.example\r\n",
	"a list":                     "Host: {gw}\r\nOrigin: http://localhost, https://evil.example\r\n",
	"two origins":                "Host: {gw}\r\nOrigin: http://localhost\r\nOrigin: https://evil.example\r\n",
	"an empty one and another":   "Host: {gw}\r\nOrigin:\r\nOrigin: https://evil.example\r\n",
	"an image":                   "Host: {gw}\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\n",
	"a link":                     "Host: {gw}\r\nsec-fetch-site: cross-site\r\nSec-Fetch-Mode: navigate\r\n",
	"a site's case":              "Host: {gw}\r\nSec-Fetch-Site: Cross-Site\r\n",
	"an unknown site":            "Host: {gw}\r\nSec-Fetch-Site: elsewhere\r\n",
	"two sites":                  "Host: {gw}\r\nSec-Fetch-Site: same-origin\r\nSec-Fetch-Site: cross-site\r\n",
	"another port's image":       "Host: {gw}\r\nSec-Fetch-Site: same-site\r\nSec-Fetch-Mode: no-cors\r\n",
	"an old browser's image":     "Host: {gw}\r\nUser-Agent: Mozilla/5.0\r\nReferer: https://evil.example/page\r\n",
	"an old browser's name":      "Host: {gw}\r\nReferer: http://localhost.evil.example\r\n",
	"two pages":                  "Host: {gw}\r\nReferer: http://localhost/\r\nReferer: https://evil.example/\r\n",
	"a private network's page":   "Host: {gw}\r\nOrigin: http://192.168.1.1\r\nAccess-Control-Request-Private-Network: true\r\n",
	"a rebound name":             "Host: evil.example:8080\r\nOrigin: http://evil.example:8080\r\nSec-Fetch-Site: same-origin\r\n",
	"a rebound name alone":       "Host: evil.example\r\n",
	"a rebound localhost":        "Host: localhost.evil.example:8080\r\n",
	"a rebound address":          "Host: 127.0.0.1.nip.io\r\n",
	"a rebound local name":       "Host: evil.localhost\r\n",
	"a rebound trailing dot":     "Host: evil.example.:8080\r\n",
	"user information in Host":   "Host: localhost@evil.example\r\n",
	"a list in Host":             "Host: localhost, evil.example\r\n",
	"a forwarded host":           "Host: evil.example\r\nX-Forwarded-Host: localhost\r\nForwarded: host=localhost\r\n",
	"a method override":          "Host: {gw}\r\nOrigin: https://evil.example\r\nX-HTTP-Method-Override: GET\r\n",
	"credentials of the browser": "Host: {gw}\r\nOrigin: https://evil.example\r\nAuthorization: Basic dTpr\r\nCookie: a=b\r\n",
}

// places are spellings of a route's path.
func places(r *api.Route) []string {
	path := strings.ReplaceAll(r.Path, "{id}", "m")
	var out []string
	if r.Mount&api.Bare != 0 {
		out = append(out, path, path+"/", "/"+path, strings.Replace(path, "/", "/%2e/", 1))
	}
	if r.Mount&api.Prefixed != 0 {
		out = append(out, "/v1"+path, "/api/v0"+path+"?a=b")
	}
	return out
}

// TestWebPages sends every route what a hostile page can make a browser send: nothing is answered, and nothing happens.
func TestWebPages(t *testing.T) {
	s := testenv.Start(t, testenv.Spec{Models: calls.Catalogue{"m": "llm"}.YAML(calls.LocalHost)})
	here := strings.TrimPrefix(s.URL, "http://")
	config := func() string {
		return string(call(t, "GET", s.URL+"/v1/internal/config", "").Body) + string(call(t, "GET", s.URL+"/v1/models", "").Body) + string(call(t, "GET", s.URL+"/v1/internal/aliases", "").Body)
	}
	kit.Becomes(t, "the host has told its limits", true, func() bool { return strings.Contains(config(), "max_loaded_models") })
	before := config()
	const body = `{"model":"m","model_name":"user.evil","checkpoint":"/etc/passwd","recipe":"standin","device":"cpu","pinned":true,"ctx_size":1,"alias":"x","target":"m","messages":[{"role":"user","content":"hi"}],"prompt":"hi"}`
	n := 0
	for name, head := range foreign {
		head = strings.ReplaceAll(head, "{gw}", here)
		var conn net.Conn
		var answers *bufio.Reader
		dial := func() {
			var err error
			if conn, err = net.Dial("tcp", here); err != nil {
				t.Fatal(err)
			}
			_ = conn.SetDeadline(time.Now().Add(limit))
			answers = bufio.NewReader(conn)
		}
		dial()
		for i, r := range httpapi.Routes() {
			paths, methods := places(r), []string{r.Method}
			if r.Method == "ANY" {
				methods = []string{"PATCH"}
			}
			if name == "another origin" { // in full
				methods = append(methods, "OPTIONS", "PUT")
			} else if paths = paths[i%len(paths):][:1]; i%5 != n%5 {
				continue
			}
			for _, path := range paths {
				for _, method := range methods {
					n++
					_, err := io.WriteString(conn, method+" "+path+" HTTP/1.1\r\n"+head+"Content-Type: text/plain\r\nContent-Length: "+itoa(len(body))+"\r\n\r\n"+body)
					var resp *http.Response
					if err == nil {
						resp, err = http.ReadResponse(answers, nil)
					}
					if err != nil {
						t.Fatalf("%s: %s %s: %v", name, method, path, err)
					}
					got, err := io.ReadAll(resp.Body)
					if resp.Close { // the library could make no URI of it
						conn.Close()
						dial()
					}
					if err != nil || resp.StatusCode != http.StatusForbidden || !forbidden(got) || resp.Header.Get("Access-Control-Allow-Origin") != "" {
						t.Fatalf("%s: %s %s: %v %v %s", name, method, path, resp, err, got)
					}
				}
			}
		}
		conn.Close()
		resp, got, err := raw(t, s.URL, "POST /v1/load HTTP/1.1\r\n"+head+"Expect: 100-continue\r\nContent-Length: 30\r\n\r\n")
		if err != nil || resp.StatusCode != http.StatusForbidden || !forbidden(got) {
			t.Errorf("%s, before its body: %v %v %s", name, resp, err, got)
		}
		resp, got, err = raw(t, s.URL, "POST /v1/load HTTP/1.1\r\n"+head+"Content-Length: 100000000\r\n\r\n")
		if err != nil || resp.StatusCode != http.StatusForbidden || !forbidden(got) {
			t.Errorf("%s, with a large body: %v %v %s", name, resp, err, got)
		}
	}
	t.Log(n, "requests")
	for _, head := range []string{"Host: \r\n", "Accept: */*\r\n", "Host: " + here + "\r\nHost: evil.example\r\n"} { // HTTP itself forbids these
		if resp, got, err := raw(t, s.URL, "GET /v1/models HTTP/1.1\r\n"+head+"\r\n"); err != nil || resp.StatusCode != http.StatusBadRequest {
			t.Errorf("%q: %v %v %s", head, resp, err, got)
		}
	}
	if after := config(); after != before {
		t.Errorf("the gateway is not as it was:\n%s\n%s", before, after)
	}
	if health := call(t, "GET", s.URL+"/v1/health", ""); !strings.Contains(string(health.Body), `"all_models_loaded":[],`) {
		t.Errorf("something was loaded: %v", health)
	}
}

func itoa(n int) string { b, _ := json.Marshal(n); return string(b) }

// forbidden reports whether a response is the guard's.
func forbidden(body []byte) bool {
	text := string(body)
	return strings.Contains(text, "forbidden_origin") || strings.Contains(text, "forbidden_host") ||
		strings.Contains(text, "Web pages of this origin") || strings.Contains(text, "Without API keys, this gateway accepts only") // dialects without codes
}

// TestAbsoluteTargets checks requests as proxies send them: the target's authority counts, and Host must be good as well.
func TestAbsoluteTargets(t *testing.T) {
	s := testenv.Start(t, testenv.Spec{Models: calls.Catalogue{"m": "llm"}.YAML(calls.LocalHost)})
	here := strings.TrimPrefix(s.URL, "http://")
	for target, want := range map[string]int{
		s.URL + "/v1/models": 200, "HTTP://LOCALHOST/v1/models?x=http://y": 200, "http://localhost.:1/v1/models/": 200, "http://[::1]/v1/models": 200,
		s.URL + "/v1/nothing": 404, s.URL: 200, s.URL + "?a=/v1/models": 200, s.URL + "/v1/load": 405,
		"http://evil.example/v1/models": 403, "http://localhost@evil.example/v1/models": 403, "http://evil.example@localhost/v1/models": 403, "http:///v1/models": 403,
		"http://localhost.evil.example/v1/models": 403, "https://evil.example": 403, "http://evil.example/http://localhost/v1/models": 403, "http://localhost:80:80/v1/models": 403,
		"http://%6cocalhost/v1/models": 403, "http://evil.example?http://localhost/v1/models": 403, "http://evil.example#@localhost/v1/models": 403,
	} {
		if resp, body, err := raw(t, s.URL, "GET "+target+" HTTP/1.1\r\nHost: "+here+"\r\n\r\n"); err != nil || resp.StatusCode != want && (want != 403 || resp.StatusCode != 400) {
			t.Errorf("%s: %v %v %s, want %d", target, resp, err, body, want)
		}
	}
	if resp, _, err := raw(t, s.URL, "GET "+s.URL+"/v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n"); err != nil || resp.StatusCode != 403 {
		t.Errorf("a good target with a foreign Host: %v %v", resp, err)
	}
	if resp, _, err := raw(t, s.URL, "GET /v1/models HTTP/1.1\r\nHost: "+here+"\r\nHost: evil.example\r\n\r\n"); err != nil || resp.StatusCode != 400 {
		t.Errorf("two Hosts: %v %v", resp, err)
	}
	body := calls.ChatBody("m", 1, false)
	if resp, got, err := raw(t, s.URL, "POST "+s.URL+"/v1/chat/completions HTTP/1.1\r\nHost: "+here+"\r\nContent-Length: "+itoa(len(body))+"\r\n\r\n"+body); err != nil || resp.StatusCode != 200 {
		t.Errorf("an inference by an absolute target: %v %v %s", resp, err, got)
	}
	if resp, got, err := raw(t, s.URL, "GET "+s.URL+"/upstream/m/health?a=b HTTP/1.1\r\nHost: "+here+"\r\nx-api-key: "+s.AdminKey()+"\r\n\r\n"); err != nil || resp.StatusCode != 200 {
		t.Errorf("upstream by an absolute target: %v %v %s", resp, err, got)
	}
}

// TestLocalPages: pages of this machine and of apps go on working, with the headers that their browsers want.
func TestLocalPages(t *testing.T) {
	s := testenv.Start(t, testenv.Spec{Models: calls.Catalogue{"m": "llm"}.YAML(calls.LocalHost), Args: []string{"--allowed-hosts=gw.lan", "--cors-origins=https://chat.example.org"}})
	for _, origin := range []string{"http://localhost:3000", "http://127.0.0.1:5173", "http://[::1]:3000", "app://obsidian.md", "tauri://localhost", "vscode-webview://1a2b", "https://chat.example.org"} {
		for _, head := range [][]string{{"Origin: " + origin, "Sec-Fetch-Site: cross-site"}, {"Origin: " + origin, "Host: gw.lan:8080"}} {
			for _, c := range []struct {
				method, path, body string
				status             int
			}{{"GET", "/v1/models", "", 200}, {"OPTIONS", "/v1/chat/completions", "", 204}, {"POST", "/v1/chat/completions", calls.ChatBody("m", 1, false), 200}} {
				a := call(t, c.method, s.URL+c.path, c.body, append(head, "Access-Control-Request-Headers: authorization")...)
				if a.Status != c.status || a.Header.Get("Access-Control-Allow-Origin") != origin || a.Header.Get("Access-Control-Allow-Credentials") != "" || a.Header.Get("Vary") != "Origin" {
					t.Errorf("%v %s %s: %v %v", head, c.method, c.path, a, a.Header)
				}
			}
		}
	}
	refused(t, "another host", call(t, "GET", s.URL+"/v1/models", "", "Host: x.gw.lan"), 403)
}

// TestGetsThatAct has pages of other origins send GET /unload and GET /upstream by a picture or a link, with the browser's own
// credentials. Nothing may be loaded or unloaded; curl and the browser's user may go on. HEAD never changes anything.
func TestGetsThatAct(t *testing.T) {
	const cross, typed = "Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: none"
	s := testenv.Start(t, testenv.Spec{Models: calls.Catalogue{"m": "llm"}.YAML(calls.LocalHost), Args: []string{withKeys(t)}})
	basic := "Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte("u:"+ownerKey))
	loaded := func() bool {
		return !strings.Contains(string(call(t, "GET", s.URL+"/v1/health", "", bearer(ownerKey)).Body), `"all_models_loaded":[],`)
	}
	load := func() {
		if a := call(t, "POST", s.URL+"/v1/load", `{"model_name":"m"}`, bearer(ownerKey)); !a.OK() {
			t.Fatal(a)
		}
	}
	refusals := func(path string) {
		for _, head := range []string{cross, "Sec-Fetch-Site: same-site", "Referer: https://evil.example/"} {
			refused(t, path, call(t, "GET", s.URL+path, "", head, basic), 401, 403)
		}
	}
	refusals("/upstream/m/health")
	if a := call(t, "HEAD", s.URL+"/upstream/m/health", "", bearer(ownerKey)); a.Status != 409 {
		t.Errorf("HEAD of a model that is not loaded: %v", a)
	}
	if loaded() {
		t.Error("the model was loaded")
	}
	load()
	refusals("/unload")
	refusals("/api/v1/unload")
	for _, path := range []string{"/unload", "/upstream/m/health"} {
		if a := call(t, "HEAD", s.URL+path, "", bearer(ownerKey)); a.Status != 200 {
			t.Errorf("HEAD %s: %v", path, a)
		}
	}
	if !loaded() {
		t.Error("the model was unloaded")
	}
	for _, head := range [][]string{{basic}, {basic, typed}, {bearer(ownerKey)}} {
		load()
		if a := call(t, "GET", s.URL+"/unload", "", head...); a.Status != 200 || loaded() {
			t.Errorf("GET /unload with %q: %v", head, a)
		}
	}
}

// TestAdminKey: what could run or read files needs the admin key even on loopback; the rest does not. The CLI finds it.
func TestAdminKey(t *testing.T) {
	s := testenv.Start(t, testenv.Spec{Models: calls.Catalogue{"m": "llm"}.YAML(calls.LocalHost)})
	info, err := os.Stat(filepath.Join(s.StateDir, "admin-key"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("admin-key: %v %v", info, err)
	}
	key := s.AdminKey()
	if len(key) < 32 || strings.Contains(s.Log(), key) || !strings.Contains(s.Log(), filepath.Join(s.StateDir, "admin-key")) {
		t.Error("the banner says where the key is, and never the key")
	}
	admin := []struct{ method, path, body string }{
		{"POST", "/v1/models/register", `{"model_name":"user.x","recipe":"standin","device":"cpu"}`},
		{"POST", "/api/v0/models/register/", `{"model_name":"user.x","recipe":"standin","device":"cpu"}`},
		{"POST", "/v1/pull", `{"model_name":"user.y","checkpoint":"/etc/passwd","recipe":"standin"}`},
		{"POST", "/v1/pull", `{"model_name":"m","checkpoints":{"main":"/etc/passwd"}}`},
		{"POST", "/v1/internal/set", `{"llamacpp":{"backend":"cpu"}}`},
		{"POST", "/v1/internal/aliases", `{"alias":"x","target":"m"}`},
		{"POST", "/v1/models/m/options", `{"ctx_size":300}`},
		{"DELETE", "/v1/models/m/options", ``},
		{"POST", "/v1/load", `{"model_name":"m","ctx_size":300,"save_options":true}`},
		{"GET", "/upstream/m/health", ``}, {"POST", "/upstream/m/v1/chat/completions", calls.ChatBody("m", 1, false)}, {"HEAD", "/upstream/m/health", ``},
		{"GET", "/logs", ``}, {"HEAD", "/logs", ``}, {"GET", "/v1/logs", ``}, {"GET", "/logs/stream", ``}, {"GET", "/logs/stream/m", ``},
		{"DELETE", "/v1/internal/aliases/x", ``},
		{"POST", "/v1/delete", `{"model_name":"user.x"}`}, {"DELETE", "/api/delete", `{"model":"user.x"}`},
	}
	for _, c := range admin {
		for _, head := range [][]string{nil, {bearer(key + "x")}, {"Authorization: " + key}, {"x-api-key: "}, {"Cookie: key=" + key}} {
			if a := call(t, c.method, s.URL+c.path, c.body, head...); a.Status != http.StatusUnauthorized {
				t.Errorf("%s %s with %v: %v", c.method, c.path, head, a)
			}
		}
	}
	if a := call(t, "GET", s.URL+"/v1/models", ""); strings.Contains(string(a.Body), "user.") {
		t.Errorf("something was registered: %v", a)
	}
	for _, c := range []struct{ method, path, body string }{
		{"POST", "/v1/load", `{"model_name":"m"}`}, {"POST", "/v1/chat/completions", calls.ChatBody("m", 1, false)}, {"GET", "/v1/health", ""},
		{"POST", "/v1/pull", `{"model_name":"m"}`}, {"POST", "/api/generate", `{"model":"m","prompt":"hi","stream":false}`}, {"POST", "/v1/unload", `{"model_name":"m"}`}, {"GET", "/unload", ""},
	} {
		for _, head := range [][]string{nil, {bearer("sk-any")}} {
			if a := call(t, c.method, s.URL+c.path, c.body, head...); a.Status != http.StatusOK && !(c.path == "/v1/unload" && a.Status == 404) {
				t.Errorf("%s %s with %v: %v", c.method, c.path, head, a)
			}
		}
	}
	for i, head := range []string{bearer(key), "x-api-key: " + key, "Authorization: bearer " + key} {
		if a := call(t, "POST", s.URL+"/v1/internal/aliases", `{"alias":"x`+itoa(i)+`","target":"m"}`, head); !a.OK() {
			t.Errorf("%.20s: %v", head, a)
		}
	}
	out, err := exec.Command(testenv.Build(t, "gateway"), "load", "m", "--save-options", "--url="+s.URL, "--state-dir="+s.StateDir).CombinedOutput()
	if err != nil {
		t.Errorf("gateway load --save-options: %v %s", err, out)
	}
}

// TestServeWithoutKeys: a front without keys refuses the same, and says what to do.
func TestServeWithoutKeys(t *testing.T) {
	rds := testenv.StartRedis(t)
	g := testenv.StartGateway(t, "redis://"+rds.Addr+"/0", strings.Repeat("s", 32), calls.Catalogue{"m": "llm"}.YAML("hosts:\n  h: {driver: exec, devices: [cpu], address: \"127.0.0.1:9\", commands: {wake: [\"false\"], sleep: [\"false\"]}}\n"))
	for _, path := range []string{"/v1/models/register", "/v1/internal/set", "/v1/internal/aliases", "/v1/delete", "/upstream/m/health"} {
		a := call(t, "POST", g.URL+path, `{"model_name":"m"}`, bearer("x"))
		refused(t, path, a, http.StatusForbidden)
		if !strings.Contains(a.Error().Message, "--api-keys-file") {
			t.Errorf("%s: %v", path, a)
		}
	}
	if a := call(t, "GET", g.URL+"/v1/models", ""); !a.OK() {
		t.Errorf("models: %v", a)
	}
}

// TestPagesAtEngines asks the real llama-server itself as a web page would: it lets no page of another origin read its
// responses. On a socket, which no browser reaches, it serves as well.
func TestPagesAtEngines(t *testing.T) {
	testenv.Engines(t)
	const rest = "checkpoint: .cache/models/tiny-gemma.gguf, device: cpu, hosts: [local], options: {ctx_size: 512}}\n"
	s := testenv.Start(t, testenv.Spec{Models: "recipes:\n  hidden: {inherit: llamacpp, listen: socket}\n" +
		"models:\n  m: {type: llm, recipe: llamacpp, " + rest + "  n: {type: llm, recipe: hidden, " + rest + calls.LocalHost})
	for _, model := range []string{"n", "m"} { // one after the other has the place for an llm
		if a := call(t, "POST", s.URL+"/v1/chat/completions", calls.ChatBody(model, 2, false)); !a.OK() {
			t.Fatal(a)
		}
	}
	var health struct {
		Loaded []struct {
			BackendURL string `json:"backend_url"`
		} `json:"all_models_loaded"`
	}
	if a := call(t, "GET", s.URL+"/v1/health", ""); json.Unmarshal(a.Body, &health) != nil || len(health.Loaded) != 1 {
		t.Fatal(a)
	}
	engine := strings.TrimSuffix(health.Loaded[0].BackendURL, "/v1")
	for _, path := range []string{"/health", "/v1/models", "/v1/chat/completions", "/props"} {
		for _, method := range []string{"GET", "OPTIONS"} {
			a := call(t, method, engine+path, "", "Origin: https://evil.example", "Access-Control-Request-Method: POST")
			if a.Err != nil {
				t.Errorf("%s %s: %v", method, path, a)
			}
			if to := a.Header.Get("Access-Control-Allow-Origin"); to != "" {
				t.Errorf("%s %s: the response is for pages of %s", method, path, to)
			}
		}
	}
}
