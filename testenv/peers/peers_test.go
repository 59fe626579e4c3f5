package peers

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"reveille/testenv"
)

var (
	windows   = flag.Int("windows", 0, "how often everything is measured; 0: once, the smallest case of direct and gateway run alone")
	seconds   = flag.Float64("seconds", 0.8, "length of a measurement")
	held      = flag.Int("streams", 5000, "idle streams")
	contested = flag.String("contenders", "", "names, separated by commas; empty: all")
	budget    = flag.Duration("budget", 690*time.Second, "no window begins that would end after this, and no measurement is made again")
	out       = flag.String("out", "", "folder for peers.md and peers.svg; empty: none is written")
)

// Names of the works.
const (
	kb         = "1 KB"
	mb         = "1 MB"
	streams    = "stream of 64 chunks"
	paced      = "stream of 64 chunks, one every 5 ms"
	embeddings = "embeddings of ten words"

	pacedConns = 64
	disturbed  = 0.1 // share of the machine that other programs may take
	attempts   = 2
)

// needed are the contenders without whose figures a run fails.
var needed = []string{direct, one, both}

var all = []work{
	{name: kb, path: chat, body: question(900, `"max_tokens":1,`), conns: []int{1, 16, 128, 1024}},
	{name: "64 KB", path: chat, body: question(64<<10, `"max_tokens":1,`), conns: []int{1, 16, 128}},
	{name: mb, path: chat, body: question(1<<20, `"max_tokens":1,`), conns: []int{1, 16}},
	{name: streams, path: chat, body: question(100, `"stream":true,"max_tokens":64,`), conns: []int{1, 16, 128}, every: true},
	{name: paced, path: chat, body: question(100, `"stream":true,"max_tokens":64,"seed":5,`), conns: []int{pacedConns}, every: true, pause: 5 * time.Millisecond},
}

var embedding = work{
	name: embeddings, path: "/v1/embeddings", conns: []int{1, 8, 64},
	body: []byte(`{"model":"minilm","input":"the quick brown fox jumps over the lazy sleeping dog"}`),
}

// ctx ends with an interrupt; the test then fails, and what it started ends as after any failure.
var ctx context.Context

func TestMain(m *testing.M) {
	var stop context.CancelFunc
	ctx, stop = signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := m.Run()
	stop()
	os.Exit(code)
}

