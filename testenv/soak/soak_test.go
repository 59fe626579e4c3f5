package soak

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"reveille/testenv"
	"reveille/testenv/calls"
	"reveille/testenv/kit"
)

var minutes = flag.Float64("minutes", 0, "how long to soak")

const (
	killEvery = 30 * time.Second
	clients   = 8
	deadline  = 120 * time.Second // of a request
	patience  = 90 * time.Second  // until all is quiet in the end
	grown     = 100 * time.Second // until memory and keys are as many as they get: Redis keeps an operation's key for 60 s
	secret    = "soak-soak-soak-soak-soak-soak-soak"
)

// causes are the codes that a request may be refused with, each with the kills that explain it.
var causes = map[string][]string{
	"runner_failed": {"runner"}, "host_unreachable": {"runner"}, "engine_crashed": {"engine", "runner"},
	"model_load_error": {"engine", "runner"}, "model_backoff": {"engine", "runner"}, "state_unavailable": {"redis"},
}

func TestSoak(t *testing.T) {
	if *minutes <= 0 {
		t.Skip("runs with: make soak MINUTES=20")
	}
	p := newPool(t)
	ctx, stop := context.WithTimeout(t.Context(), time.Duration(*minutes*float64(time.Minute)))
	defer stop()
	var traffic sync.WaitGroup
	for n := range clients {
		traffic.Go(func() { p.client(ctx, rand.New(rand.NewPCG(1, uint64(n)))) })
	}
	p.torment(ctx)
	ended := time.Now()
	traffic.Wait()
	quiet := time.Now()
	p.settle()
	t.Logf("the last request ended %v after the traffic was stopped, all was quiet %v later; the longest request took %v",
		quiet.Sub(ended).Round(time.Millisecond), time.Since(quiet).Round(time.Millisecond), p.longest.Round(time.Millisecond))
	p.report()
}

// pool is two gateways, one of which is never killed, a runner and a Redis.
type pool struct {
	t      *testing.T
	models calls.Catalogue
	text   string
	redis  *testenv.RedisServer
	rdb    *redis.Client
	http   *http.Client
	state  string // the runner's folder

	steady  *testenv.Program
	victims struct {
		sync.Mutex
		gateway, runner *testenv.Program
	}

	asked    atomic.Int64
	engines  map[testenv.Process]bool // all that were ever seen
	crashed  int                      // engines that died without being stopped, of runners that were killed since
	memory   []sample
	mu       sync.Mutex
	kills    []death
	outcomes map[string]int
	wrong    []string
	longest  time.Duration
}

// sample is what the steady gateway and the runner use, in MiB, and how many keys Redis holds.
type sample struct {
	at              time.Duration
	gateway, runner int
	keys            int64
}

func newPool(t *testing.T) *pool {
	t.Helper()
	testenv.Engines(t)
	files := testenv.Models(t)
	p := &pool{
		t: t, http: calls.Client(t, clients), redis: testenv.StartRedis(t), state: t.TempDir(), outcomes: map[string]int{},
		engines: map[testenv.Process]bool{},
		models: calls.Catalogue{
			"l1": "llm, " + calls.Options("--token-delay 5ms"), "l2": "llm, " + calls.Options("--token-delay 2ms --load-time 300ms"), "l3": "llm, device: npu",
			"real-llm": fmt.Sprintf("llm, recipe: llamacpp, checkpoint: %q, options: {ctx_size: 2048}", files.Tiny),
			"e1":       "embedding", "e2": "embedding, device: npu", "real-embedding": fmt.Sprintf("embedding, recipe: llamacpp, checkpoint: %q", files.MiniLM),
			"r1": "reranking", "a1": "audio, " + calls.Options("--load-time 200ms"), "i1": "image", "t1": "tts",
		},
	}
	p.rdb = redis.NewClient(&redis.Options{Addr: p.redis.Addr})
	t.Cleanup(func() { p.rdb.Close() })
	p.text = p.models.YAML("hosts:\n  h: {driver: exec, devices: [cpu, npu], commands: {wake: [\"true\"], sleep: [\"true\"]}}\n")
	p.victims.runner = p.startRunner()
	p.steady, p.victims.gateway = p.startGateway(), p.startGateway()
	return p
}

func (p *pool) url() string { return "redis://" + p.redis.Addr + "/0?" + testenv.PatientCalls }

