package relay

import (
	"bufio"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/valyala/fasthttp"
	"pgregory.net/rapid"
)

const sseHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"

func chunk(s string) string { return string(appendChunk(nil, s)) }

func appendChunk(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	n := len(s)
	return append(append(b, hex[n>>12&15], hex[n>>8&15], hex[n>>4&15], hex[n&15], '\r', '\n'), s+"\r\n"...)
}

// scripted is an upstream that writes each string it receives from script, and closes the connection at the end of the
// channel.
func scripted(script <-chan string) func(net.Conn, *bufio.Reader) {
	return func(nc net.Conn, br *bufio.Reader) {
		if head, _ := readRequest(br); head == "" {
			return
		}
		for s := range script {
			_, _ = io.WriteString(nc, s)
		}
	}
}

// streaming serves GET with a Stream whose upstream follows script.
func streaming(t *testing.T, script <-chan string, cfg StreamConfig) *rawClient {
	c := newUpstream(t, scripted(script)).client(t, Config{})
	addr := frontend(t, ListenerConfig{}, func(ctx *fasthttp.RequestCtx) {
		cfg := cfg
		r, err := c.Start(nil, get("/"))
		if err != nil {
			t.Error(err)
			return
		}
		if cfg.Every == 0 { // answered from the start
			if err := r.Await(time.Time{}); err != nil {
				_ = r.Close()
				ctx.SetStatusCode(fasthttp.StatusBadGateway)
				return
			}
			if cfg.Check != nil && cfg.Check(r) != nil {
				t.Error("the answer is refused")
			}
		}
		cfg.Response = r
		NewStream(cfg).SendTo(ctx)
	})
	client := dialRaw(t, addr)
	client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	return client
}

func TestNoChunkIsHeldBack(t *testing.T) {
	script := make(chan string)
	ended := make(chan error, 1)
	client := streaming(t, script, StreamConfig{OnEnd: func(err error) { ended <- err }})
	script <- sseHead
	client.until("\r\n\r\n") // the head comes before the first event
	for _, ev := range []string{"data: a\n\n", "data: b\n\n", "dat", "a: c\n\n"} {
		script <- chunk(ev)
		client.until(ev + "\r\n")
	}
	script <- "0\r\n\r\n"
	client.until("0\r\n\r\n")
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	close(script)
}

func TestLoadingThenPingThenEvents(t *testing.T) {
	script := make(chan string)
	n := 0
	client := streaming(t, script, StreamConfig{
		Every: 20 * time.Millisecond, Keepalive: 30 * time.Millisecond,
		Loading: func(dst []byte) []byte {
			n++
			return append(append(dst, ": loading "...), string(rune('0'+n))+"\n\n"...)
		},
	})
	client.until(": loading 1\n\n\r\n")
	client.until(": loading 3\n\n\r\n")
	script <- sseHead
	client.until(": ping\n\n\r\n")
	script <- chunk("data: half")
	client.until("data: half\r\n")
	time.Sleep(150 * time.Millisecond) // several times Keepalive, inside an event
	script <- chunk(" an event\n\n")
	if got := client.until("an event\n\n\r\n"); strings.Contains(got, "ping") {
		t.Fatalf("a comment inside an event: %q", got)
	}
	client.until(": ping\n\n\r\n")
	script <- chunk("data: [DONE]\n\n") + "0\r\n\r\n"
	client.until("data: [DONE]\n\n\r\n0\r\n\r\n")
	close(script)
}

