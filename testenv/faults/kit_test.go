package faults

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"reveille/infra/rpc"
	"reveille/runner/host"
	"reveille/testenv/calls"
	"reveille/testenv/worlds"
)

const (
	soon = 5 * time.Second // longest for a response that must not wait for anything, on a machine with too much to do
)

// world is a system and the eyes of a test on it.
type world struct{ *worlds.World }

// start runs `gateway run` over a real redis-server, with a host named local.
func start(t *testing.T, models calls.Catalogue, args ...string) *world {
	t.Helper()
	return &world{worlds.Start(t, models, args...)}
}

// front starts a runner and n gateways of their own processes.
func front(t *testing.T, n int, models calls.Catalogue, args ...string) *world {
	t.Helper()
	return &world{worlds.StartFleet(t, worlds.Fleet{Models: models, Hosts: []worlds.Host{{Name: "h"}}, Gateways: n, Args: args})}
}

// move has the host registered at another address.
func (w *world) move(addr string) {
	w.T.Helper()
	if err := w.Rdb.HSet(w.T.Context(), "rv:{main}:host:"+w.Host, "addr", addr).Err(); err != nil {
		w.T.Fatal(err)
	}
	if err := w.Rdb.Publish(w.T.Context(), "rv:{main}:events", `{"kind":"host","host":"`+w.Host+`","state":"ready"}`).Err(); err != nil {
		w.T.Fatal(err)
	}
}

// queued counts the tickets in the host's queue.
func (w *world) queued() int { return len(w.Queued()) }

// view is what the runner of a world by front says of its host.
func (w *world) view() (v host.View) {
	w.T.Helper()
	req, err := http.NewRequestWithContext(w.T.Context(), http.MethodGet, "http://"+w.HostField(w.Host, "addr")+rpc.PathHost, nil)
	if err != nil {
		w.T.Fatal(err)
	}
	req.Header.Set(rpc.HeaderAuth, rpc.NewSigner([]byte(worlds.Secret)).Sign(rpc.Call{Method: req.Method, Path: rpc.PathHost, Host: w.Host}))
	a := calls.Do(w.Client, req, nil)
	if err := json.Unmarshal(a.Body, &v); err != nil {
		w.T.Fatalf("%v: %v", err, a)
	}
	return v
}

// load loads a model.
func (w *world) load(model string) {
	w.T.Helper()
	if a := w.Post("/v1/load", `{"model_name":"`+model+`"}`); !a.OK() {
		w.T.Fatalf("loading %s: %v", model, a)
	}
}

// inFlight is how many requests the runner of a world by front has for a model.
func (w *world) inFlight(model string) int {
	w.T.Helper()
	for _, m := range w.view().Models {
		if m.ID == model {
			return m.InFlight
		}
	}
	return 0
}

// calm is a row's response: what a client is told, whatever was wrong.
type calm struct {
	status int
	typ    string
	code   string
	retry  int  // Retry-After before it is spread by 20 %, 0 for none
	final  bool // x-should-retry: false
}

// must checks a response against a row.
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
