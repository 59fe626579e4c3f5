package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"reveille/gateway/keys"
	"reveille/gateway/models"
	"reveille/gateway/quota"
	"reveille/gateway/scheduling"
	"reveille/infra/catalog"
	"reveille/infra/rpc"
	"reveille/infra/state"
	"reveille/testenv"
	"reveille/testenv/kit"
)

const stageModels = `
defaults: {models: {embedding: vec, reranking: rank}}
models:
  chat: {type: llm, recipe: standin, device: cpu, fallback: [spare], aliases: {nick: , deep: {reasoning_effort: high, temperature: 0.6, force: {max_tokens: 7}}}}
  spare: {type: llm, recipe: standin, device: cpu}
  same: {type: llm, recipe: standin, device: cpu, fallback: [llama]}
  Same: {type: llm, recipe: standin, device: cpu}
  vec: {type: embedding, recipe: standin, device: cpu}
  cut: {type: embedding, recipe: standin, device: cpu, dimensions: true}
  rank: {type: reranking, recipe: standin, device: cpu}
  norm: {type: reranking, recipe: standin, device: cpu, normalize_scores: true}
  tei: {type: reranking, recipe: tei, checkpoint: o/r, device: cpu}
  draw: {type: image, recipe: sd-cpp, checkpoint: no-such-file.gguf, device: cpu}
  ears: {type: audio, recipe: standin, device: cpu}
  whisper: {type: audio, recipe: whispercpp, checkpoint: no-such-file.bin, device: cpu}
  llama: {type: llm, recipe: llamacpp, checkpoint: no-such-file.gguf, device: cpu}
  unnamed: {type: llm, recipe: unnamed, device: cpu}
recipes:
  unnamed: {inherit: standin, omit_model: true}
any: {fast: [same, nick, spare]}
background:
  - client: open-webui
  - client: continue
  - client: claude-code
  - {path: "/api/*", headers: {x-client: "Probe*"}, then: refuse}
  - {metadata: {task: title}, then: wait}
hosts:
  here: {driver: local, devices: [cpu]}
`

// stage is a gateway with its gate on an embedded Redis, and one host whose runner is the test's.
type stage struct {
	t      testing.TB
	addr   string
	server *Server
	store  *state.Store
	mirror *state.Mirror
	gate   *scheduling.Gate
	http   *http.Client
	log    *kit.Buffer

	runner *httptest.Server
	redis  *miniredis.Miniredis
	verify *rpc.Verifier
	gen    uint64

	mu     sync.Mutex
	engine http.HandlerFunc // after the signature was checked; the body can be read
	loads  map[string]int
	seen   []receivedRequest
	denied int                              // calls with an invalid signature
	loader func(model string) state.Outcome // how a load ends, when it returns
}

// receivedRequest is an engine request that the runner received.
type receivedRequest struct {
	path, contentType, ticket, id, tenant, priority, background string
	body                                                        []byte
}

type sleeper struct{}

func (sleeper) Wake(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() }

