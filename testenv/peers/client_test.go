package peers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// work is what clients ask for.
type work struct {
	name  string
	path  string
	body  []byte
	conns []int
	every bool          // also of the contenders that are there for streams alone
	pause time.Duration // between two events of a stream
}

const chat = "/v1/chat/completions"

// question is a chat request with so many bytes of text.
func question(bytes int, fields string) []byte {
	return []byte(`{"model":"one",` + fields + `"messages":[{"role":"user","content":"` + strings.Repeat("word ", bytes/5) + `"}]}`)
}

// sample is one measurement.
type sample struct {
	rate       float64 // answers a second
	p50, p99   float64 // of the whole answer, in µs
	first      float64 // median until the first byte of the body, in µs
	cpu        float64 // µs of the contender for each answer
	client     float64 // µs of the load generator for each answer
	late       float64 // share of a paced stream's events that came when the next was due, or later
	others     float64 // share of the machine that other programs took
	commands   float64 // commands a second to Redis
	perClient  []int   // answers of each client
	disturbed  bool
	firstBytes []float64
}

// client keeps one connection busy, or one after the other to a server that closes them: llama-server does after 100
// requests.
type client struct {
	addr           string
	mu             sync.Mutex // of conn
	conn           net.Conn
	last           bool // the server has said that it closes conn
	request, buf   []byte
	pause          time.Duration
	took, first    []float64 // of the window, in µs
	events, behind int
}

// phases of a measurement.
const (
	warming int32 = iota
	measuring
	over
)

