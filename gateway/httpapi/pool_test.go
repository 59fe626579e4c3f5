package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"go.uber.org/goleak"

	"reveille/gateway/keys"
	"reveille/gateway/models"
	"reveille/gateway/quota"
	"reveille/gateway/scheduling"
	"reveille/gateway/ui"
	"reveille/infra/catalog"
	"reveille/infra/config"
	"reveille/infra/rpc"
	"reveille/infra/state"
	"reveille/runner/app"
	"reveille/testenv"
	"reveille/testenv/kit"
)

// fasthttp's cleaner of idle workers sleeps up to ten seconds after its server ended, and its clock never stops.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"))
}

const testModels = `
defaults: {idle: 10m, models: {llm: one}}
models:
  one: {type: llm, recipe: standin, device: cpu, aliases: [uno], description: The first, labels: [tiny], fallback: [two]}
  two: {type: llm, recipe: standin, device: cpu, options: {ctx_size: 512}}
  org/three: {type: llm, recipe: standin, device: cpu, idle: 1h}
  slow: {type: llm, recipe: standin, device: cpu, options: {args: "--token-delay 50ms --tokens 40"}}
  vec: {type: embedding, recipe: standin, device: cpu}
  ears: {type: audio, recipe: standin, device: cpu}
  broken: {type: llm, recipe: standin, device: cpu, options: {args: "--load-time 1s --fail-load -1"}}
  gone: {type: llm, recipe: llamacpp, device: cpu, checkpoint: no-such-file.gguf}
hosts:
  here: {driver: local, devices: [cpu]}
`

const testSecret = "a secret of sixteen or more"

// pool is a gateway's front with a gate, an embedded Redis, and perhaps a real runner with stand-in engines.
type pool struct {
	t      *testing.T
	url    string
	server *Server
	store  *state.Store
	mirror *state.Mirror
	gate   *scheduling.Gate
	redis  *miniredis.Miniredis
	http   *http.Client

	mu  sync.Mutex
	cat *catalog.Catalog
	own *catalog.Catalog // from the file
}

func (p *pool) catalog() *catalog.Catalog {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cat
}

// publish applies the file's models and the registered ones.
func (p *pool) publish(ctx context.Context) error {
	table, err := p.store.All(ctx, state.Registered)
	if err != nil {
		return err
	}
	var more []catalog.Model
	for _, text := range table {
		var m catalog.Model
		if err := json.Unmarshal([]byte(text), &m); err != nil {
			return err
		}
		more = append(more, m)
	}
	next, err := p.own.With(more...)
	if err != nil {
		return err
	}
	text, err := next.Marshal()
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.cat = next
	p.mu.Unlock()
	_, err = p.store.PutCatalog(ctx, next.Version, text, nil)
	return err
}