// stat returns a field of the pool's statistics.
func (s *stage) stat(name string) float64 {
	s.t.Helper()
	stats, err := s.store.Stats(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	return stats[name]
}

// handle has a route served by h.
func (s *stage) handle(name string, h handler) {
	table := slices.Clone(s.server.routes)
	for i := range table {
		if table[i].Name == name {
			table[i].serve = h
		}
	}
	s.server.routes = table
}

func newStage(t testing.TB, tweak ...func(*stage, *Config)) *stage {
	t.Helper()
	cat, _, err := catalog.Parse("models.yaml", []byte(stageModels))
	if err != nil {
		t.Fatal(err)
	}
	s := &stage{
		t: t, verify: rpc.NewVerifier([]byte(testSecret)), loads: map[string]int{}, log: new(kit.Buffer),
		http: &http.Client{Timeout: time.Minute, Transport: new(http.Transport)},
	}
	s.engine = func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"ok":true,"usage":{"prompt_tokens":3,"completion_tokens":4}}`)
	}
	s.loader = func(string) state.Outcome {
		return state.Outcome{Fields: map[string]string{"cold": "1", "load_ms": "7", "evicted": "old"}}
	}
	s.runner = httptest.NewServer(http.HandlerFunc(s.serveRunner))
	s.redis = testenv.MiniRedis(t)
	url := "redis://" + s.redis.Addr()
	if s.store, err = state.Open(state.Options{URL: url, Timeout: 5 * time.Second}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	s.mirror = state.NewMirror(s.store, func(e state.Event) { s.gate.OnEvent(e); s.server.OnEvent(e) })
	toucher := state.NewUsageReporter(s.store)
	signer := rpc.NewSigner([]byte(testSecret))
	s.gate = scheduling.New(scheduling.Config{
		Store: s.store, Mirror: s.mirror, Waker: sleeper{}, Catalog: func() *catalog.Catalog { return cat }, Hold: 20 * time.Second, MaxPerModel: 8,
	})
	open, err := keys.Open("", "", quota.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{
		Gate: s.gate, Store: s.store, Mirror: s.mirror, Usage: toucher, Catalog: func() *catalog.Catalog { return cat },
		Signer: signer, Runners: models.NewRunners(signer, s.mirror.Snapshot), Keys: open, Sessions: testSessions(t, testSecret), Hold: 20 * time.Second,
		Log: slog.New(slog.NewTextHandler(s.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	for _, f := range tweak {
		f(s, &cfg)
	}
	s.server = New(cfg)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.addr = ln.Addr().String()
	if s.gen, _, err = s.store.Register(ctx, state.HostInfo{
		Name: "here", Boot: "b", Addr: s.runner.Listener.Addr().String(), Devices: "cpu", Limits: "-1",
	}); err != nil {
		t.Fatal(err)
	}
	work.Go(func() { s.mirror.Run(ctx) })
	work.Go(func() { toucher.Run(ctx) })
	work.Go(func() { s.gate.Run(ctx) })
	work.Go(func() { _ = s.server.Serve(ln) })
	work.Go(func() { s.host(ctx) })
	t.Cleanup(func() {
		s.http.CloseIdleConnections()
		s.settled()
		end, stop := context.WithTimeout(context.Background(), 20*time.Second)
		defer stop()
		if err := s.server.Shutdown(end); err != nil {
			t.Error("shutdown:", err)
		}
		cancel()
		work.Wait()
		s.runner.Close()
		_ = s.store.Close()
	})
	s.until("the host is ready", func() bool {
		h := s.mirror.Snapshot().Hosts["here"]
		return h != nil && h.State == "ready"
	})
	return s
}

// settled checks that every request released what it took.
func (s *stage) settled() {
	s.t.Helper()
	s.until("everything is given back", func() bool {
		busy := 0
		for _, m := range []string{"chat", "spare", "vec", "cut", "rank", "norm", "ears"} {
			busy += s.gate.InFlight("here", m)
		}
		return busy == 0 && s.server.bodies.Buffered() == 0 && s.server.Open() == 0 && len(s.gate.Waiting()) == 0
	})
}

// host carries out the host's queue.
func (s *stage) host(ctx context.Context) {
	for ; ctx.Err() == nil; time.Sleep(3 * time.Millisecond) {
		snap, err := s.store.Snapshot(ctx)
		if err != nil || snap.Hosts["here"] == nil || len(snap.Hosts["here"].Queue) == 0 {
			_, _, _ = s.store.Beat(ctx, "here", s.gen, false, nil)
			continue
		}
		ticket := snap.Hosts["here"].Queue[0]
		if s.store.Begin(ctx, "here", s.gen, ticket.ID, state.NPUSeat{}) != nil {
			continue
		}
		s.mu.Lock()
		s.loads[ticket.Model]++
		loader := s.loader
		s.mu.Unlock()
		out := loader(ticket.Model)
		if !out.Failed {
			s.put(ctx, ticket.Model)
		}
		_, _ = s.store.Finish(ctx, "here", s.gen, ticket.ID, out)
	}
}

func (s *stage) put(ctx context.Context, model string) {
	fields := map[string]string{"type": "llm", "state": "loaded", "device": "cpu", "used_age_ms": "0"}
	_ = s.store.PutModels(ctx, "here", s.gen, []state.ModelPut{{ID: model, Fields: fields}})
}

// warm loads models.
func (s *stage) warm(models ...string) *stage {
	s.t.Helper()
	for _, m := range models {
		s.put(s.t.Context(), m)
		s.until(m+" is loaded", func() bool { _, ok := s.gate.Endpoint(m); return ok })
	}
	return s
}

// moveTo moves the host's runner to another address.
func (s *stage) moveTo(addr string) {
	s.t.Helper()
	gen, _, err := s.store.Register(s.t.Context(), state.HostInfo{Name: "here", Boot: "c", Addr: addr, Devices: "cpu", Limits: "-1", Generation: s.gen})
	if err != nil {
		s.t.Fatal(err)
	}
	s.gen = gen
	s.until("the host has moved", func() bool { return s.mirror.Snapshot().Hosts["here"].Addr == addr })
}

func (s *stage) serve(h http.HandlerFunc) *stage {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.engine = h
	return s
}

func (s *stage) loading(f func(model string) state.Outcome) *stage {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loader = f
	return s
}

func (s *stage) serveRunner(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	_, err := s.verify.Verify(r.Header.Get(rpc.HeaderAuth), rpc.Call{
		Method: r.Method, Path: r.RequestURI, Host: "here", Model: r.Header.Get(rpc.HeaderModel), Length: len(body),
	}, time.Now())
	if err != nil {
		if err == rpc.ErrTime {
			w.Header().Set(rpc.HeaderTime, strconv.FormatInt(time.Now().UnixMilli(), 10))
		}
		s.mu.Lock()
		s.denied++
		s.mu.Unlock()
		refuse(rpc.RefusedAuth)(w, r)
		return
	}
	s.mu.Lock()
	s.seen = append(s.seen, receivedRequest{r.RequestURI, r.Header.Get("Content-Type"), r.Header.Get(rpc.HeaderTicket), r.Header.Get(rpc.HeaderRequest), r.Header.Get(rpc.HeaderTenant), r.Header.Get(rpc.HeaderPriority), r.Header.Get(rpc.HeaderBackground), body})
	h := s.engine
	s.mu.Unlock()
	h(w, r)
}

// refuse returns a runner's refusal.
func refuse(reason string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(rpc.HeaderRefused, reason)
		w.WriteHeader(rpc.StatusRefused)
	}
}

func (s *stage) got() []receivedRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen
}

func (s *stage) until(what string, ok func() bool) {
	s.t.Helper()
	kit.Eventually(s.t, what, ok)
}

// ask sends a request; head holds "Name: value" lines.
func (s *stage) ask(method, path, body string, head ...string) reply {
	s.t.Helper()
	return s.read(s.open(s.t.Context(), method, path, body, head...))
}

// read reads a response to its end.
func (s *stage) read(resp *http.Response) reply {
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	out := reply{status: resp.StatusCode, header: resp.Header, text: string(text), json: jsonOf(text)}
	if err != nil {
		out.text += " BROKEN"
	}
	return out
}

func (s *stage) open(ctx context.Context, method, path, body string, head ...string) *http.Response {
	s.t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, "http://"+s.addr+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	for _, line := range head {
		name, value, _ := strings.Cut(line, ": ")
		req.Header.Set(name, value)
	}
	resp, err := s.http.Do(req)
	if err != nil {
		s.t.Fatal(method, path, err)
	}
	return resp
}

const (
	chatPath = "/v1/chat/completions"
	chatBody = `{"model":"chat","messages":[{"role":"user","content":"hi"}]}`
	chatLive = `{"model":"chat","messages":[{"role":"user","content":"hi"}],"stream":true}`
)

// rawConn is one raw connection to the gateway.
type rawConn struct {
	t testing.TB
	c net.Conn
	r *bufio.Reader
}

func (s *stage) dial() *rawConn {
	s.t.Helper()
	c, err := net.Dial("tcp", s.addr)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = c.Close() })
	return &rawConn{s.t, c, bufio.NewReader(c)}
}

// say sends bytes unchanged and reads one response.
func (c *rawConn) say(text string) reply {
	c.t.Helper()
	if _, err := io.WriteString(c.c, text); err != nil {
		c.t.Fatal(err)
	}
	method, _, _ := strings.Cut(text, " ")
	return c.hear(method)
}

func (c *rawConn) hear(method string) reply {
	c.t.Helper()
	_ = c.c.SetReadDeadline(time.Now().Add(30 * time.Second))
	resp, err := http.ReadResponse(c.r, &http.Request{Method: method})
	if err != nil {
		c.t.Fatal("no response: ", err)
	}
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	if resp.Close {
		resp.Header.Set("Connection", "close") // net/http removes it
	}
	return reply{status: resp.StatusCode, header: resp.Header, text: string(text), json: jsonOf(text)}
}

func post(path, body string, head ...string) string {
	lines := ""
	for _, h := range head {
		lines += h + "\r\n"
	}
	return "POST " + path + " HTTP/1.1\r\nHost: localhost\r\n" + lines + "Content-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n" + body
}

// keyFile writes a keys file.
func keyFile(t *testing.T, text string) *keys.Set {
	t.Helper()
	path := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	set, err := keys.Open(path, "", quota.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func jsonOf(text []byte) map[string]any {
	var v map[string]any
	_ = json.Unmarshal(text, &v)
	return v
}