// drive keeps connections busy for a window after a tenth of a second and as long as it takes to get the first answers.
func drive(ctx context.Context, r *running, w work, conns int, window time.Duration) (sample, error) {
	var phase atomic.Int32
	clients := make([]*client, conns)
	request := fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", w.path, r.addr, len(w.body), w.body)
	for i := range clients {
		clients[i] = &client{addr: r.addr, request: request, buf: make([]byte, 64<<10), pause: w.pause}
		if err := clients[i].dial(); err != nil {
			return sample{}, err
		}
		defer clients[i].close()
	}
	var warm, all sync.WaitGroup
	errs := make(chan error, conns)
	cut := func() {
		for _, c := range clients {
			c.cut()
		}
	}
	defer context.AfterFunc(ctx, cut)()
	warm.Add(conns)
	for _, c := range clients {
		all.Go(func() {
			err := c.ask(&phase)
			warm.Done()
			for err == nil && phase.Load() != over {
				err = c.ask(&phase)
			}
			if err != nil && phase.Load() != over {
				errs <- err
			}
		})
	}
	warm.Wait()
	var s sample
	var err error
	sleep := func(d time.Duration) {
		select {
		case <-time.After(d):
		case err = <-errs:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	sleep(100 * time.Millisecond)
	if err == nil {
		ours := pids(family())
		own, all, machine, commands, began := cpuTime(r.pids), allTime(ours), machineTime(), r.commands(), time.Now()
		generator := cpuTime([]int{os.Getpid()})
		phase.Store(measuring)
		sleep(window)
		phase.Store(over)
		elapsed := time.Since(began)
		own, generator = cpuTime(r.pids)-own, cpuTime([]int{os.Getpid()})-generator
		all, machine = allTime(ours)-all, machineTime()-machine
		s.commands = (r.commands() - commands) / elapsed.Seconds()
		s.others = max(0, (machine-all).Seconds()) / elapsed.Seconds() / cores
		s.rate = elapsed.Seconds() // until the answers are counted
		s.cpu, s.client = micros(own), micros(generator)
	}
	phase.Store(over)
	cut()
	all.Wait()
	if err != nil {
		return s, err
	}
	var took []float64
	events, behind := 0, 0
	for _, c := range clients {
		took, s.firstBytes = append(took, c.took...), append(s.firstBytes, c.first...)
		s.perClient = append(s.perClient, len(c.took))
		events, behind = events+c.events, behind+c.behind
	}
	if len(took) == 0 {
		return s, errors.New("no answer in a whole window")
	}
	n := float64(len(took))
	s.rate, s.cpu, s.client = n/s.rate, s.cpu/n, s.client/n
	s.p50, s.p99, s.first = quantile(took, 0.5), quantile(took, 0.99), quantile(s.firstBytes, 0.5)
	s.late = float64(behind) / float64(max(events, 1))
	s.firstBytes = nil
	return s, nil
}

// allTime is cpuTime of what this run has started, engines included.
func allTime(ours []int) time.Duration {
	var engines []int
	for _, p := range family() {
		if isEngine(p.Args) {
			engines = append(engines, p.PID)
		}
	}
	return cpuTime(ours) + cpuTime(engines)
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// dial makes the connection, in place of one that has ended.
func (c *client) dial() error {
	conn, err := net.Dial("tcp", c.addr)
	if err != nil {
		return err
	}
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	c.close()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conn, c.last = conn, false
	return nil
}

func (c *client) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != nil {
		c.conn.Close()
	}
}

// cut ends what the client waits for.
func (c *client) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.conn.SetDeadline(time.Unix(1, 0))
}

// ask sends the request once and takes its answer in.
func (c *client) ask(phase *atomic.Int32) error {
	began := time.Now()
	if c.last {
		if err := c.dial(); err != nil {
			return err
		}
	}
	if _, err := c.conn.Write(c.request); err != nil {
		return err
	}
	var first float64
	counts := phase.Load() == measuring
	for n, head, whole := 0, 0, 0; whole == 0 || n < whole; {
		if n == len(c.buf) {
			return errors.New("the answer is longer than 64 KB")
		}
		m, err := c.conn.Read(c.buf[n:])
		if err != nil {
			return fmt.Errorf("after %d bytes of an answer: %w", n, err)
		}
		now := time.Now()
		if c.pause > 0 && counts {
			c.look(c.buf[n:n+m], now)
		}
		n += m
		switch {
		case head == 0:
			head, whole = MessageLength(c.buf[:n])
			c.last = bytes.Contains(c.buf[:head], lastAnswer)
		case whole == 0 && LastChunk(c.buf[:n]):
			whole = n
		}
		if first == 0 && head > 0 && n > head {
			first = micros(now.Sub(began))
			if c.pause > 0 && counts {
				c.first = append(c.first, first)
			}
		}
		if whole > 0 && n >= whole && !good(c.buf[:n], head) {
			return fmt.Errorf("answer: %.300q", c.buf[:n])
		}
	}
	if phase.Load() == measuring {
		c.took = append(c.took, micros(time.Since(began)))
		if c.pause == 0 {
			c.first = append(c.first, first)
		}
	}
	return nil
}

// look finds events by their time of sending and counts those that came when the next one was due, or later.
func (c *client) look(part []byte, now time.Time) {
	mark := []byte(`"id":"c-`)
	for {
		at := bytes.Index(part, mark)
		if at < 0 {
			return
		}
		part = part[at+len(mark):]
		var sent int64
		for _, b := range part[:min(len(part), 20)] {
			if b < '0' || b > '9' {
				break
			}
			sent = 10*sent + int64(b-'0')
		}
		if sent > 1e18 { // not the last events, which have no time
			c.events++
			if now.UnixNano()-sent >= int64(c.pause) {
				c.behind++
			}
		}
	}
}

var (
	ok         = []byte("HTTP/1.1 200 ")
	lastAnswer = []byte("\r\nConnection: close\r\n")
	eventHead  = []byte("text/event-stream")
	doneEvent  = []byte("data: [DONE]\n\n")
)

// good reports whether an answer is one, and whole.
func good(b []byte, head int) bool {
	if !bytes.HasPrefix(b, ok) {
		return false
	}
	return !bytes.Contains(b[:head], eventHead) || bytes.Contains(b[max(head, len(b)-len(doneEvent)-64):], doneEvent)
}

// hold opens streams that send one event and then nothing, and returns their connections once each has had that.
func hold(ctx context.Context, r *running, streams int) (held []net.Conn, err error) {
	body := question(100, `"stream":true,"max_tokens":2,"seed":3600000,`)
	request := fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", chat, r.addr, len(body), body)
	var mu sync.Mutex
	var wg sync.WaitGroup
	const dialers = 50
	for i := range dialers {
		wg.Go(func() {
			for n := i; n < streams && ctx.Err() == nil; n += dialers {
				conn, e := net.Dial("tcp", r.addr)
				if e == nil {
					_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
					_, e = conn.Write(request)
				}
				buf := make([]byte, 2<<10)
				for n := 0; e == nil && !bytes.Contains(buf[:n], []byte(`"content":"word "`)); {
					var m int
					m, e = conn.Read(buf[n:])
					if n += m; n == len(buf) {
						e = fmt.Errorf("answer: %.300q", buf)
					}
				}
				mu.Lock()
				if conn != nil {
					held = append(held, conn)
				}
				if e != nil {
					err = e
				}
				failed := err != nil
				mu.Unlock()
				if failed {
					return
				}
			}
		})
	}
	wg.Wait()
	return held, err
}

// quantile sorts the values and returns the one below which the share lies; NaN of none.
func quantile(values []float64, share float64) float64 {
	if len(values) == 0 {
		return nan
	}
	slices.Sort(values)
	return values[min(int(share*float64(len(values))), len(values)-1)]
}
