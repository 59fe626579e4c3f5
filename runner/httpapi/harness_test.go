package httpapi_test

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"reveille/infra/catalog"
	"reveille/infra/policy"
	"reveille/infra/recipe"
	"reveille/infra/relay"
	"reveille/infra/rpc"
	"reveille/infra/state"
	"reveille/runner/engine"
	"reveille/runner/engineslots"
	"reveille/runner/fairqueue"
	"reveille/runner/host"
	"reveille/runner/httpapi"
	"reveille/runner/launch"
	"reveille/runner/mmcache"
	"reveille/runner/plan"
	"reveille/testenv"
	"reveille/testenv/kit"
)

// fasthttp's pool sleeps up to 10 s before it notices that it was stopped, and its clock never stops.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"))
}

var secret = []byte("a secret of the pool")

const models = `
models:
  real: {type: llm, recipe: standin, device: cpu, options: {args: "--tokens 5"}}
  queued: {type: embedding, recipe: standin, device: cpu, options: {args: "--call-cost 1h"}}
  slow: {type: embedding, recipe: standin, device: cpu}
  fake: {type: image, recipe: standin, device: cpu}
  text: {type: llm, recipe: standin, device: cpu}
`

// engines starts the stand-in for models with arguments, and for others the test's servers that see the raw connection.
type engines struct {
	*launch.Launcher
	handle func(c net.Conn, r *http.Request) // of the fake model; the connection is closed after it
	body   func(io.Reader) error             // reads a request's body before handle, which an error prevents; nil discards it

	mu    sync.Mutex
	fakes []*fake
}

func (e *engines) Start(ctx context.Context, m *catalog.Model, r *recipe.Recipe, o recipe.Options, p plan.Plan, g engine.GPUs) (host.Engine, error) {
	if o["args"] != nil {
		return e.Launcher.Start(ctx, m, r, o, p, g)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	f := &fake{ln: ln, done: make(chan struct{}), client: relay.New(relay.Config{Addr: ln.Addr().String()}), conns: map[net.Conn]struct{}{}}
	f.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			f.mu.Lock()
			f.conns[c] = struct{}{}
			f.mu.Unlock()
			f.wg.Go(func() {
				defer c.Close()
				req, err := http.ReadRequest(bufio.NewReader(c))
				if err != nil {
					return
				}
				if e.body == nil {
					_, _ = io.Copy(io.Discard, req.Body)
				} else if e.body(req.Body) != nil {
					return
				}
				e.handle(c, req)
			})
		}
	})
	e.mu.Lock()
	e.fakes = append(e.fakes, f)
	e.mu.Unlock()
	return f, nil
}

type fake struct {
	ln      net.Listener
	client  *relay.Client
	done    chan struct{}
	once    sync.Once
	wg      sync.WaitGroup
	mu      sync.Mutex
	conns   map[net.Conn]struct{}
	permits *fairqueue.Queue
	media   *mmcache.Attachment
	slots   *engineslots.Table
	loop    string
	pid     atomic.Int64
}

func (f *fake) Features() host.Features {
	return host.Features{Permits: f.permits, Media: f.media, Slots: f.slots, LoopPath: f.loop}
}

func (f *fake) Kill(ctx context.Context) error { return f.Stop(ctx) }
func (f *fake) Measured() int64                { return 0 }
func (f *fake) Held() int64                    { return 0 }

func (f *fake) PID() int              { return int(f.pid.Load()) }
func (f *fake) BaseURL() string       { return "http://" + f.ln.Addr().String() }
func (f *fake) APIKey() string        { return "engine-key" }
func (f *fake) Command() string       { return "fake" }
func (f *fake) Done() <-chan struct{} { return f.done }
func (f *fake) Err() error            { return nil }
func (f *fake) Client() *relay.Client { return f.client }

func (f *fake) Stop(context.Context) error {
	f.once.Do(func() {
		_ = f.ln.Close()
		f.mu.Lock()
		for c := range f.conns {
			_ = c.Close()
		}
		f.mu.Unlock()
		f.client.Close()
		close(f.done)
	})
	f.wg.Wait()
	return nil
}