func (p *pool) startGateway() *testenv.Program {
	p.t.Helper()
	return testenv.StartGateway(p.t, p.url(), secret, p.text, "--hold=60s", "--commit-after=2s", "--keepalive=2s", "--addr=127.0.0.1:"+strconv.Itoa(testenv.FreePort(p.t)))
}

func (p *pool) startRunner() *testenv.Program {
	p.t.Helper()
	r, _ := testenv.StartRunner(p.t, p.url(), secret, "h", p.state, "--devices=cpu npu", "--max-loaded-models=2")
	return r
}

// client makes requests one after the other until ctx ends; some leave before they are answered.
func (p *pool) client(ctx context.Context, r *rand.Rand) {
	names := slices.Sorted(maps.Keys(p.models))
	for ctx.Err() == nil {
		model := names[r.IntN(len(names))]
		gateway := p.steady
		if r.IntN(2) == 0 {
			p.victims.Lock()
			gateway = p.victims.gateway
			p.victims.Unlock()
		}
		limit, leaves := deadline, r.IntN(20) == 0
		if leaves {
			limit = time.Duration(r.IntN(300)) * time.Millisecond
		}
		p.asked.Add(1)
		one, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
		a := p.infer(one, gateway.URL, model, 1+r.IntN(24), r.IntN(2) == 0)
		cancel()
		p.note(model, a, gateway, leaves)
		time.Sleep(time.Duration(r.IntN(60)) * time.Millisecond)
	}
}

// infer uses a model; tokens and stream are for those that chat.
func (p *pool) infer(ctx context.Context, base, model string, tokens int, stream bool) calls.Answer {
	typ := p.models.Type(model)
	if typ == "llm" {
		return calls.Chat(ctx, p.http, base, model, tokens, stream)
	}
	return calls.Infer(ctx, p.http, base, typ, model)
}

// unparsed is told of the rare random text that llama-server's parser of chats does not take.
const unparsed = "does not match its chat template"

// note counts a request's one outcome.
func (p *pool) note(model string, a calls.Answer, gateway *testenv.Program, leaves bool) {
	began := time.Now().Add(-a.Took)
	outcome, bad := "", false
	code := a.Code()
	if a.Streamed() && !a.OK() && a.Err == nil {
		code = errorCode.FindString(a.LastEvent())
		code = strings.TrimSuffix(strings.TrimPrefix(code, `"code":"`), `"`)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case a.OK():
		outcome = "served"
	case a.Err != nil && leaves:
		outcome = "client disconnected"
	case a.Err != nil && a.Took >= deadline:
		outcome, bad = "no answer in time", true
	case a.Err != nil && p.died(gateway):
		outcome = "its gateway was killed"
	case a.Err != nil && a.Status == http.StatusOK && !a.Streamed() && p.explained(began, "engine", "runner"):
		outcome = "cut in the middle" // a body that was announced and cannot be completed
	case p.explained(began, causes[code]...):
		outcome = "told " + code
	case model == "real-llm" && strings.Contains(string(a.Body), unparsed):
		outcome = "text that its engine cannot parse"
	default:
		outcome, bad = "wrong: "+code, true
	}
	p.outcomes[outcome]++
	p.longest = max(p.longest, a.Took)
	if bad && len(p.wrong) < 20 {
		p.wrong = append(p.wrong, fmt.Sprintf("%s: %v; %s", model, a, p.lastKill()))
	}
}

var errorCode = regexp.MustCompile(`"code":"[a-z_]+"`)

// engines are the engine processes below a runner.
func engines(runner int) []testenv.Process {
	return slices.DeleteFunc(testenv.Descendants(runner), func(q testenv.Process) bool {
		name := filepath.Base(strings.Fields(q.Args + " -")[0])
		return !strings.HasPrefix(name, "standin") && name != "llama-server"
	})
}

// see notes what is there now.
func (p *pool) see(at time.Duration) {
	p.victims.Lock()
	runner := p.victims.runner
	p.victims.Unlock()
	for _, e := range engines(runner.PID()) {
		p.engines[e] = true
	}
	keys, _ := p.rdb.DBSize(p.t.Context()).Result() // 0 while it is away
	p.memory = append(p.memory, sample{at, resident(p.steady.PID()), resident(runner.PID()), keys})
}

