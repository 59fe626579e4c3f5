package relay

import (
	"bufio"
	"errors"
	"io"
	"net"
	"strings"
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

// relaying serves GET with the response of an upstream that follows script.
func relaying(t *testing.T, script <-chan string, onEnd func(error)) *rawClient {
	c := newUpstream(t, scripted(script)).client(t, Config{})
	addr := frontend(t, ListenerConfig{}, func(ctx *fasthttp.RequestCtx) {
		r, err := c.Do(nil, get("/"))
		if err != nil {
			t.Error(err)
			return
		}
		r.OnEnd = onEnd
		r.SendTo(ctx)
	})
	client := dialRaw(t, addr)
	client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	return client
}

func TestNoChunkIsHeldBack(t *testing.T) {
	script := make(chan string)
	ended := make(chan error, 1)
	client := relaying(t, script, func(err error) { ended <- err })
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

// A response whose upstream breaks is also cut: fewer bytes than announced, no last chunk, or a chat without its last
// event.
func TestBrokenResponseIsCut(t *testing.T) {
	const open = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
	const event, ended = "data: {\"choices\":[{\"delta\":{}}]}\n\n", "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"
	for reply, whole := range map[string]bool{
		"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc": false, sseHead + chunk("abc"): false,
		open + event: false, open + event + "data: {\"cho": false, open + "data: {\"type\":\"content_block_delta\"}\n\n": false,
		sseHead + chunk(event) + "0\r\n\r\n": false, sseHead + chunk(event+"data: {\"choices\":[{\"delta\":{},\"finish_rea") + "0\r\n\r\n": false,
		sseHead + chunk("data: {\"cho") + "0\r\n\r\n": false, sseHead + chunk(event+ended) + "0\r\n\r\n": true,
		sseHead + chunk(event+"data: {\"error\":{}}\n\n") + "0\r\n\r\n":                true,
		sseHead + chunk(event+"data: {\"choices\":[],\"usage\":{}}\n\n") + "0\r\n\r\n": true,
		open + event + ended: true, open + event + "data: [DONE]\n\n": true, open + "data: abc\n\n": true,
	} {
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
		client.send("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n") // else a whole response leaves it open
		if got, _ := client.all(); strings.HasSuffix(got, "0\r\n\r\n") != whole || strings.Contains(got, "Content-Length: 3") {
			t.Errorf("%q became %q", reply, got)
		}
	}
}

// A chunk's size line that came with the head is no data: the head is sent.
func TestHeadWithoutDataIsNotHeldBack(t *testing.T) {
	script := make(chan string, 2)
	defer close(script)
	client := relaying(t, script, nil)
	script <- sseHead + "000"
	client.until("\r\n\r\n")
	script <- "9\r\ndata: a\n\n\r\n0\r\n\r\n"
	client.until("data: a\n\n")
	client.until("0\r\n\r\n")
}

// Next waits as long as it may, and goes on.
func TestNextIsResumable(t *testing.T) {
	script := make(chan string)
	c := newUpstream(t, scripted(script)).client(t, Config{})
	r, err := c.Start(nil, get("/"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	for _, more := range []string{sseHead, chunk("data: a\n\n"), "0\r\n\r\n"} {
		if b, err := r.Next(time.Now().Add(10 * time.Millisecond)); err != ErrPending {
			t.Fatalf("%q, %v", b, err)
		}
		script <- more
		if more == sseHead {
			continue
		}
		b, err := r.Next(time.Time{})
		if want := strings.TrimPrefix(more, "0009\r\n"); len(b) > 0 && string(b) != strings.TrimSuffix(want, "\r\n") || len(b) == 0 && err != io.EOF {
			t.Fatalf("%q, %v", b, err)
		}
	}
	close(script)
}

// Checking for available bytes must not lose any, or change the response.
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
		"next": func(r *Response) (text string, err error) {
			for err == nil {
				var b []byte
				b, err = r.Next(time.Time{})
				text += string(b)
			}
			if err == io.EOF {
				err = nil
			}
			return text, err
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
func TestEventsSplitAnywhere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching("([ab]|\n|\r\n){0,30}").Draw(t, "text")
		var e Events
		for rest := []byte(text); len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "cut")
			if err := e.Feed(rest[:n]); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		want := text == "" || strings.HasSuffix(text, "\n\n") || strings.HasSuffix(text, "\r\n\r\n")
		if e.Boundary() != want {
			t.Fatalf("%q: boundary %v", text, e.Boundary())
		}
		if fixed := text + string(e.AppendBoundary(nil)); fixed != "" && !strings.HasSuffix(fixed, "\n\n") && !strings.HasSuffix(fixed, "\r\n\r\n") {
			t.Fatalf("%q does not end an event", fixed)
		}
	})
}

// A line is too long whatever pieces it comes in, and one that ends in time is not.
func TestLongLines(t *testing.T) {
	for name, tc := range map[string]struct {
		pieces []string
		bad    bool
	}{
		"at once":   {[]string{strings.Repeat("x", MaxLine+1)}, true},
		"in pieces": {[]string{"\n" + strings.Repeat("x", MaxLine), "x"}, true},
		"two lines": {[]string{strings.Repeat("x", MaxLine), "\nx", strings.Repeat("x", MaxLine-1)}, false},
	} {
		var e Events
		var err error
		for _, p := range tc.pieces {
			err = errors.Join(err, e.Feed([]byte(p)))
		}
		if errors.Is(err, ErrTooLarge) != tc.bad {
			t.Errorf("%s: %v", name, err)
		}
	}
}
