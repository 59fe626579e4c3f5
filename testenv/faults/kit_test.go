package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"reveille/infra/rpc"
	"reveille/runner/host"
	"reveille/testenv"
	"reveille/testenv/calls"
	"reveille/testenv/kit"
)

const (
	soon   = 5 * time.Second // longest for an answer that must not wait for anything, on a machine with too much to do
	slow   = "--token-delay 20ms --tokens 100000"
	secret = "faults-faults-faults-faults-fault"
)

// world is a system with stand-in engines and the eyes of a test on it.
type world struct {
	t      *testing.T
	url    string // of the gateway that is asked
	host   string
	models calls.Catalogue
	client *http.Client
	rdb    *redis.Client // looks at the real Redis
	log    func() string // what the runner has written
	pid    int           // the process whose descendants the engines are
}

// start runs `gateway run` over a real redis-server, with a host named local. via is the address at which it finds
// Redis, "" for the server's own.
func start(t *testing.T, models calls.Catalogue, server *testenv.RedisServer, via, tail string, args ...string) (*world, *testenv.System) {
	t.Helper()
	if server == nil {
		server = testenv.StartRedis(t)
	}
	spec := testenv.Spec{Models: models.YAML(calls.LocalHost + tail), Args: args, Redis: server}
	if via != "" {
		spec.Redis = &testenv.RedisServer{Addr: via}
	}
	s := testenv.Start(t, spec)
	return &world{t: t, url: s.URL, host: "local", models: models, client: calls.Client(t, 64), rdb: redisAt(t, server.Addr), log: s.Log, pid: s.PID()}, s
}

// front starts a runner and n gateways of their own processes over a Redis.
func front(t *testing.T, n int, models calls.Catalogue, redisAddr string, args ...string) (w *world, gateways []*testenv.Program, runner *testenv.Program) {
	t.Helper()
	return frontVia(t, n, models, redisAddr, redisAddr, args...)
}

// frontVia is front with a runner that reaches the Redis at another address, such as a relay's.
func frontVia(t *testing.T, n int, models calls.Catalogue, redisAddr, runnersRedis string, args ...string) (w *world, gateways []*testenv.Program, runner *testenv.Program) {
	t.Helper()
	url := "redis://" + redisAddr + "/0"
	runner, addr := testenv.StartRunner(t, "redis://"+runnersRedis+"/0", secret, "h", t.TempDir(), "--devices=cpu npu")
	text := models.YAML("hosts:\n  h: {driver: exec, address: \"" + addr + "\", devices: [cpu, npu], commands: {wake: [\"true\"], sleep: [\"true\"]}}\n")
	for range n {
		gateways = append(gateways, testenv.StartGateway(t, url, secret, text, args...))
	}
	w = &world{t: t, url: gateways[0].URL, host: "h", models: models, client: calls.Client(t, 64), rdb: redisAt(t, redisAddr), log: runner.Log, pid: runner.PID()}
	kit.Becomes(t, "state of the host", "ready", func() string { return w.hget("rv:{main}:host:h", "state") })
	return w, gateways, runner
}

func redisAt(t *testing.T, addr string) *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, ReadTimeout: kit.Patience})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// hget reads a field, "" when it is not there.
func (w *world) hget(key, field string) string {
	w.t.Helper()
	v, err := w.rdb.HGet(w.t.Context(), key, field).Result()
	if err != nil && err != redis.Nil {
		w.t.Fatal(err)
	}
	return v
}

// move has the host registered at another address.
func (w *world) move(addr string) {
	w.t.Helper()
	if err := w.rdb.HSet(w.t.Context(), "rv:{main}:host:"+w.host, "addr", addr).Err(); err != nil {
		w.t.Fatal(err)
	}
	if err := w.rdb.Publish(w.t.Context(), "rv:{main}:events", `{"kind":"host","host":"`+w.host+`","state":"ready"}`).Err(); err != nil {
		w.t.Fatal(err)
	}
}

