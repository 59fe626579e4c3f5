package sleep

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"reveille/testenv"
	"reveille/testenv/calls"
	"reveille/testenv/kit"
)

const secret = "a secret of at least thirty-two characters"

// gateway is one `gateway serve`.
type gateway struct {
	url string
	cmd *exec.Cmd
	log string // file
}

// pool is several gateways over one Redis, and one machine that their driver turns on. The machine is the test: it hears the
// driver, an exec driver's command by a file, and starts a runner, as a boot would.
type pool struct {
	t        *testing.T
	rdb      *redis.Client
	redis    string
	dir      string
	flags    []string // of gateways
	gateways []*gateway
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
	p.rdb = connect(t, p.redis)
	return p
}

// start starts the gateways over a catalogue of the model m and the host box.
func (p *pool) start(gateways int, box string) {
	p.t.Helper()
	p.write("models.yaml", `
models:
  m: {type: llm, recipe: standin, device: cpu, options: {args: "--load-time 100ms"}}
hosts:
  box: `+box+"\n")
	for i := range gateways {
		p.gateways = append(p.gateways, p.serve(fmt.Sprint("gateway-", i)))
	}
}

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

// spawn starts a program that ends with the test, with its output in a file.
func (p *pool) spawn(name, program string, args ...string) (*exec.Cmd, string) {
	p.t.Helper()
	log := filepath.Join(p.t.ArtifactDir(), name+".log")
	out, err := os.Create(log)
	if err != nil {
		p.t.Fatal(err)
	}
	defer out.Close()
	cmd := exec.Command(testenv.Build(p.t, program), args...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Env = append(os.Environ(), "REVEILLE_REDIS_URL=redis://"+p.redis+"/0?"+testenv.PatientCalls, "REVEILLE_RUNNER_SECRET="+secret)
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		kill := time.AfterFunc(kit.Patience, func() { _ = cmd.Process.Kill() })
		defer kill.Stop()
		_ = cmd.Wait()
		text, _ := os.ReadFile(log)
		if s := string(text); p.t.Failed() || strings.Contains(s, "DATA RACE") || strings.Contains(s, "panic:") {
			p.t.Errorf("the end of %s:\n%s", log, s[max(0, len(s)-8000):])
		}
	})
	return cmd, log
}

var wakes = regexp.MustCompile(`(?m)^time=(\S+) .*msg="waking host" host=box`)

var listens = regexp.MustCompile(`msg="gateway listens" addr=(\S+)`)

func (p *pool) serve(name string) *gateway {
	p.t.Helper()
	g := &gateway{}
	flags := []string{"serve", "--addr=127.0.0.1:0", "--models=" + filepath.Join(p.dir, "models.yaml"), "--shutdown-timeout=1s"}
	g.cmd, g.log = p.spawn(name, "gateway", append(flags, p.flags...)...)
	kit.Eventually(p.t, name+" listens", func() bool {
		text, err := os.ReadFile(g.log)
		if m := listens.FindSubmatch(text); err == nil && m != nil {
			g.url = "http://" + string(m[1])
		}
		if g.url == "" {
			return false
		}
		resp, err := http.Get(g.url + "/ready")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	return g
}

// boot is the machine that came on: its runner starts. engine is the program that plays the stand-in engine; flags are
// further ones of the runner.
func (p *pool) boot(engine string, flags ...string) {
	p.t.Helper()
	engines := filepath.Join(p.t.TempDir(), "engines")
	if err := errors.Join(os.Mkdir(engines, 0o755), os.Symlink(engine, filepath.Join(engines, "standin"))); err != nil {
		p.t.Fatal(err)
	}
	flags = append([]string{"--host=box", "--runner-addr=127.0.0.1:0", "--devices=cpu", "--state-dir=" + p.t.TempDir(), "--engines-dir=" + engines}, flags...)
	p.spawn("runner", "runner", flags...)
}

// holder is the gateway that has the duty to wake the box: the one whose log said last that it wakes it.
func (p *pool) holder() *gateway {
	p.t.Helper()
	if owner := field(p.t, p.rdb, "rv:{main}:wake:box", "owner"); owner == "" {
		p.t.Fatal("nobody has the duty to wake the box")
	}
	var last string
	var holder *gateway
	for _, g := range p.gateways {
		text, _ := os.ReadFile(g.log)
		for _, m := range wakes.FindAllSubmatch(text, -1) {
			if at := string(m[1]); at > last { // times of one zone and length
				last, holder = at, g
			}
		}
	}
	if holder == nil {
		p.t.Fatal("no gateway has told that it wakes the box")
	}
	return holder
}

// ask sends n requests, spread over the gateways. The answers of each gateway come later.
func (p *pool) ask(n int) map[*gateway]chan calls.Answer {
	p.t.Helper()
	c := client(p.t)
	out := map[*gateway]chan calls.Answer{}
	for _, g := range p.gateways {
		out[g] = make(chan calls.Answer, n)
	}
	for i := range n {
		g := p.gateways[i%len(p.gateways)]
		go func() { out[g] <- chat(p.t.Context(), c, g.url, "m", false) }()
	}
	return out
}

// count is how many of a gateway's requests are among n.
func (p *pool) count(g *gateway, n int) int {
	for i, other := range p.gateways {
		if other == g {
			return (n + len(p.gateways) - 1 - i) / len(p.gateways)
		}
	}
	return 0
}