// resident is a process's memory in MiB.
func resident(pid int) int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0
	}
	f := strings.Fields(string(text))
	pages, _ := strconv.Atoi(f[1])
	return pages * os.Getpagesize() >> 20
}

// settle checks that nothing is left of the traffic once it has ended.
func (p *pool) settle() {
	t := p.t
	t.Helper()
	gauge := func(base, name string) string {
		text := string(calls.Get(t.Context(), p.http, base+"/metrics").Body)
		for line := range strings.Lines(text) {
			if f := strings.Fields(line); len(f) == 2 && f[0] == name {
				return f[1]
			}
		}
		return "no " + name
	}
	for _, g := range []*testenv.Program{p.steady, p.victims.gateway} {
		kit.Becomes(t, "open requests of a gateway", "0", func() string { return gauge(g.URL, "reveille_gateway_requests_open") })
	}
	key := func(kind string) string { return "rv:{main}:" + kind + ":h" }
	kit.Becomes(t, "tickets in the queue", 0, func() int64 { n, _ := p.rdb.LLen(t.Context(), key("queue")).Result(); return n })
	kit.Becomes(t, "models with requests", nil, func() (busy []string) {
		for _, m := range p.rdb.SMembers(t.Context(), key("models")).Val() {
			if n := p.rdb.HGet(t.Context(), key("model")+":"+m, "in_flight").Val(); n != "0" && n != "" {
				busy = append(busy, m+": "+n)
			}
		}
		return busy
	})
	for model := range p.models { // each is still served
		a := p.infer(t.Context(), p.steady.URL, model, 8, false)
		if !a.OK() {
			t.Errorf("%s in the end: %v", model, a)
		}
	}
	if a := calls.Post(t.Context(), p.http, p.steady.URL+"/v1/unload", "{}"); a.Status != http.StatusOK {
		t.Errorf("unload in the end: %v", a)
	}
	kit.Becomes(t, "engines in the end", 0, func() int { return len(engines(p.victims.runner.PID())) })
	for e := range p.engines {
		kit.Becomes(t, "alive in the end: "+e.String(), false, e.Alive)
	}
}

// report prints what happened and checks the sums and the memory.
func (p *pool) report() {
	t := p.t
	t.Helper()
	total := 0
	for _, what := range slices.Sorted(maps.Keys(p.outcomes)) {
		t.Logf("%8d %s", p.outcomes[what], what)
		total += p.outcomes[what]
	}
	t.Logf("%8d outcomes of %d requests in %v minutes; killed: %v; %d engines seen", total, p.asked.Load(), *minutes, p.killed(), len(p.engines))
	if int64(total) != p.asked.Load() {
		t.Errorf("%d outcomes of %d requests", total, p.asked.Load())
	}
	if stayed := total - p.outcomes["client disconnected"]; p.outcomes["served"] < stayed*9/10 {
		t.Errorf("%d of %d requests were served, want nine of ten", p.outcomes["served"], stayed)
	}
	if n := p.crashed + crashes(p.victims.runner); n != p.killed()["engine"] {
		t.Errorf("%d engines died, %d were killed", n, p.killed()["engine"])
	}
	for _, w := range p.wrong {
		t.Errorf("%s", w)
	}
	for i := 0; i < len(p.memory); i += max(1, len(p.memory)/12) {
		s := p.memory[i]
		t.Logf("after %4.0f s: steady gateway %d MiB, runner %d MiB, %d keys", s.at.Seconds(), s.gateway, s.runner, s.keys)
	}
	// The heap of the first third is as large as it gets; what comes on top later has leaked.
	third := len(p.memory) / 3
	if third == 0 || p.memory[third-1].at < grown {
		t.Logf("memory and keys are not judged: the first third is shorter than %v", grown)
		return
	}
	most := func(list []sample) (gateway int, keys int64) {
		for _, s := range list {
			gateway, keys = max(gateway, s.gateway), max(keys, s.keys)
		}
		return gateway, keys
	}
	early, earlyKeys := most(p.memory[:third])
	late, lateKeys := most(p.memory[2*third:])
	if late > early*3/2+16 {
		t.Errorf("the steady gateway's memory grew from %d to %d MiB", early, late)
	}
	if lateKeys > earlyKeys*2+200 {
		t.Errorf("Redis' keys grew from %d to %d", earlyKeys, lateKeys)
	}
}