func TestBreakBecomesAnErrorEvent(t *testing.T) {
	for name, tc := range map[string]struct {
		sent, want string
		kind       error
	}{
		"between events":  {chunk("data: a\n\n"), "data: a\n\n\r\n11\r\ndata: {\"error\"}\n\n\r\n0\r\n\r\n", ErrBroken},
		"within":          {chunk("data: a"), "data: a\r\n13\r\n\n\ndata: {\"error\"}\n\n\r\n0\r\n\r\n", ErrBroken},
		"at a line's end": {chunk("data: a\n"), "data: a\n\r\n12\r\n\ndata: {\"error\"}\n\n\r\n0\r\n\r\n", ErrBroken},
		"bad framing":     {chunk("data: a\n\n") + "zz\r\n", "data: a\n\n\r\n11\r\ndata: {\"error\"}\n\n\r\n0\r\n\r\n", ErrBadReply},
		"long line":       {chunk("data: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\n\n"), "11\r\ndata: {\"error\"}\n\n\r\n0\r\n\r\n", ErrTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			script := make(chan string, 1)
			ended := make(chan error, 1)
			client := streaming(t, script, StreamConfig{
				MaxLine: 32,
				OnBreak: func(error) []byte { return []byte("data: {\"error\"}\n\n") },
				OnEnd:   func(err error) { ended <- err },
			})
			script <- sseHead + tc.sent
			close(script)
			got := client.until("0\r\n\r\n")
			if !strings.HasSuffix(got, tc.want) {
				t.Fatalf("%q", got)
			}
			if err := <-ended; !errors.Is(err, tc.kind) {
				t.Fatal(err)
			}
			client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n") // the client's connection is still usable
			client.until("HTTP/1.1 502")
		})
	}
}

func TestBreakWithoutHookCutsTheBody(t *testing.T) {
	script := make(chan string, 1)
	client := streaming(t, script, StreamConfig{})
	script <- sseHead + chunk("data: a\n\n")
	close(script)
	got, _ := client.all()
	if !strings.HasSuffix(got, "data: a\n\n\r\n") {
		t.Fatalf("%q", got)
	}
}

// A plain response whose upstream breaks is also cut: fewer bytes than announced, or no last chunk.
func TestBrokenResponseIsCut(t *testing.T) {
	for _, reply := range []string{"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", sseHead + chunk("abc")} {
		c := newUpstream(t, once(reply)).client(t, Config{})
		addr := frontend(t, ListenerConfig{}, func(ctx *fasthttp.RequestCtx) {
			r, err := c.Do(nil, get("/"))
			if err != nil {
				t.Error(err)
				return
			}
			r.SendTo(ctx)
		})
		client := dialRaw(t, addr)
		client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		if got, _ := client.all(); strings.HasSuffix(got, "0\r\n\r\n") || strings.Contains(got, "Content-Length: 3") {
			t.Fatalf("%q", got)
		}
	}
}

func TestHeldStream(t *testing.T) {
	replies := []string{
		"HTTP/1.1 409 Conflict\r\nContent-Length: 0\r\n\r\n",
		sseHead + chunk("data: a\n\n") + "0\r\n\r\n",
	}
	var served atomic.Int32
	c := newUpstream(t, func(nc net.Conn, br *bufio.Reader) {
		for {
			if head, _ := readRequest(br); head == "" {
				return
			}
			_, _ = io.WriteString(nc, replies[served.Add(1)-1])
		}
	}).client(t, Config{})
	waits := 0
	var ended error = errors.New("no end")
	s := NewStream(StreamConfig{
		Ready: func(until time.Time) (bool, error) {
			if waits++; waits == 2 || waits == 4 {
				return true, nil
			}
			time.Sleep(time.Until(until))
			return false, nil
		},
		Open: func() (*Response, error) { return c.Start(nil, get("/")) },
		Check: func(r *Response) error {
			if r.Status() == 409 {
				return ErrAgain
			}
			return nil
		},
		Every: 20 * time.Millisecond,
		OnEnd: func(err error) { ended = err },
	})
	var out strings.Builder
	if _, err := s.WriteTo(&out); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil || ended != nil {
		t.Fatal(err, ended)
	}
	if got := strings.ReplaceAll(out.String(), ": loading\n\n", "L"); strings.Trim(got, "L") != "data: a\n\n" || !strings.HasPrefix(got, "LL") {
		t.Fatalf("%q", got)
	}
	if got := c.Stats().Active; got != 0 || waits != 4 {
		t.Fatal(got, waits)
	}
}

