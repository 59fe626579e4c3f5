package page

import (
	"context"
	"errors"
	"flag"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/shirou/gopsutil/v4/process"

	"reveille/testenv"
	"reveille/testenv/calls"
	"reveille/testenv/kit"
)

var watch = flag.Duration("watch", 5*time.Second, "how long TestViewers measures with and without viewers")

// Ten open pages keep no model in use and no host awake, wake none, and send nothing to Redis.
func TestViewers(t *testing.T) {
	s := testenv.Start(t, testenv.Spec{
		Models: calls.Catalogue{"chat": "llm, memory: 2GiB"}.YAML("hosts:\n  local: {driver: local, devices: [cpu], price: 0.5, memory: {cpu: 8GiB}}\n"),
		Args:   []string{"--idle", "8s", "--host-idle", "3s", "--host-min-up", "1s", "--every", "1s"},
	})
	if a := calls.Chat(t.Context(), http.DefaultClient, s.URL, "chat", 2, false); !a.OK() {
		t.Fatal(a)
	}
	rdb := s.Redis()
	field := func(key, name string) string {
		v, _ := rdb.HGet(t.Context(), key, name).Result()
		return v
	}
	lastUse := func() float64 { return rdb.ZScore(t.Context(), "rv:{main}:lru:local:llm", "chat").Val() }
	used := 0.0
	kit.Eventually(t, "a time of use that stays", func() bool {
		before := lastUse()
		time.Sleep(1200 * time.Millisecond) // longer than a beat
		used = lastUse()
		return used > 0 && used == before
	})

	b := browse(t, s.URL+"/ui")
	ctx, leave := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	var bytes atomic.Int64
	for range 9 {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/ui/stream", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatal(resp, err)
		}
		readers.Go(func() {
			defer resp.Body.Close()
			n, err := io.Copy(io.Discard, resp.Body)
			bytes.Add(n)
			if !errors.Is(err, context.Canceled) {
				t.Error("a page's stream ended:", err)
			}
		})
	}
	b.reads("local ready")
	if now := lastUse(); now != used && now > 0 {
		t.Errorf("the model was last used at %f, with pages open at %f", used, now)
	}
	b.reads("local asleep")

	const host = "rv:{main}:host:local"
	slept := field(host, "generation") // a woken host registers again
	open := measure(t, s)
	if state, now := field(host, "state"), field(host, "generation"); state != "asleep" || now != slept {
		t.Errorf("after %v with open pages the host is %s, in generation %s after %s", *watch, state, now, slept)
	}
	leave()
	readers.Wait()
	b.do(chromedp.Navigate("about:blank"))
	closed := measure(t, s)
	if open.commands > 1.5*closed.commands+20 {
		t.Errorf("%v with ten pages took %.0f commands of Redis, without %.0f", *watch, open.commands, closed.commands)
	}
	t.Logf("in %v: with ten pages %.2f s of CPU and %.0f commands, %d KB to nine of them since they opened; without %.2f s and %.0f",
		*watch, open.cpu, open.commands, bytes.Load()/1024, closed.cpu, closed.commands)
}

type cost struct{ cpu, commands float64 }

// measure reports what the system reads the time that -watch says.
func measure(t *testing.T, s *testenv.System) cost {
	rdb := s.Redis()
	read := func() cost {
		info, err := rdb.Info(t.Context(), "stats").Result()
		if err != nil {
			t.Fatal(err)
		}
		c := cost{cpu: cpu(s.PID())}
		for line := range strings.Lines(info) {
			if n, ok := strings.CutPrefix(line, "total_commands_processed:"); ok {
				c.commands, _ = strconv.ParseFloat(strings.TrimSpace(n), 64)
			}
		}
		for _, p := range s.Processes() {
			c.cpu += cpu(p.PID)
		}
		return c
	}
	kit.Eventually(t, "statistics of Redis", func() bool { return read().commands > 0 })
	from := read()
	time.Sleep(*watch)
	to := read()
	return cost{to.cpu - from.cpu, to.commands - from.commands}
}

// cpu returns the seconds of CPU that a process has taken, 0 for one that has ended.
func cpu(pid int) float64 {
	p, err := process.NewProcess(int32(pid))
	if err != nil {
		return 0
	}
	times, err := p.Times()
	if err != nil {
		return 0
	}
	return times.User + times.System
}
