package sleep

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"reveille/testenv"
	"reveille/testenv/calls"
	"reveille/testenv/kit"
	"reveille/testenv/worlds"
)

// client is of the tests' own: it keeps as many connections as they want, and no connection of an earlier system.
func client(t *testing.T) *http.Client { return calls.Client(t, 1024) }

// chat asks a model, once. It may be called from any goroutine.
func chat(ctx context.Context, c *http.Client, base, model string, stream bool) calls.Answer {
	ctx, cancel := context.WithTimeout(ctx, 2*kit.Patience)
	defer cancel()
	return calls.Chat(ctx, c, base, model, 4, stream)
}

// use asks a model and demands a whole response.
func use(t *testing.T, c *http.Client, base, model string, stream bool) calls.Answer {
	t.Helper()
	a := chat(t.Context(), c, base, model, stream)
	if !a.OK() {
		t.Fatalf("%s: %v", model, a)
	}
	return a
}

// step is one change that the pool told of.
type step struct{ Kind, Host, Model, State, Reason string }

func (e step) String() string {
	if e.Kind == "model" {
		return fmt.Sprintf("model %s %s", e.Model, e.State)
	}
	return fmt.Sprintf("host %s %s", e.Host, e.State)
}

// journal hears the pool's events about hosts and models: what `redis-cli SUBSCRIBE rv:{main}:events` shows.
type journal struct {
	mu      sync.Mutex
	steps   []step
	changed chan struct{} // closed and replaced with every step
}

// listen begins a journal; nothing that happens after it returns is missed.
func listen(t *testing.T, rdb *redis.Client) *journal {
	t.Helper()
	sub := rdb.Subscribe(t.Context(), "rv:{main}:events")
	if _, err := sub.Receive(t.Context()); err != nil {
		t.Fatal(err)
	}
	j := &journal{changed: make(chan struct{})}
	var wg sync.WaitGroup
	wg.Go(func() {
		// Without health checks: a Redis that gets no time for seconds would be subscribed to again, and its events in
		// between be missed.
		for m := range sub.Channel(redis.WithChannelSize(100_000), redis.WithChannelHealthCheckInterval(0)) {
			j.note(m.Payload)
		}
	})
	t.Cleanup(func() { _ = sub.Close(); wg.Wait() })
	return j
}

func (j *journal) note(payload string) {
	var e step
	if json.Unmarshal([]byte(payload), &e) != nil || e.Kind != "host" && e.Kind != "model" {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.steps = append(j.steps, e)
	close(j.changed)
	j.changed = make(chan struct{})
}

// told returns the steps from a place on.
func (j *journal) told(from int) []step {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.steps[from:])
}

// next waits for the first step from a place on that is wanted, and returns the place after it; ok is false when stop is
// closed before.
func (j *journal) next(from int, stop <-chan struct{}, wanted func(step) bool) (found step, after int, ok bool) {
	for {
		j.mu.Lock()
		for ; from < len(j.steps); from++ {
			if e := j.steps[from]; wanted(e) {
				j.mu.Unlock()
				return e, from + 1, true
			}
		}
		changed := j.changed
		j.mu.Unlock()
		select {
		case <-changed:
		case <-stop:
			return step{}, from, false
		}
	}
}

// here is the place after the last step.
func (j *journal) here() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.steps)
}

// expect waits until steps were told in this order, others between them.
func (j *journal) expect(t *testing.T, steps ...string) {
	t.Helper()
	late := make(chan struct{})
	defer time.AfterFunc(kit.Patience, func() { close(late) }).Stop()
	at := 0
	for _, want := range steps {
		_, after, ok := j.next(at, late, func(e step) bool { return e.String() == want })
		if !ok {
			t.Fatalf("Redis never told %q after the steps before it; it told %q", want, j.told(0))
		}
		at = after
	}
}

// count is how often a step was told.
func (j *journal) count(what string) int {
	n := 0
	for _, e := range j.told(0) {
		if e.String() == what {
			n++
		}
	}
	return n
}

// system starts gateway run over a redis-server of its own, with a journal of all that happens.
func system(t *testing.T, models string, args ...string) (*testenv.System, *redis.Client, *journal) {
	t.Helper()
	server := testenv.StartRedis(t)
	rdb := worlds.RedisAt(t, server.Addr)
	j := listen(t, rdb)
	return testenv.Start(t, testenv.Spec{Models: models, Args: args, Redis: server, Patient: true}), rdb, j
}
