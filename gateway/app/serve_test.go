package app

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"go.uber.org/goleak"

	"reveille/infra/catalog"
	"reveille/infra/config"
	"reveille/infra/policy"
	"reveille/infra/state"
	"reveille/testenv/kit"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"))
}

const testSecret = "a secret of sixteen or more"

const oneModel = "models: {%s: {type: llm, recipe: standin, device: cpu}}\nhosts: {here: {driver: local, devices: [cpu]}}\n"

// gateway is one running Serve.
type gateway struct {
	t     *testing.T
	url   string
	file  string
	stop  context.CancelFunc
	ended chan error
}

func start(t *testing.T, redis *miniredis.Miniredis, model string) *gateway {
	t.Helper()
	g := &gateway{t: t, file: filepath.Join(t.TempDir(), "models.yaml"), ended: make(chan error, 1)}
	g.write(model)
	s := ServeSettings{Redis: config.Redis{RedisURL: "redis://" + redis.Addr(), Pool: "main"}, GatewayFlags: frontDefaults()}
	s.Models, s.RunnerSecret = g.file, testSecret
	ctx, stop := context.WithCancel(context.Background())
	g.stop = stop
	addr := make(chan string, 1)
	go func() {
		g.ended <- Serve(ctx, s, nil, slog.New(slog.DiscardHandler), func(a string) { addr <- a })
	}()
	select {
	case a := <-addr:
		g.url = "http://" + a
	case err := <-g.ended:
		t.Fatal(err)
	}
	t.Cleanup(g.end)
	return g
}

func (g *gateway) end() {
	if g.stop == nil {
		return
	}
	g.stop()
	g.stop = nil
	select {
	case err := <-g.ended:
		if err != nil {
			g.t.Error("Serve:", err)
		}
	case <-time.After(20 * time.Second):
		g.t.Error("Serve does not end")
	}
}

func (g *gateway) write(model string) {
	g.t.Helper()
	if err := os.WriteFile(g.file, fmt.Appendf(nil, oneModel, model), 0o600); err != nil {
		g.t.Fatal(err)
	}
}

func (g *gateway) get(path string) (int, string) {
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	resp, err := c.Get(g.url + path)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text)
}

func openStore(t *testing.T, redis *miniredis.Miniredis) *state.Store {
	t.Helper()
	st, err := state.Open(state.Options{URL: "redis://" + redis.Addr(), Pool: "main", Secret: []byte(testSecret), Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	return st
}

// TestCatalogue follows the file, comes back after the pool's data was lost, and holds what was registered.
func TestCatalogue(t *testing.T) {
	redis := miniredis.RunT(t)
	st := openStore(t, redis)
	g := start(t, redis, "alpha")
	inPool := func(name string) func() bool {
		return func() bool {
			_, text, err := st.Catalog(t.Context())
			return err == nil && strings.Contains(string(text), `"id":"`+name+`"`)
		}
	}
	kit.Eventually(t, "the catalog is published", inPool("alpha"))
	redis.FlushAll()
	kit.Eventually(t, "it comes back after a flush", inPool("alpha"))
	g.write("beta")
	kit.Eventually(t, "the file's change is published", inPool("beta"))
	if status, text := g.get("/v1/models/beta"); status != 200 {
		t.Errorf("%d %s", status, text)
	}
	if status, _ := g.get("/v1/models/alpha"); status != 404 {
		t.Errorf("the model that left: %d", status)
	}
	entry, err := json.Marshal(catalog.Model{ID: "user.mine", Type: policy.LLM, Recipe: "standin", Devices: policy.CPU})
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Set(t.Context(), state.Registered, "user.mine", string(entry)); err != nil {
		t.Fatal(err)
	}
	kit.Eventually(t, "a registered model is in force", inPool("user.mine"))
}

// TestTwoFiles: gateways with different files do not overwrite each other's catalog for ever.
func TestTwoFiles(t *testing.T) {
	redis := miniredis.RunT(t)
	st := openStore(t, redis)
	start(t, redis, "older")
	kit.Eventually(t, "one is published", func() bool { v, _, err := st.Catalog(t.Context()); return err == nil && v != "" })
	start(t, redis, "newer")
	kit.Eventually(t, "the newer is published", func() bool {
		_, text, err := st.Catalog(t.Context())
		return err == nil && strings.Contains(string(text), "newer")
	})
	for range 10 {
		time.Sleep(3 * repairEvery / 10)
		if _, text, err := st.Catalog(t.Context()); err != nil || !strings.Contains(string(text), "newer") {
			t.Fatalf("overwritten: %s %v", text, err)
		}
	}
}

// TestEnd: a request that waits is told so, and nothing is left behind.
func TestEnd(t *testing.T) {
	g := start(t, miniredis.RunT(t), "one")
	kit.Eventually(t, "it is ready", func() bool { status, _ := g.get("/ready"); return status == 200 })
	answer := make(chan int, 1)
	go func() {
		c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		resp, err := c.Post(g.url+"/v1/chat/completions", "", strings.NewReader(`{"model":"one","messages":[{}]}`))
		if err != nil {
			answer <- 0
			return
		}
		defer resp.Body.Close()
		answer <- resp.StatusCode
	}()
	kit.Eventually(t, "it waits", func() bool { _, text := g.get("/v1/health"); return strings.Contains(text, `"queue_length":1`) })
	g.end()
	if status := <-answer; status != 503 {
		t.Errorf("the waiting request got %d", status)
	}
}

func TestServeRefusesBadSettings(t *testing.T) {
	s := ServeSettings{GatewayFlags: frontDefaults()}
	s.Models, s.Hold, s.FairAfter = "no-such-file", 0, -1
	err := Serve(t.Context(), s, nil, slog.New(slog.DiscardHandler), nil)
	for _, want := range []string{"--hold", "--runner-secret", "--fair-after", "no-such-file"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %s in %v", want, err)
		}
	}
}