// testSessions are those of a pool with that secret.
func testSessions(t testing.TB, secret string) *ui.Sessions {
	t.Helper()
	s, err := ui.NewSessions([]byte(secret), "main")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

type noWaker struct{}

func (noWaker) Wake(ctx context.Context, _ string) error {
	<-ctx.Done()
	return ctx.Err()
}

// newPool starts a gateway. limits starts a runner with that --max-loaded-models, "" starts none.
func newPool(t *testing.T, limits string, tweak ...func(*Config)) *pool {
	t.Helper()
	own, _, err := catalog.Parse("models.yaml", []byte(testModels))
	if err != nil {
		t.Fatal(err)
	}
	mini := testenv.MiniRedis(t)
	url := "redis://" + mini.Addr()
	store, err := state.Open(state.Options{URL: url, Secret: []byte(testSecret), Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	p := &pool{t: t, store: store, redis: mini, own: own, cat: own, http: &http.Client{
		Timeout: time.Minute, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	if err := p.publish(ctx); err != nil {
		t.Fatal(err)
	}
	p.mirror = state.NewMirror(store, func(e state.Event) {
		p.gate.OnEvent(e)
		p.server.OnEvent(e)
	})
	toucher := state.NewUsageReporter(store)
	signer := rpc.NewSigner([]byte(testSecret))
	p.gate = scheduling.New(scheduling.Config{Gateway: signer.Gateway(), Store: store, Mirror: p.mirror, Waker: noWaker{}, Catalog: p.catalog, Hold: 30 * time.Second})
	set, err := keys.Open("", "", quota.Limits{})
	if err := errors.Join(err, set.AddLocal(localKey)); err != nil {
		t.Fatal(err)
	}
	cfg := Config{
		Sessions: testSessions(t, testSecret),
		Gate:     p.gate, Store: store, Mirror: p.mirror, Usage: toucher, Catalog: p.catalog, Signer: signer, Runners: models.NewRunners(signer, p.mirror.Snapshot),
		Keys: set, Version: "test", Overlay: p.publish, Register: catalog.RegisterList{"hf://", os.TempDir()}, Hold: 30 * time.Second, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
	for _, f := range tweak {
		f(&cfg)
	}
	p.server = New(cfg)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.url = "http://" + ln.Addr().String()
	work.Go(func() { p.mirror.Run(ctx) })
	work.Go(func() { toucher.Run(ctx) })
	work.Go(func() { p.gate.Run(ctx) })
	work.Go(func() { _ = p.server.Serve(ln) })
	if limits != "" {
		p.runner(ctx, &work, limits)
	}
	t.Cleanup(func() {
		p.http.CloseIdleConnections()
		end, stop := context.WithTimeout(context.Background(), 20*time.Second)
		defer stop()
		if err := p.server.Shutdown(end); err != nil {
			t.Error("shutdown:", err)
		}
		cancel()
		work.Wait()
		_ = store.Close()
	})
	return p
}

// runner starts a real runner as host "here" and waits until it is ready.
func (p *pool) runner(ctx context.Context, work *sync.WaitGroup, limits string) {
	p.t.Helper()
	s := app.Settings{
		Redis:        config.Redis{RedisURL: "redis://" + p.redis.Addr(), Pool: "main"},
		RunnerSecret: testSecret,
		HostSettings: app.HostSettings{
			Host: "here", RunnerAddr: "127.0.0.1:0", Devices: "cpu", MaxLoadedModels: limits, StateDir: p.t.TempDir(),
			EnginesDir: []string{filepath.Dir(testenv.Standin(p.t))}, FairAfter: 2 * time.Second, DrainTimeout: 20 * time.Second, RetireTimeout: time.Hour, FirstByte: 2 * time.Minute,
		},
	}
	work.Go(func() {
		if err := app.Run(ctx, s, slog.New(slog.NewTextHandler(io.Discard, nil)), nil); err != nil {
			p.t.Error("runner:", err)
		}
	})
	p.until("the runner is ready", func() bool {
		h := p.mirror.Snapshot().Hosts["here"]
		return h != nil && h.State == "ready"
	})
}

func (p *pool) until(what string, ok func() bool) {
	p.t.Helper()
	kit.Eventually(p.t, what, ok)
}

// reply is a response with its JSON body.
type reply struct {
	status int
	header http.Header
	text   string
	json   map[string]any
}

// localKey is the admin key of a gateway without keys. Most routes do not require it.
const localKey = "local-admin-key"

// do sends a request with the admin key; body "" sends none.
func (p *pool) do(method, path, body string) reply {
	p.t.Helper()
	return p.with(localKey, method, path, body)
}

// with is do with another key.
func (p *pool) with(key, method, path, body string) reply {
	p.t.Helper()
	req, err := http.NewRequest(method, p.url+path, strings.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+key)
	resp, err := p.http.Do(req)
	if err != nil {
		p.t.Fatal(method, path, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(method, path, err)
	}
	out := reply{status: resp.StatusCode, header: resp.Header, text: string(text)}
	_ = json.NewDecoder(bytes.NewReader(text)).Decode(&out.json)
	return out
}

func (p *pool) get(path string) reply        { p.t.Helper(); return p.do("GET", path, "") }
func (p *pool) post(path, body string) reply { p.t.Helper(); return p.do("POST", path, body) }

// want checks the status of a reply and returns the reply.
func (p *pool) want(status int, r reply) reply {
	p.t.Helper()
	if r.status != status {
		p.t.Fatalf("status %d, want %d: %s", r.status, status, r.text)
	}
	return r
}

// code returns a response's error code.
func (r reply) code() string {
	e, _ := r.json["error"].(map[string]any)
	s, _ := e["code"].(string)
	return s
}

// param returns the request field that an error names.
func (r reply) param() string {
	e, _ := r.json["error"].(map[string]any)
	s, _ := e["param"].(string)
	return s
}

// list returns a list of objects in a response.
func (r reply) list(name string) []map[string]any {
	var out []map[string]any
	items, _ := r.json[name].([]any)
	for _, x := range items {
		m, _ := x.(map[string]any)
		out = append(out, m)
	}
	return out
}

const chatOne = `{"model":"one","messages":[{"role":"user","content":"hi"}]}`

func (p *pool) chat(model string) reply {
	p.t.Helper()
	return p.post("/v1/chat/completions", strings.Replace(chatOne, "one", model, 1))
}