func TestPeers(t *testing.T) {
	r := &report{samples: map[key][]sample{}, idle: map[string]float64{}, after: map[string]float64{}, stream: map[string]float64{}, missing: map[string]string{}, fewest: nan, help: nan}
	short := *windows == 0
	here := contenders
	if names := strings.Split(*contested, ","); short {
		here = pick([]string{direct, one})
	} else if *contested != "" {
		here = pick(names)
	}
	if short {
		r.works = []work{{name: kb, path: chat, body: all[0].body, conns: []int{1}}, {name: streams, path: chat, body: all[3].body, conns: []int{4}}}
		*windows, *seconds, *held = 1, 0.2, 20
	} else {
		r.works = slices.Clone(all)
		r.help = help(t)
	}
	end := time.Now().Add(*budget)
	engine := startEngine(t)
	wanted := len(here)
	here = slices.DeleteFunc(slices.Clone(here), func(c contender) bool { return !rest(t, r, c, engine) })
	r.notes = append(r.notes, fmt.Sprintf("%d of %d contenders were left out.", wanted-len(here), wanted))
	for _, c := range here {
		r.order = append(r.order, c.name)
	}
	t.Run("windows", func(t *testing.T) { measure(t, r, here, engine, end, short) })
	if slices.Contains(r.order, one) && !short && ctx.Err() == nil {
		t.Run("cold", func(t *testing.T) { r.cold = cold(t, *windows) })
	}
	text := r.markdown()
	fmt.Fprintf(os.Stderr, "\n%s", text)
	for _, c := range here {
		for _, w := range r.works {
			if slices.Contains(needed, c.name) && !r.measured(c.name, w) && w.name != embeddings && ctx.Err() == nil {
				t.Errorf("%s: no figure of %s", c.name, w.name)
			}
		}
	}
	if *out != "" && !t.Failed() {
		if err := errors.Join(os.WriteFile(filepath.Join(*out, "peers.md"), text, 0o644), os.WriteFile(filepath.Join(*out, "peers.svg"), r.svg(), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
}

// pick returns the contenders of these names.
func pick(names []string) []contender {
	return slices.DeleteFunc(slices.Clone(contenders), func(c contender) bool { return !slices.Contains(names, c.name) })
}

// say tells how far the run is.
func say(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// check ends the test after an interrupt.
func check(t *testing.T) {
	t.Helper()
	if ctx.Err() != nil {
		t.Fatal("interrupted")
	}
}

// rest measures the memory of a contender that has just started, and with idle streams, and stops it. It reports whether
// the contender can be had; what cannot is noted.
func rest(t *testing.T, r *report, c contender, engine string) (there bool) {
	t.Run("rest/"+c.name, func(t *testing.T) {
		check(t)
		say("%s: memory at rest", c.name)
		run, err := c.run(t, engine)
		if err != nil {
			why, _, _ := strings.Cut(err.Error(), "\n")
			say("%s is left out: %s", c.name, why)
			r.missing[c.name] = why
			r.notes = append(r.notes, fmt.Sprintf("%s is left out: %s.", c.name, why))
			return
		}
		there = true
		settle(time.Second)
		idle := memory(run.pids)
		conns, err := hold(ctx, run, *held)
		settle(time.Second)
		if err == nil {
			r.stream[c.name] = (memory(run.pids) - idle) / float64(*held)
		} else {
			r.notes = append(r.notes, fmt.Sprintf("%s: %d of %d idle streams: %.300v.", c.name, len(conns), *held, err))
		}
		r.idle[c.name] = idle / 1024
		for _, conn := range conns {
			conn.Close()
		}
	})
	return there
}

func settle(d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// measure starts all contenders and measures everything in each window.
func measure(t *testing.T, r *report, here []contender, engine string, end time.Time, short bool) {
	runs := map[string]*running{}
	for _, c := range here {
		check(t)
		run, err := c.run(t, engine)
		if err != nil {
			t.Fatal(err)
		}
		runs[c.name] = run
	}
	settle(time.Second)
	again := 0
	round := func(n int, names []string, works []work, window time.Duration, seen func(key, sample)) {
		for _, w := range works {
			for _, conns := range w.conns {
				for i := range names {
					name := names[(i+n)%len(names)]
					if name == relays && !w.every {
						continue
					}
					check(t)
					k := key{name, w.name, conns}
					var s sample
					var err error
					for try := range attempts {
						// Streams last 64 pauses, so some end in any case.
						if s, err = drive(ctx, runs[name], w, conns, max(window, 128*w.pause)); err != nil || s.others <= disturbed || try+1 == attempts || time.Now().After(end) {
							break
						}
						again++
					}
					check(t)
					if err != nil {
						r.notes = append(r.notes, fmt.Sprintf("%s, %s, %d connections: %.300v.", name, w.name, conns, err))
						if slices.Contains(needed, name) && w.name != embeddings {
							t.Errorf("%v: %v", k, err)
						}
						continue
					}
					s.disturbed = s.others > disturbed
					r.samples[k] = append(r.samples[k], s)
					if seen != nil {
						seen(k, s)
					}
				}
			}
		}
	}
	done := 0
	reserve := time.Duration(float64(*windows) * 6 * 2.5 * *seconds * float64(time.Second)) // for the embeddings
	for n := range *windows {
		began := time.Now()
		round(n, r.order, r.works, time.Duration(*seconds*float64(time.Second)), nil)
		took := time.Since(began)
		say("window %d of %d: %v", n+1, *windows, took.Round(time.Second))
		if done = n + 1; time.Now().Add(took + reserve).After(end) {
			break
		}
	}
	for name, run := range runs {
		r.after[name] = memory(run.pids) / 1024
	}
	if gateway := runs[one]; gateway != nil && !short {
		check(t)
		runs[plain] = &running{addr: startPlain(t), commands: func() float64 { return 0 }}
		for _, name := range []string{plain, one} {
			deadline := time.Now().Add(time.Minute)
			for err := errors.New(""); err != nil; settle(50 * time.Millisecond) {
				check(t)
				if err = probe(runs[name].addr, "minilm"); err != nil && time.Now().After(deadline) {
					t.Fatal(name, ": ", err)
				}
			}
		}
		counts := make([]int, slices.Max(embedding.conns))
		for n := range *windows {
			round(n, []string{plain, one}, []work{embedding}, time.Duration(2**seconds*float64(time.Second)), func(k key, s sample) {
				if k.contender == one && k.conns == len(counts) {
					for i, c := range s.perClient {
						counts[i] += c
					}
				}
			})
			say("embeddings, window %d of %d", n+1, *windows)
		}
		r.works, r.order = append(r.works, embedding), append(r.order, plain)
		r.fewest = float64(slices.Min(counts)) / math.Max(1, float64(slices.Max(counts)))
	}
	sum, bad := 0, 0
	for _, samples := range r.samples {
		for _, s := range samples {
			sum++
			if s.disturbed {
				bad++
			}
		}
	}
	r.notes = append(r.notes, fmt.Sprintf("Windows: %d of %d, %g s for each measurement. Of %d measurements, %d were made again and %d stayed disturbed by other programs.", done, *windows, *seconds, sum, again, bad))
}

// help is the median time of `gateway --help` in ms.
func help(t *testing.T) float64 {
	gateway := testenv.Build(t, "gateway")
	var took []float64
	for range 11 {
		began := time.Now()
		if err := exec.Command(gateway, "--help").Run(); err != nil {
			t.Fatal(err)
		}
		took = append(took, micros(time.Since(began))/1000)
	}
	return median(took)
}