// bench is a runner's host and server, and a gateway's end of the wire.
type bench struct {
	*testing.T
	host    *host.Host
	server  *httpapi.Server
	engines *engines
	store   *state.Store
	url     string
	signer  *rpc.Signer
	client  *http.Client
}

func start(t *testing.T, change ...func(*httpapi.Config)) *bench {
	b := &bench{T: t, signer: rpc.NewSigner(secret), engines: &engines{}}
	addr := testenv.Redis(t)
	open := func() *state.Store {
		s, err := state.Open(state.Options{URL: "redis://" + addr, Timeout: 2 * time.Second})
		b.must(err)
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	b.store = open()
	c, _, err := catalog.Parse("models.yaml", []byte(models))
	b.must(err)
	raw, err := c.Marshal()
	b.must(err)
	_, err = b.store.PutCatalog(t.Context(), c.Version, raw, nil)
	b.must(err)
	spawner := engine.NewSpawner(nil)
	t.Cleanup(spawner.Close)
	quiet := slog.New(slog.DiscardHandler)
	b.engines.Launcher = &launch.Launcher{
		Spawner: spawner, Finder: engine.Finder{Paths: map[string]string{"standin": testenv.Standin(t)}}, SocketDir: t.TempDir(), Log: quiet,
	}
	b.host = host.New(host.Config{
		Name: "h", Boot: "1", Hardware: host.Hardware{Devices: policy.CPU}, Limits: policy.Uniform(1), Beat: 50 * time.Millisecond, Reserve: 100 * time.Millisecond,
		DrainTimeout: 20 * time.Second, Store: open(), Engines: b.engines, Log: quiet,
	})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.host.Run(ctx) }()

	cfg := httpapi.Config{Name: "h", Host: b.host, Secret: secret, Log: quiet}
	for _, f := range change {
		f(&cfg)
	}
	srv := httpapi.New(cfg)
	b.server = srv
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	b.must(err)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	b.url = "http://" + ln.Addr().String()
	transport := &http.Transport{}
	b.client = &http.Client{Transport: transport}
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		transport.CloseIdleConnections()
		end, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := srv.Shutdown(end); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return b
}

func (b *bench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// until waits for a condition, and shows the host if it does not come.
func (b *bench) until(what string, ok func() bool) {
	b.Helper()
	defer func() {
		if b.Failed() {
			b.Logf("host: %+v", b.host.View())
		}
	}()
	kit.Eventually(b, what, ok)
}

// load loads a model. It asks again while there is neither the model nor its load: an engine may just be on its way
// out.
func (b *bench) load(model string) {
	b.Helper()
	b.until(model+" is loaded", func() bool {
		v := b.host.View()
		for _, m := range v.Models {
			if m.ID == model {
				return m.State == "loaded"
			}
		}
		if v.Loading == "" {
			s, err := b.store.Snapshot(b.Context())
			b.must(err)
			_, _ = b.store.Acquire(b.Context(), state.Want{Gateway: "g", Model: model, Host: "h", Revision: s.RevisionOf("h", model), Unattended: true})
		}
		return false
	})
}

// open returns the number of requests that the host counts.
func (b *bench) open() (n int) {
	for _, m := range b.host.View().Models {
		n += m.InFlight
	}
	return n
}

// request makes a signed call.
func (b *bench) request(ctx context.Context, method, path, model, body string) *http.Request {
	b.Helper()
	r, err := http.NewRequestWithContext(ctx, method, b.url+path, bytes.NewReader([]byte(body)))
	b.must(err)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set(rpc.HeaderAuth, b.signer.Sign(rpc.Call{Method: method, Path: path, Host: "h", Model: model, Length: len(body)}))
	if model != "" {
		r.Header.Set(rpc.HeaderModel, model)
	}
	if bytes.Contains([]byte(body), []byte(`"stream":true`)) {
		r.Header.Set(rpc.HeaderStream, "1")
	}
	return r
}

// answer is a complete response; err is set if the body was cut off.
type answer struct {
	status int
	header http.Header
	body   string
	err    error
}

func (b *bench) do(r *http.Request) answer {
	b.Helper()
	resp, err := b.client.Do(r)
	b.must(err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(body), err}
}

func (b *bench) call(method, path, model, body string) answer {
	b.Helper()
	return b.do(b.request(b.Context(), method, path, model, body))
}