// field reads a field of a model's record.
func (w *world) field(model, name string) string {
	w.t.Helper()
	return w.hget("rv:{main}:model:"+w.host+":"+model, name)
}

// engine is the process of a model, 0 when it is not loaded.
func (w *world) engine(model string) int {
	w.t.Helper()
	pid, _ := strconv.Atoi(w.field(model, "pid"))
	return pid
}

// loaded lists the loaded models by name.
func (w *world) loaded() []string {
	w.t.Helper()
	names, err := w.rdb.SMembers(w.t.Context(), "rv:{main}:models:"+w.host).Result()
	if err != nil {
		w.t.Fatal(err)
	}
	slices.Sort(names)
	return slices.DeleteFunc(names, func(m string) bool { return w.field(m, "state") != "loaded" })
}

// queued counts the tickets in the host's queue.
func (w *world) queued() int {
	w.t.Helper()
	n, err := w.rdb.LLen(w.t.Context(), "rv:{main}:queue:"+w.host).Result()
	if err != nil {
		w.t.Fatal(err)
	}
	return int(n)
}

// view is what the runner of a world by front says of its host.
func (w *world) view() (v host.View) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, "http://"+w.hget("rv:{main}:host:"+w.host, "addr")+rpc.PathHost, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set(rpc.HeaderAuth, rpc.NewSigner([]byte(secret)).Sign(rpc.Call{Method: req.Method, Path: rpc.PathHost, Host: w.host}))
	a := calls.Do(w.client, req, nil)
	if err := json.Unmarshal(a.Body, &v); err != nil {
		w.t.Fatalf("%v: %v", err, a)
	}
	return v
}

// load loads a model.
func (w *world) load(model string) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodPost, w.url+"/v1/load", strings.NewReader(`{"model_name":"`+model+`"}`))
	if a := calls.Do(w.client, req, err); !a.OK() {
		w.t.Fatalf("loading %s: %v", model, a)
	}
}

// inFlight is how many requests the runner of a world by front has for a model.
func (w *world) inFlight(model string) int {
	w.t.Helper()
	for _, m := range w.view().Models {
		if m.ID == model {
			return m.InFlight
		}
	}
	return 0
}

// spawns counts the engines that were started for a model.
func (w *world) spawns(model string) int {
	n := 0
	for line := range strings.Lines(w.log()) {
		if strings.Contains(line, `msg="engine started"`) && strings.Contains(line, " model="+model+" ") {
			n++
		}
	}
	return n
}

// ask uses a model.
func (w *world) ask(model string) calls.Answer { return w.askAt(w.url, model) }

func (w *world) askAt(base, model string) calls.Answer {
	ctx, cancel := context.WithTimeout(w.t.Context(), 2*kit.Patience)
	defer cancel()
	return calls.Infer(ctx, w.client, base, w.models.Type(model), model)
}

// askFor is ask with a client that waits no longer than so many seconds.
func (w *world) askFor(model string, seconds int) calls.Answer {
	ctx, cancel := context.WithTimeout(w.t.Context(), 2*kit.Patience)
	defer cancel()
	req, err := calls.Request(ctx, w.url, w.models.Type(model), model)
	if err == nil {
		req.Header.Set("x-wait-timeout", strconv.Itoa(seconds))
	}
	return calls.Do(w.client, req, err)
}

// use is ask for a request that must succeed.
func (w *world) use(model string) calls.Answer {
	w.t.Helper()
	a := w.ask(model)
	if !a.OK() {
		w.t.Fatalf("%s: %v", model, a)
	}
	return a
}

// later makes a call in the background.
func later(call func() calls.Answer) <-chan calls.Answer {
	c := make(chan calls.Answer, 1)
	go func() { c <- call() }()
	return c
}

// await takes an answer that must come.
func await(t *testing.T, what string, c <-chan calls.Answer) calls.Answer {
	t.Helper()
	select {
	case a := <-c:
		return a
	case <-time.After(kit.Patience):
		t.Fatalf("%s: no answer in %v", what, kit.Patience)
		return calls.Answer{}
	}
}

