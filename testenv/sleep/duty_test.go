package sleep

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"reveille/infra/state"
	"reveille/testenv"
	"reveille/testenv/calls"
	"reveille/testenv/kit"
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
	p.called(p.wakes())
	time.Sleep(booting)
	p.boot(testenv.Standin(t))
	p.answered(answers, 1)
	told.expect(t, "model m loading", "model m loaded")
	if n := told.count("model m loading"); n != 1 {
		t.Errorf("the model was loaded %d times", n)
	}
}

// expectAll takes all responses of a gateway, which must be whole.
func (p *pool) expectAll(g *testenv.Program, c <-chan calls.Answer) {
	p.t.Helper()
	for range p.count(g, crowd) {
		select {
		case a := <-c:
			if !a.OK() {
				p.t.Errorf("%s: %v", g.URL, a)
			}
		case <-time.After(2 * kit.Patience):
			p.t.Fatal("a request has no response")
		}
	}
}

// The gateway that has the duty is killed once the driver accepted: the machine comes, nobody calls the driver again, and
// no request is lost but those of the killed gateway.
func TestHolderKilledWhileTheMachineBoots(t *testing.T) {
	t.Parallel()
	p := newPool(t, 3, woken)
	answers := p.ask(crowd)
	p.called(p.wakes())
	p.killHolder(answers)
	time.Sleep(booting)
	p.boot(testenv.Standin(t))
	p.answered(answers, 1)
}

// The gateway that has the duty is killed in the middle of the driver's call, and the call with it: another takes the duty
// over when its lease ends, and its call is the one that completes.
func TestHolderKilledBeforeTheDriverIsDone(t *testing.T) {
	t.Parallel()
	// The first call hangs until it is killed.
	p := newPool(t, 3, "if mkdir $WAKES.first 2>/dev/null; then echo $$ > $WAKES.pid; exec sleep 600; fi\n"+woken)
	answers := p.ask(crowd)
	p.called(p.wakes() + ".pid")
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
	kit.Eventually(t, "another calls the driver", func() bool { return lines(p.wakes()) > 0 })
	p.boot(testenv.Standin(t))
	p.answered(answers, 2)
}

// killHolder kills the gateway that has the duty, and takes the responses of its requests, which are lost.
func (p *pool) killHolder(answers map[*testenv.Program]chan calls.Answer) {
	p.t.Helper()
	time.Sleep(200 * time.Millisecond) // until most requests are held
	g := p.holder()
	g.Kill()
	for range p.count(g, crowd) {
		select {
		case <-answers[g]:
		case <-time.After(kit.Patience):
			p.t.Fatal("a request to a dead gateway goes on")
		}
	}
	delete(answers, g)
}

// called waits until the driver's command has written a line to a file.
func (p *pool) called(file string) {
	p.t.Helper()
	kit.Eventually(p.t, "the driver is called", func() bool { return lines(file) > 0 })
	p.since = p.number("waking_ms")
}

// answered takes the responses of the gateways that live, which must be whole, and checks that of so many calls of the
// driver the last did its work and the others nothing.
func (p *pool) answered(answers map[*testenv.Program]chan calls.Answer, calls int) {
	p.t.Helper()
	for g, c := range answers {
		p.expectAll(g, c)
	}
	spare := 1 + p.takeovers() - calls
	if n := lines(p.calls()); n < calls || n > calls+spare {
		p.t.Errorf("the driver was called %d times, want %d and at most %d more", n, calls, spare)
	}
	if n := lines(p.wakes()); n < 1 || n > 1+spare {
		p.t.Errorf("%d wakes completed, want 1 and at most %d more", n, spare)
	}
}

// takeovers is how often the duty to wake the box may have passed to another gateway: once for each whole lease from the
// beginning of the wake to the runner's registration, by Redis' clock. A holder that gets no processor time for that long
// loses it as one that was killed.
func (p *pool) takeovers() int {
	p.t.Helper()
	up := p.number("generation") / 1000 // as tokens are never behind the clock in microseconds
	if up < p.since || p.since == 0 {
		p.t.Fatalf("the box was to wake at %d and has registered at %d", p.since, up)
	}
	return int((up - p.since) / state.WakeLease.Milliseconds())
}

// number reads a number from the box's record.
func (p *pool) number(name string) int64 {
	p.t.Helper()
	n, err := strconv.ParseInt(p.rdb.HGet(p.t.Context(), "rv:{main}:host:box", name).Val(), 10, 64)
	if err != nil {
		p.t.Fatalf("%s of the box: %v", name, err)
	}
	return n
}
