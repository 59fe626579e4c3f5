package sleep

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"reveille/testenv"
	"reveille/testenv/calls"
	"reveille/testenv/kit"
	"reveille/testenv/worlds"
)

const secret = "a secret of at least thirty-two characters"

// pool is several gateways over one Redis, and one machine that their driver turns on. The machine is the test: it hears the
// driver, an exec driver's command by a file, and starts a runner, as a boot would.
type pool struct {
	t        *testing.T
	rdb      *redis.Client
	redis    string
	dir      string
	flags    []string // of gateways
	gateways []*testenv.Program
	since    int64 // when its wake began, ms by Redis' clock; set by called
}

// newPool starts gateways whose host box sleeps. script is the text of the wake command, which appends a line to the file
// $WAKES when the machine is to be on.
func newPool(t *testing.T, gateways int, script string, flags ...string) *pool {
	t.Helper()
	p := emptyPool(t, flags...)
	wake := filepath.Join(p.dir, "wake")
	p.write("wake", "#!/bin/sh\nWAKES="+p.wakes()+"\necho called >> "+p.calls()+"\n"+script)
	p.start(gateways, fmt.Sprintf("{driver: exec, devices: [cpu], commands: {wake: [%q], sleep: [\"true\"], state: [test, -s, %q]}}", wake, p.wakes()))
	return p
}

// emptyPool has no gateway yet.
func emptyPool(t *testing.T, flags ...string) *pool {
	t.Helper()
	p := &pool{t: t, redis: testenv.Redis(t), dir: t.TempDir(), flags: flags}
	p.rdb = worlds.RedisAt(t, p.redis)
	return p
}

// start starts the gateways over a catalog of the model m and the host box.
func (p *pool) start(gateways int, box string) {
	p.t.Helper()
	models := "models:\n  m: {type: llm, recipe: standin, device: cpu, options: {args: \"--load-time 100ms\"}}\nhosts:\n  box: " + box + "\n"
	for range gateways {
		g := testenv.StartGateway(p.t, p.url(), secret, models, append([]string{"--shutdown-timeout=1s"}, p.flags...)...)
		kit.Eventually(p.t, "the gateway is ready", func() bool { return calls.Get(p.t.Context(), client(p.t), g.URL+"/ready").Status == http.StatusOK })
		p.gateways = append(p.gateways, g)
	}
}

func (p *pool) url() string { return "redis://" + p.redis + "/0?" + testenv.PatientCalls }

func (p *pool) write(name, text string) {
	p.t.Helper()
	if err := os.WriteFile(filepath.Join(p.dir, name), []byte(text), 0o700); err != nil {
		p.t.Fatal(err)
	}
}

func (p *pool) wakes() string { return filepath.Join(p.dir, "wakes") }
func (p *pool) calls() string { return filepath.Join(p.dir, "calls") }

// lines counts the lines of a file, 0 for none.
func lines(path string) int {
	text, _ := os.ReadFile(path)
	return strings.Count(string(text), "\n")
}

// spawn starts a program that ends with the test.
func (p *pool) spawn(name string, args ...string) *testenv.Program {
	p.t.Helper()
	env := []string{"REVEILLE_REDIS_URL=" + p.url(), "REVEILLE_RUNNER_SECRET=" + secret}
	return testenv.StartProgramEnv(p.t, env, name, testenv.Build(p.t, name), args...)
}

var wakes = regexp.MustCompile(`(?m)^time=(\S+) .*msg="waking host" host=box`)

// boot is the machine that came on: its runner starts. engine is the program that plays the stand-in engine; flags are
// further ones of the runner.
func (p *pool) boot(engine string, flags ...string) *testenv.Program {
	p.t.Helper()
	engines := filepath.Join(p.t.TempDir(), "engines")
	if err := errors.Join(os.Mkdir(engines, 0o755), os.Symlink(engine, filepath.Join(engines, "standin"))); err != nil {
		p.t.Fatal(err)
	}
	flags = append([]string{"--host=box", "--runner-addr=127.0.0.1:0", "--devices=cpu", "--state-dir=" + p.t.TempDir(), "--engines-dir=" + engines}, flags...)
	return p.spawn("runner", flags...)
}

// holder is the gateway that has the duty to wake the box: the one whose log said last that it wakes it.
func (p *pool) holder() *testenv.Program {
	p.t.Helper()
	if owner := p.rdb.HGet(p.t.Context(), "rv:{main}:wake:box", "owner").Val(); owner == "" {
		p.t.Fatal("nobody has the duty to wake the box")
	}
	var last string
	var holder *testenv.Program
	for _, g := range p.gateways {
		for _, m := range wakes.FindAllStringSubmatch(g.Log(), -1) {
			if at := m[1]; at > last { // times of one zone and length
				last, holder = at, g
			}
		}
	}
	if holder == nil {
		p.t.Fatal("no gateway has told that it wakes the box")
	}
	return holder
}

// ask sends n requests, spread over the gateways. The responses of each gateway come later.
func (p *pool) ask(n int) map[*testenv.Program]chan calls.Answer {
	p.t.Helper()
	c := client(p.t)
	out := map[*testenv.Program]chan calls.Answer{}
	for _, g := range p.gateways {
		out[g] = make(chan calls.Answer, n)
	}
	for i := range n {
		g := p.gateways[i%len(p.gateways)]
		go func() { out[g] <- chat(p.t.Context(), c, g.URL, "m", false) }()
	}
	return out
}

// count is how many of a gateway's requests are among n.
func (p *pool) count(g *testenv.Program, n int) int {
	for i, other := range p.gateways {
		if other == g {
			return (n + len(p.gateways) - 1 - i) / len(p.gateways)
		}
	}
	return 0
}