// calm is a row's answer: what a client is told, whatever was wrong.
type calm struct {
	status int
	typ    string
	code   string
	retry  int  // Retry-After before it is spread by 20 %, 0 for none
	final  bool // x-should-retry: false
}

// must checks an answer against a row.
func (c calm) must(t *testing.T, what string, a calls.Answer) {
	t.Helper()
	if a.Err != nil {
		t.Errorf("%s: %v", what, a)
		return
	}
	e := a.Error()
	if a.Status != c.status || e.Code != c.code || e.Type != c.typ || e.Message == "" {
		t.Errorf("%s: %v, want %d %s/%s", what, a, c.status, c.typ, c.code)
	}
	low, high := (c.retry*8+9)/10, (c.retry*12+9)/10 // whole seconds, rounded up
	if got := a.RetryAfter(); got < min(low, 60) || got > min(high, 60) {
		t.Errorf("%s: Retry-After %q, want %d to %d", what, a.Header.Get("Retry-After"), min(low, 60), min(high, 60))
	}
	if got := a.Header.Get("x-should-retry") == "false"; got != c.final {
		t.Errorf("%s: x-should-retry %q", what, a.Header.Get("x-should-retry"))
	}
	if a.Header.Get("x-request-id") == "" || !strings.HasPrefix(a.Header.Get("Content-Type"), "application/json") {
		t.Errorf("%s: x-request-id %q, Content-Type %q", what, a.Header.Get("x-request-id"), a.Header.Get("Content-Type"))
	}
	var shape map[string]map[string]json.RawMessage
	if err := json.Unmarshal(a.Body, &shape); err != nil || len(shape) != 1 || len(shape["error"]) != 4 {
		t.Errorf("%s: body %s", what, a.Body)
	}
}

// endsWith checks that a stream broke off with an error event of that code and does not look complete.
func endsWith(t *testing.T, what, last string, err error, code string) {
	t.Helper()
	if err != nil || !strings.HasPrefix(last, `data: {"error":`) || !strings.Contains(last, fmt.Sprintf(`"code":%q`, code)) {
		t.Errorf("%s: the last event is %.300q, %v; want an error with %s", what, last, err, code)
	}
}

// lossy relays to a Redis and can lose one reply: that to the next command which holds a text. The command was carried
// out then, and its connection is cut.
type lossy struct {
	addr string
	lost chan struct{} // closed when the reply was lost
}

func loseReply(t *testing.T, target, text string) *lossy {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	l := &lossy{addr: ln.Addr().String(), lost: make(chan struct{})}
	armed := make(chan struct{}, 1)
	armed <- struct{}{}
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			s, err := net.Dial("tcp", target)
			if err != nil {
				c.Close()
				continue
			}
			mine := make(chan struct{})
			go func() { // commands
				defer c.Close()
				defer s.Close()
				buf := make([]byte, 64<<10)
				for {
					n, err := c.Read(buf)
					if strings.Contains(string(buf[:n]), text) {
						select {
						case <-armed:
							close(mine)
						default:
						}
					}
					if _, werr := s.Write(buf[:n]); err != nil || werr != nil {
						return
					}
				}
			}()
			go func() { // replies
				defer c.Close()
				defer s.Close()
				buf := make([]byte, 64<<10)
				for {
					n, err := s.Read(buf)
					select {
					case <-mine:
						close(l.lost)
						return
					default:
					}
					if _, werr := c.Write(buf[:n]); err != nil || werr != nil {
						return
					}
				}
			}()
		}
	}()
	return l
}

// raw sends bytes to a gateway and returns all that comes back until it closes or falls silent.
func raw(t *testing.T, base, text string) string {
	t.Helper()
	u, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(soon))
	_, _ = io.WriteString(c, text)
	out, _ := io.ReadAll(c)
	return string(out)
}
