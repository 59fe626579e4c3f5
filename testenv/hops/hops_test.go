package hops_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"reveille/testenv"
	"reveille/testenv/hops"
	"reveille/testenv/kit"
	"reveille/testenv/worlds"
)

var (
	cases   = flag.Int("cases", 300, "cases of TestBothHops")
	from    = flag.Uint64("first", 1, "seed of the first case")
	workers = flag.Int("workers", 24, "cases at one time")
)

// patience bounds every read and write: that it is reached means lost bytes or a lost wake-up.
const patience = time.Minute

// engine is the program that answers.
func engine(t *testing.T) string { return testenv.Build(t, "testenv/hops/engine") }

func recipes(t *testing.T) string {
	return fmt.Sprintf(`
recipes:
  seeded:
    inherit: standin
    command: [%q, [--host, "{host}"], [--port, "{port}"]]
    options: {n_parallel: {kind: int, min: 1, max: 16384}}
`, engine(t))
}

const models = "models:\n  one: {type: llm, recipe: seeded, device: cpu, options: {n_parallel: 1024}}\n"

// direct starts the engine by hand.
func direct(t *testing.T) string {
	port := fmt.Sprint(testenv.FreePort(t))
	cmd := exec.Command(engine(t), "--port", port)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	exited, err := testenv.StartChild(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-exited })
	addr := "127.0.0.1:" + port
	kit.Eventually(t, "the engine listens", func() bool {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	return addr
}

// bothHops starts a gateway and a runner of processes of their own.
func bothHops(t *testing.T) (addr, key string) {
	w := worlds.StartFleet(t, worlds.Fleet{Text: models, Recipes: recipes(t), Hosts: []worlds.Host{{Name: "h"}}, Admin: true})
	return strings.TrimPrefix(w.URL, "http://"), w.Key
}

// oneProcess starts `gateway run` and returns its admin key too.
func oneProcess(t *testing.T) (addr, key string) {
	s := testenv.Start(t, testenv.Spec{Models: models + recipes(t) + "hosts: {local: {driver: local, devices: [cpu]}}\n"})
	return strings.TrimPrefix(s.URL, "http://"), s.AdminKey()
}

// answer is what a client has of one request.
type answer struct {
	status int
	kind   string
	body   []byte
	err    error // nil: the response was whole
	left   bool  // the client has left
}

func (a answer) String() string {
	return fmt.Sprintf("status %d, %q, %d bytes, left %v, %v: …%q", a.status, a.kind, len(a.body), a.left, a.err, a.body[max(0, len(a.body)-150):])
}

// refusal reports whether the gateway says that the engine has no response: 502, or 503 where Redis could not tell it
// in time whether the engine is gone.
func (a answer) refusal() bool {
	return (a.status == http.StatusBadGateway || a.status == http.StatusServiceUnavailable) && a.err == nil && json.Valid(a.body)
}

// client sends cases to one address, on one connection as long as that lasts.
type client struct {
	addr   string
	key    string // for blobs
	direct bool   // addr is the engine's
	every  uint64 // of so many cases one is sent; 0 means all
	conn   net.Conn
	again  int // requests that were sent on another connection
}

func (c *client) drop() {
	if c.conn != nil {
		c.conn.Close()
		c.conn = nil
	}
}

// request is the message of a seed, with a length or in chunks.
func (c *client) request(seed uint64, p hops.Plan) []byte {
	r := hops.Random(seed, 3)
	body := fmt.Appendf(nil, `{"seed":%d,"model":"one","stream":%v,"messages":[{"role":"user","content":"%s"}]}`, seed, p.Stream, p.Text)
	path := p.Path
	if path == hops.BlobPath && !c.direct {
		path = "/upstream/one" + path
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n", path, c.addr)
	if c.key != "" {
		fmt.Fprintf(&b, "Authorization: Bearer %s\r\n", c.key)
	}
	if r.IntN(3) > 0 {
		fmt.Fprintf(&b, "Content-Length: %d\r\n\r\n", len(body))
		b.Write(body)
	} else {
		b.WriteString("Transfer-Encoding: chunked\r\n\r\n")
		hops.Chunks(&b, r, body)
	}
	return b.Bytes()
}

// ask sends the request of a seed and reads its response, on another connection if a used one ends without a byte of
// it.
func (c *client) ask(seed uint64, p hops.Plan) answer {
	used := c.conn != nil
	a := c.try(seed, p)
	if used && a.status == 0 && a.err != nil && !a.left && !errors.Is(a.err, os.ErrDeadlineExceeded) && (p.Whole || !c.direct) {
		c.again++
		a = c.try(seed, p)
	}
	return a
}

// try is ask on one connection. How it sends and reads depends on the seed alone.
func (c *client) try(seed uint64, p hops.Plan) (a answer) {
	r := hops.Random(seed, 4)
	if r.IntN(10) == 0 {
		c.drop()
	}
	slow := r.IntN(8) == 0
	if c.conn == nil {
		var err error
		if c.conn, err = net.DialTimeout("tcp", c.addr, patience); err != nil {
			return answer{err: err}
		}
		if slow {
			_ = c.conn.(*net.TCPConn).SetReadBuffer(4 << 10)
		}
	}
	conn := c.conn
	_ = conn.SetDeadline(time.Now().Add(patience))
	message := c.request(seed, p)
	a.left = p.Hangs || r.IntN(30) == 0
	early := a.left && r.IntN(8) == 0 // it leaves before its request is whole
	if early {
		message = message[:r.IntN(len(message))]
	}
	wait := time.Duration(r.IntN(30)) * time.Millisecond
	wrote := make(chan error, 1)
	go func() {
		wrote <- hops.Pieces(hops.Random(seed, 5), message, func(b []byte) error { _, err := conn.Write(b); return err })
	}()
	if a.left {
		<-wrote
		_ = conn.SetReadDeadline(time.Now().Add(wait))
		wrote <- nil
	}
	br := bufio.NewReader(&reader{conn: conn, r: hops.Random(seed, 6), slow: slow})
	resp, err := http.ReadResponse(br, nil)
	for err == nil && resp.StatusCode == http.StatusContinue {
		resp, err = http.ReadResponse(br, nil)
	}
	if a.err = err; err == nil {
		a.status = resp.StatusCode
		a.kind, _, _ = strings.Cut(resp.Header.Get("Content-Type"), ";") // fasthttp names a charset
		a.body, a.err = io.ReadAll(resp.Body)
		if extra := br.Buffered(); a.err == nil && extra > 0 && !resp.Close {
			a.err = fmt.Errorf("%d bytes follow the answer", extra)
		}
	}
	keeps := a.err == nil && !a.left && !resp.Close && (!c.direct || !p.Closes)
	if !keeps {
		conn.Close()
		c.conn = nil
	}
	if err := <-wrote; err != nil {
		c.drop()
	}
	return a
}

// reader reads a connection in small pieces with pauses, for 60 ms in all, if it is slow.
type reader struct {
	conn   net.Conn
	r      *rand.Rand
	slow   bool
	paused time.Duration
}

func (s *reader) Read(b []byte) (int, error) {
	if s.slow && s.paused < 60*time.Millisecond {
		pause := time.Duration(s.r.IntN(4000)) * time.Microsecond
		s.paused += pause
		time.Sleep(pause)
		b = b[:min(len(b), 1+s.r.IntN(1500))]
	}
	return s.conn.Read(b)
}

// counts of cases by their outcome.
type counts struct{ whole, cut, refused, left, raced, again atomic.Int64 }

const eventStream = "text/event-stream"

// comment is what a gateway sends while an engine is silent for long or loads, as on a machine that is too busy.
var comment = regexp.MustCompile(`(?m)^: [^\n]*\n\n`)

// before returns what came before the event with which the gateway told the client that its stream has broken off, if it did.
func before(p hops.Plan, got answer) (body []byte, told bool) {
	at := bytes.LastIndex(got.body, []byte("data: {\"error\":"))
	if got.kind != eventStream || at < 0 {
		return got.body, false
	}
	body = got.body[:at]
	for !bytes.HasPrefix(p.Body, body) && bytes.HasSuffix(body, []byte("\n")) {
		body = body[:len(body)-1] // what ended the event that was cut
	}
	return body, true
}

// beginsLike reports whether a client that left got the first bytes of the engine's response, and behind them at most
// the beginning of the event that reports that it has broken off.
func beginsLike(p hops.Plan, got answer) bool {
	same := 0
	for same < min(len(p.Body), len(got.body)) && p.Body[same] == got.body[same] {
		same++
	}
	if same == len(got.body) {
		return true
	}
	const told = "data: {\"error\":"
	for at := same; got.kind == eventStream && at >= max(same-len(told)-2, 0); at-- { // the response may go on as that event begins
		rest := strings.TrimLeft(string(got.body[at:]), "\n")
		if strings.HasPrefix(told, rest) || strings.HasPrefix(rest, told) {
			return true
		}
	}
	return false
}

// judge compares what came through hops with what the engine answers.
func judge(p hops.Plan, own, got answer, n *counts) error {
	if got.kind == eventStream {
		got.body = comment.ReplaceAll(got.body, nil)
	}
	switch {
	case errors.Is(own.err, os.ErrDeadlineExceeded) && !own.left:
		return errors.New("the engine itself does not answer")
	case own.err == nil && p.Whole && !bytes.Equal(own.body, p.Body):
		return errors.New("the engine's own answer is wrong")
	case own.left:
		n.left.Add(1)
		if got.status == http.StatusOK && got.err != nil && !beginsLike(p, got) {
			return errors.New("other bytes came before the client left")
		}
		return nil
	case errors.Is(got.err, os.ErrDeadlineExceeded):
		return errors.New("nothing more came in time")
	case p.Whole && got.err == nil && got.status == own.status && got.kind == own.kind && bytes.Equal(got.body, own.body):
		n.whole.Add(1)
		return nil
	case p.Whole && got.refusal():
		n.raced.Add(1) // the engine closed its connection as the request came
		return nil
	case p.Whole:
		return errors.New("not what the engine answers")
	case got.err != nil && got.status == 0:
		return errors.New("no answer where the engine's is cut")
	case got.refusal():
		n.refused.Add(1)
		return nil
	}
	n.cut.Add(1)
	body, told := before(p, got)
	switch all := bytes.TrimRight(body, "\r\n"); {
	case bytes.HasSuffix(all, []byte("\ndata: [DONE]")):
		body = all // nothing but the end of the last event's line was cut off, which the gateway adds
	case got.err == nil && own.err != nil && !told:
		return errors.New("a cut answer looks whole")
	}
	if !bytes.HasPrefix(p.Body, body) {
		return errors.New("other bytes than the engine's")
	}
	return nil
}

// report asks all engines among the processes that this one has started how they fared.
func report(t *testing.T) (sum map[string]int) {
	t.Helper()
	sum = map[string]int{}
	for _, p := range testenv.Descendants(os.Getpid()) {
		args := strings.Fields(p.Args)
		if filepath.Base(args[0]) != "engine" {
			continue
		}
		network, addr := "tcp", "127.0.0.1:"
		for i, a := range args[:len(args)-1] {
			if a == "--port" {
				addr += args[i+1]
			}
		}
		for i, a := range args[:len(args)-1] {
			if a == "--host" && strings.HasSuffix(args[i+1], ".sock") {
				network, addr = "unix", args[i+1]
			}
		}
		http1 := &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial(network, addr) }}}
		resp, err := http1.Get("http://engine/report")
		if err != nil {
			t.Fatal(err)
		}
		one := map[string]int{}
		err = json.NewDecoder(resp.Body).Decode(&one)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		for k, v := range one {
			sum[k] += v
		}
		sum["engines"]++
	}
	return sum
}

