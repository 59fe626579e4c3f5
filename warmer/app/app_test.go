package app_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"reveille/infra/catalog"
	"reveille/infra/config"
	"reveille/infra/power"
	"reveille/infra/state"
	"reveille/testenv"
	"reveille/testenv/kit"
	"reveille/warmer/app"
)

const secret = "0123456789abcdef"

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// machine is a driver for one host that is always on until it is put to sleep.
type machine struct {
	mu    sync.Mutex
	slept int
}

func (m *machine) Wake(context.Context, catalog.Host) error { return nil }

func (m *machine) Sleep(context.Context, catalog.Host) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.slept++
	return nil
}

func (m *machine) State(context.Context, catalog.Host) (power.Power, error) {
	return power.Unknown, nil
}

// TestTickerPutsAHostToSleep runs a warmer as gateway run does, with a runner that confirms.
func TestTickerPutsAHostToSleep(t *testing.T) {
	addr := testenv.Redis(t)
	store, err := state.Open(state.Options{URL: "redis://" + addr, Secret: []byte(secret), Timeout: 10 * time.Second})
	must(t, err)
	defer store.Close()
	c, _, err := catalog.Parse("models.yaml", []byte("models: {m: {type: llm, recipe: standin, device: cpu}}\nhosts: {box: {driver: local, devices: [cpu]}}\n"))
	must(t, err)
	raw, err := c.Marshal()
	must(t, err)
	_, err = store.PutCatalog(t.Context(), c.Version, raw, map[string]string{"box": "local"})
	must(t, err)
	generation, _, err := store.Register(t.Context(), state.HostInfo{Name: "box", Boot: "b", Addr: "127.0.0.1:1", Devices: "cpu"})
	must(t, err)

	m, out := &machine{}, &kit.Buffer{}
	w, err := app.New(app.Settings{
		RedisFinder: config.RedisFinder{RedisURL: "redis://" + addr, Pool: "main"}, RunnerSecret: secret,
		Sweep: app.Sweep{Idle: time.Minute, HostIdle: 10 * time.Millisecond, Every: 20 * time.Millisecond},
	}, app.Deps{Drivers: map[catalog.Driver]power.Driver{catalog.DriverLocal: m}, Out: out, Log: slog.New(slog.DiscardHandler)})
	must(t, err)
	defer w.Close()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		s, err := store.Snapshot(t.Context())
		must(t, err)
		h := s.Hosts["box"]
		if h.State == "draining" {
			_ = store.ConfirmSleep(t.Context(), "box", generation, h.Fields["sleep_token"], false) // refused when another turn came first
		}
		if h.State == "asleep" && h.Fields["sleep_token"] == "" {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the host is still ", h.State)
		}
	}
	for end := time.Now().Add(30 * time.Second); !strings.Contains(out.String(), "sleep   box"); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no report: ", out.String())
		}
	}
	cancel()
	must(t, <-ended)
	if m.slept != 1 {
		t.Error("the machine was turned off", m.slept, "times")
	}
}

func TestHandleReadsAnyScheduleEvent(t *testing.T) {
	w, err := app.New(app.Settings{RedisFinder: config.RedisFinder{RedisURL: "redis://" + testenv.MiniRedis(t).Addr(), Pool: "main"}, RunnerSecret: secret}, app.Deps{Log: slog.New(slog.DiscardHandler)})
	must(t, err)
	defer w.Close()
	for event, bad := range map[string]bool{``: false, `{}`: false, `{"source":"aws.scheduler","detail-type":"x"}`: false, `[1`: true} {
		if _, err := w.Handle(t.Context(), json.RawMessage(event)); (err != nil) != bad {
			t.Errorf("%s: %v", event, err)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