func TestHeldStreamEndsWithReason(t *testing.T) {
	failed := errors.New("load failed")
	for name, cfg := range map[string]StreamConfig{
		"ready": {Ready: func(time.Time) (bool, error) { return false, failed }},
		"open": {Ready: func(time.Time) (bool, error) { return true, nil },
			Open: func() (*Response, error) { return nil, failed }},
	} {
		t.Run(name, func(t *testing.T) {
			var ended error
			cfg.OnBreak = func(err error) []byte { return []byte("data: " + err.Error() + "\n\n") }
			cfg.OnEnd = func(err error) { ended = err }
			s := NewStream(cfg)
			got, err := io.ReadAll(s)
			_ = s.Close()
			if err != nil || string(got) != ": loading\n\ndata: load failed\n\n" || ended != failed {
				t.Fatalf("%q, %v, %v", got, err, ended)
			}
		})
	}
}

// A chunk's size line that came with the head is no data: the head is sent, and pings continue.
func TestHeadWithoutDataIsNotHeldBack(t *testing.T) {
	for name, send := range map[string]func(*Response, *fasthttp.RequestCtx){
		"response": func(r *Response, ctx *fasthttp.RequestCtx) { r.SendTo(ctx) },
		"stream": func(r *Response, ctx *fasthttp.RequestCtx) {
			NewStream(StreamConfig{Response: r, Keepalive: 10 * time.Millisecond}).SendTo(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			script := make(chan string, 2)
			defer close(script)
			c := newUpstream(t, scripted(script)).client(t, Config{})
			addr := frontend(t, ListenerConfig{}, func(ctx *fasthttp.RequestCtx) {
				r, err := c.Do(nil, get("/"))
				if err != nil {
					t.Error(err)
					return
				}
				send(r, ctx)
			})
			client := dialRaw(t, addr)
			client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
			script <- sseHead + "000"
			client.until("\r\n\r\n")
			if name == "stream" {
				client.until(": ping\n\n")
			}
			script <- "9\r\ndata: a\n\n\r\n0\r\n\r\n"
			client.until("data: a\n\n")
			client.until("0\r\n\r\n")
		})
	}
}

// Checking for available bytes must not lose any, or change the answer.
func TestBufferedKeepsTheBody(t *testing.T) {
	const reply = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
	for name, read := range map[string]func(*Response) (string, error){
		"read": func(r *Response) (string, error) { b, err := io.ReadAll(r); return string(b), err },
		"write": func(r *Response) (string, error) {
			var b strings.Builder
			_, err := r.WriteTo(&b)
			return b.String(), err
		},
		"body": func(r *Response) (string, error) { b, err := r.AppendBody(nil, 5); return string(b), err },
		"stream": func(r *Response) (string, error) {
			b, err := io.ReadAll(NewStream(StreamConfig{Response: r}))
			return string(b), err
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newUpstream(t, always(reply)).client(t, Config{})
			for range 2 {
				r, err := c.Do(nil, get("/"))
				if err != nil {
					t.Fatal(err)
				}
				if n := r.Buffered(); n != 5 || r.Size() != 5 {
					t.Fatal(n, r.Size())
				}
				if got, err := read(r); got != "abcde" || err != nil {
					t.Fatal(got, err)
				}
				if n := r.Buffered(); n != 0 {
					t.Fatal(n)
				}
				_ = r.Close()
			}
			if got := c.Stats(); got != (Stats{Idle: 1}) {
				t.Fatalf("%+v", got)
			}
		})
	}
}

// However the bytes are cut, the boundary is that of the whole.
func TestEventsOfAnyCut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching("([ab]|\n|\r\n){0,30}").Draw(t, "text")
		var e events
		longest := 0
		for rest := []byte(text); len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "cut")
			longest = max(longest, e.take(rest[:n]))
			rest = rest[n:]
		}
		want := text == "" || strings.HasSuffix(text, "\n\n") || strings.HasSuffix(text, "\r\n\r\n")
		if e.boundary() != want {
			t.Fatalf("%q: boundary %v", text, e.boundary())
		}
		for _, line := range strings.Split(text, "\n") {
			longest -= max(0, len(line)-longest) // otherwise a longer line would make it negative
		}
		if longest < 0 {
			t.Fatalf("%q: a line was missed", text)
		}
		if fixed := text + string(e.appendBoundary(nil)); fixed != "" && !strings.HasSuffix(fixed, "\n\n") && !strings.HasSuffix(fixed, "\r\n\r\n") {
			t.Fatalf("%q does not end an event", fixed)
		}
	})
}