// What comes through a gateway and a runner, and through `gateway run`, is what the engine answers, byte for byte, in
// pieces of any size and with stalls on both sides; what the engine breaks off never looks whole; and the engine sees a
// client that has left.
func TestBothHops(t *testing.T) {
	engineAddr := direct(t)
	run, key := oneProcess(t)
	both, admin := bothHops(t)
	ways := map[string]client{"gateway and runner": {addr: both, key: admin}, "gateway run": {addr: run, key: key, every: 4}}
	for way, c := range ways {
		kit.Eventually(t, way+" answers", func() bool {
			req, err := http.NewRequest("POST", "http://"+c.addr+hops.ChatPath, strings.NewReader(`{"model":"one","messages":[{"role":"user","content":"a"}]}`))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Authorization", "Bearer "+c.key)
			resp, err := http.DefaultClient.Do(req)
			if err == nil {
				resp.Body.Close()
			}
			return err == nil && resp.StatusCode == http.StatusOK
		})
	}
	n := map[string]*counts{}
	for way := range ways {
		n[way] = &counts{}
	}
	var next, faults atomic.Int64
	var all sync.WaitGroup
	began := time.Now()
	for range *workers {
		all.Go(func() {
			own := &client{addr: engineAddr, direct: true}
			defer own.drop()
			through := map[string]*client{}
			for way, c := range ways {
				through[way] = &c
				defer func() { n[way].again.Add(int64(through[way].again)); through[way].drop() }()
			}
			for {
				i := next.Add(1) - 1
				if i >= int64(*cases) || faults.Load() > 20 {
					return
				}
				if i%10000 == 9999 {
					t.Logf("%d cases in %v", i+1, time.Since(began).Round(time.Second))
				}
				seed := *from + uint64(i)
				p := hops.PlanOf(seed)
				want := own.ask(seed, p)
				for way, c := range through {
					if c.every > 1 && seed%c.every != 0 {
						continue
					}
					began := time.Now()
					got := c.ask(seed, p)
					took := time.Since(began)
					if err := judge(p, want, got, n[way]); err != nil {
						faults.Add(1)
						t.Errorf("case %d, %s, after %v: %v\nengine: %v\n   got: %v\nwhole %v, closes %v, says %v, resets %v, early %v, slow %v, %d bytes of answer, %d of request",
							seed, way, took, err, want, got, p.Whole, p.Closes, p.Says, p.Resets, p.Early, p.Slow, len(p.Body), len(p.Text))
					}
				}
			}
		})
	}
	all.Wait()
	for _, way := range slices.Sorted(maps.Keys(n)) {
		c := n[way]
		t.Logf("%s: whole %d, cut %d, refused as cut %d, left %d, refused though whole %d, sent on another connection %d", way, c.whole.Load(), c.cut.Load(), c.refused.Load(), c.left.Load(), c.raced.Load(), c.again.Load())
		if most := int64(*cases/200 + 2); c.raced.Load() > most || c.again.Load() > most {
			t.Errorf("%s: %d answers were lost with an engine's connection and %d with the gateway's, want %d at most", way, c.raced.Load(), c.again.Load(), most)
		}
	}
	var sum map[string]int
	kit.Eventually(t, "no request is open at an engine", func() bool { sum = report(t); return sum["open"] == 0 })
	t.Logf("%d cases in %v; engines: %v", *cases, time.Since(began).Round(time.Second), sum)
	if sum["engines"] != 3 || sum["stayed"] > 0 || sum["wrong"] > 0 {
		t.Errorf("engines: %v, want 3, none that a client stayed with, and no wrong request", sum)
	}
}
