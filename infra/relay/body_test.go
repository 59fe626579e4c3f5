package relay

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"reveille/testenv/kit"
)

// bodyServer responds with the length and sum of the body that it read, refuses requests with the header Refuse by
// their heads, and reports the errors of other bodies.
func bodyServer(t *testing.T, cfg BodyReaderConfig) (*BodyReader, string) {
	t.Helper()
	in := NewBodyReader(cfg)
	s := &fasthttp.Server{
		Logger: quiet{}, NoDefaultServerHeader: true, IdleTimeout: time.Minute, MaxIdleWorkerDuration: 100 * time.Millisecond,
		HeaderReceived: func(h *fasthttp.RequestHeader) (c fasthttp.RequestConfig) {
			if len(h.Peek("Refuse")) > 0 {
				SkipBody(h)
			}
			return c
		},
		Handler: func(ctx *fasthttp.RequestCtx) {
			defer in.Finish(ctx)
			if len(ctx.Request.Header.Peek("Refuse")) > 0 {
				ctx.SetStatusCode(fasthttp.StatusForbidden)
				return
			}
			b, err := in.Read(ctx, 0)
			defer b.Drop()
			for kind, status := range map[error]int{ErrBodyTooLarge: 413, ErrBuffersFull: 503, ErrBodySlow: 408, ErrBodyBroken: 400} {
				if errors.Is(err, kind) {
					ctx.SetStatusCode(status)
				}
			}
			sum := 0
			for _, c := range ctx.PostBody() {
				sum += int(c)
			}
			fmt.Fprintf(ctx, "%d bytes, sum %d", len(ctx.PostBody()), sum)
		},
	}
	in.Configure(s)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(NewListener(ln, ListenerConfig{}))
	}()
	t.Cleanup(func() {
		if err := s.Shutdown(); err != nil {
			t.Error(err)
		}
		<-done
		if n := in.Buffered(); n != 0 {
			t.Errorf("%d bytes are still held", n)
		}
	})
	return in, ln.Addr().String()
}

func lengthOf(body string) string {
	return fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body)
}

func chunked(body string, chunk int) string {
	var b strings.Builder
	b.WriteString("Transfer-Encoding: chunked\r\n\r\n")
	for ; len(body) > 0; body = body[min(chunk, len(body)):] {
		piece := body[:min(chunk, len(body))]
		fmt.Fprintf(&b, "%x\r\n%s\r\n", len(piece), piece)
	}
	return b.String() + "0\r\n\r\n"
}

// TestBodyReaderSizes sends bodies of many sizes on one connection, some pipelined, and counts their bytes.
func TestBodyReaderSizes(t *testing.T) {
	_, addr := bodyServer(t, BodyReaderConfig{MaxBody: 6 << 20, MaxBuffered: 32 << 20})
	c := dialRaw(t, addr)
	for _, n := range []int{0, 1, 2, 2047, 2048, 2049, 16 << 10, 64<<10 - 1, 64 << 10, 64<<10 + 1, 1 << 20, 2<<20 + 1, 4 << 20, 6 << 20} {
		body := strings.Repeat("a", n)
		want := fmt.Sprintf("%d bytes, sum %d", n, n*'a')
		go func() {
			_, _ = c.Write([]byte("POST / HTTP/1.1\r\nHost: x\r\n" + lengthOf(body) + "POST / HTTP/1.1\r\nHost: x\r\n" + chunked(body, 100_000)))
		}()
		c.until(want)
		c.until(want)
	}
}

func TestBodyReaderRefusals(t *testing.T) {
	for name, tc := range map[string]struct {
		send  string
		shut  bool // the client then closes its half
		want  string
		stays bool // the connection serves another request
	}{
		"too large":               {"Content-Length: 2000001\r\n\r\nx", false, "413", false},
		"too large, half a body":  {"Content-Length: 2000001\r\n\r\n" + strings.Repeat("x", 1000), false, "413", false},
		"too many chunks":         {chunked(strings.Repeat("x", 2_000_001), 50_000), false, "413", false},
		"more than may be held":   {"Content-Length: 1900000\r\n\r\nx", false, "503", false},
		"shorter than its length": {"Content-Length: 10\r\n\r\n12345", true, "400", false},
		"broken chunk":            {"Transfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n0\r\n\r\n", false, "400", false},
		"slow":                    {"Content-Length: 100\r\n\r\nx", false, "408", false},
		"slow chunk":              {"Transfer-Encoding: chunked\r\n\r\n5", false, "408", false},
		"head, small body":        {"Refuse: 1\r\n" + lengthOf(strings.Repeat("x", 60_000)), false, "403", true},
		"head, small chunks":      {"Refuse: 1\r\n" + chunked(strings.Repeat("x", 3000), 1000), false, "403", true},
		"head, large body":        {"Refuse: 1\r\n" + lengthOf(strings.Repeat("x", 1<<20)), false, "403", false},
		"head, no byte of body":   {"Refuse: 1\r\nContent-Length: 100000\r\n\r\n", false, "403", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in, addr := bodyServer(t, BodyReaderConfig{MaxBody: 2_000_000, MaxBuffered: 3_000_000, ReadTimeout: 300 * time.Millisecond})
			if name == "more than may be held" {
				in.buffered.Add(2_000_000)
				defer in.buffered.Add(-2_000_000)
			}
			c := dialRaw(t, addr)
			go func() {
				_, _ = c.Write([]byte("POST / HTTP/1.1\r\nHost: x\r\n" + tc.send))
				if tc.shut {
					_ = c.Conn.(*net.TCPConn).CloseWrite()
				}
			}()
			c.until("HTTP/1.1 " + tc.want)
			if !tc.stays {
				if rest, _ := c.all(); !strings.Contains(rest, "Connection: close") || strings.Contains(rest, "HTTP/1.1") {
					t.Fatalf("%q", rest)
				}
				return
			}
			c.until("\r\n\r\n")
			c.send("POST / HTTP/1.1\r\nHost: x\r\n" + lengthOf("again"))
			c.until("5 bytes")
		})
	}
}

// TestBodyReaderMemory checks that the memory used follows the bytes that arrived.
func TestBodyReaderMemory(t *testing.T) {
	in, addr := bodyServer(t, BodyReaderConfig{MaxBody: 64 << 20})
	c := dialRaw(t, addr)
	c.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 60000000\r\n\r\n")
	sent := 0
	for _, n := range []int{1, 1000, 63_000, 5000, 500_000, 3_000_000} {
		c.send(strings.Repeat("x", n))
		sent += n
		time.Sleep(20 * time.Millisecond) // memory can only grow later
		if held := in.Buffered(); held > int64(max(firstPiece, fullSizeFactor*sent)) {
			t.Fatalf("%d bytes are held for %d that arrived", held, sent)
		}
	}
	_ = c.Close()
	kit.Eventually(t, "the body is dropped", func() bool { return in.Buffered() == 0 })
}

func TestProxiesAreNotCounted(t *testing.T) {
	l := listen(t, ListenerConfig{MaxConnsPerIP: 1, Proxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	for range 3 {
		dialRaw(t, l.Addr().String())
		nc, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
	}
	if n := opened(l); n != 3 {
		t.Fatal(n)
	}
}
