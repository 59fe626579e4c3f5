package sleep

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"reveille/testenv"
)

const (
	crowd   = 1000
	booting = 1500 * time.Millisecond // from the driver's word to the start of the runner
)

// woken is a wake command that does its work at once.
const woken = "echo on >> $WAKES\n"

// A thousand requests over three gateways ask for a model of a sleeping host: the driver is called once, one engine
// starts, and every request is answered.
func TestOneWakeForAll(t *testing.T) {
	t.Parallel()
	p := newPool(t, 3, woken)
	told := listen(t, p.rdb)
	answers := p.ask(crowd)
	eventually(t, "the driver is called", func() bool { return lines(p.wakes()) > 0 })
	time.Sleep(booting)
	p.boot(testenv.Standin(t))
	for g, c := range answers {
		p.expectAll(g, c)
	}
	if n := lines(p.calls()); n != 1 {
		t.Errorf("the driver was called %d times", n)
	}
	told.expect(t, "model m loading", "model m loaded")
	if n := told.count("model m loading"); n != 1 {
		t.Errorf("the model was loaded %d times", n)
	}
}

// expectAll takes all answers of a gateway, which must be whole.
func (p *pool) expectAll(g *gateway, c <-chan answer) {
	p.t.Helper()
	for range p.count(g, crowd) {
		select {
		case a := <-c:
			if !a.OK() {
				p.t.Errorf("%s: %v", g.url, a)
			}
		case <-time.After(2 * patience):
			p.t.Fatal("a request has no answer")
		}
	}
}

// The gateway that has the duty is killed once the driver accepted: the machine comes, nobody calls the driver again, and
// no request is lost but those of the killed gateway.
func TestHolderKilledWhileTheMachineBoots(t *testing.T) {
	t.Parallel()
	p := newPool(t, 3, woken)
	answers := p.ask(crowd)
	eventually(t, "the driver is called", func() bool { return lines(p.wakes()) > 0 })
	p.killHolder(answers)
	time.Sleep(booting)
	p.boot(testenv.Standin(t))
	p.survivors(answers, 1)
}

// The gateway that has the duty is killed in the middle of the driver's call, and the call with it: another takes the duty
// over when its lease ends, and its call is the one that completes.
func TestHolderKilledBeforeTheDriverIsDone(t *testing.T) {
	t.Parallel()
	// The first call hangs until it is killed.
	p := newPool(t, 3, "if mkdir $WAKES.first 2>/dev/null; then echo $$ > $WAKES.pid; exec sleep 600; fi\n"+woken)
	answers := p.ask(crowd)
	eventually(t, "the driver is called", func() bool { return lines(p.wakes()+".pid") > 0 })
	p.killHolder(answers)
	text, err := os.ReadFile(p.wakes() + ".pid")
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal("the driver's command: ", err)
	}
	eventually(t, "another calls the driver", func() bool { return lines(p.wakes()) > 0 })
	p.boot(testenv.Standin(t))
	p.survivors(answers, 2)
}

// killHolder kills the gateway that has the duty, and takes the answers of its requests, which are lost.
func (p *pool) killHolder(answers map[*gateway]chan answer) {
	p.t.Helper()
	time.Sleep(200 * time.Millisecond) // until most requests are held
	g := p.holder()
	if err := g.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		p.t.Fatal(err)
	}
	for range p.count(g, crowd) {
		select {
		case <-answers[g]:
		case <-time.After(patience):
			p.t.Fatal("a request to a dead gateway goes on")
		}
	}
	delete(answers, g)
}

// survivors checks the answers of the gateways that live, and that of so many calls of the driver one did its work.
func (p *pool) survivors(answers map[*gateway]chan answer, calls int) {
	p.t.Helper()
	if len(answers) != len(p.gateways)-1 {
		p.t.Fatalf("%d gateways live", len(answers))
	}
	for g, c := range answers {
		p.expectAll(g, c)
	}
	if n := lines(p.calls()); n != calls {
		p.t.Errorf("the driver was called %d times, want %d", n, calls)
	}
	if n := lines(p.wakes()); n != 1 {
		p.t.Errorf("%d wakes completed, want 1", n)
	}
}
