//go:build linux && !race

package relay

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/valyala/fasthttp"
)

// BenchmarkHop sends 1 KB each way; BenchmarkStream sends 1 KB and gets back 64 chunks without pauses. Both run
// straight to the upstream, through fasthttp's own client, and through this package. Client and upstream share the
// process, so cpu-µs/op covers all three; compare it with that of direct.
func BenchmarkHop(b *testing.B) {
	reply := "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1024\r\n\r\n" + strings.Repeat("x", 1024)
	benchHops(b, []string{reply}, func(br *bufio.Reader) error {
		_, err := br.Discard(len(findHead(br)) + 1024)
		return err
	})
}

func BenchmarkStream(b *testing.B) {
	event := chunk("data: {\"choices\":[{\"delta\":{\"content\":\" token\"}}]}\n\n")
	replies := []string{sseHead + event}
	for range 63 {
		replies = append(replies, event)
	}
	replies = append(replies, "0\r\n\r\n")
	benchHops(b, replies, func(br *bufio.Reader) error {
		if _, err := br.Discard(len(findHead(br))); err != nil {
			return err
		}
		for {
			line, err := br.ReadSlice('\n')
			if err != nil {
				return err
			}
			if string(line) == "0\r\n" {
				_, err = br.Discard(2)
				return err
			}
		}
	})
}

// findHead returns the head at the start of br without consuming it.
func findHead(br *bufio.Reader) []byte {
	for n := 1; ; n = br.Buffered() + 1 {
		if _, err := br.Peek(n); err != nil {
			return nil
		}
		b, _ := br.Peek(br.Buffered())
		if i := bytes.Index(b, []byte("\r\n\r\n")); i >= 0 {
			return b[:i+4]
		}
	}
}

func benchHops(b *testing.B, replies []string, read func(*bufio.Reader) error) {
	for _, conns := range []int{1, 16, 128} {
		for _, hop := range []string{"direct", "fasthttp", "relay"} {
			b.Run(fmt.Sprintf("%s/conns=%d", hop, conns), func(b *testing.B) {
				up := benchUpstream(b, replies)
				addr := up
				if hop != "direct" {
					addr = benchProxy(b, hop, up)
				}
				benchLoad(b, addr, conns, read)
			})
		}
	}
}

func benchUpstream(b *testing.B, replies []string) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			nc, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = nc.Close() }()
				br := bufio.NewReader(nc)
				for {
					head := findHead(br)
					if head == nil {
						return
					}
					if _, err := br.Discard(len(head) + 1024); err != nil {
						return
					}
					for i, r := range replies {
						if _, err := io.WriteString(nc, r); err != nil {
							return
						}
						if i < len(replies)-1 {
							runtime.Gosched()
						}
					}
				}
			}()
		}
	}()
	return ln.Addr().String()
}

func benchProxy(b *testing.B, kind, up string) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	s := &fasthttp.Server{ReadBufferSize: 16 << 10, Logger: quiet{}, MaxIdleWorkerDuration: 100 * time.Millisecond}
	if kind == "relay" {
		c := New(Config{Addr: up})
		b.Cleanup(c.Close)
		s.Handler = func(ctx *fasthttp.RequestCtx) {
			if SmugglingCheck(ctx) {
				return
			}
			req := Request{Method: "POST", Path: ctx.RequestURI(), Body: ctx.Request.Body()}
			r, err := c.Do(nil, &req)
			if err != nil {
				b.Error(err)
				ctx.SetStatusCode(502)
				ctx.SetConnectionClose()
				return
			}
			r.SendTo(ctx)
		}
		ln = NewListener(ln, ListenerConfig{})
	} else {
		c := &fasthttp.HostClient{Addr: up, StreamResponseBody: true, MaxConns: 1024, ReadBufferSize: 16 << 10,
			Dial: func(addr string) (net.Conn, error) { return net.Dial("tcp", addr) }} // the default dialer starts a goroutine that stays
		s.Handler = func(ctx *fasthttp.RequestCtx) {
			ctx.Request.Header.Del("Connection")
			if err := c.Do(&ctx.Request, &ctx.Response); err != nil {
				b.Error(err)
				ctx.SetStatusCode(502)
				ctx.SetConnectionClose()
			}
			ctx.Response.Header.Del("Connection")
		}
		b.Cleanup(c.CloseIdleConnections)
	}
	go func() { _ = s.Serve(ln) }()
	b.Cleanup(func() { _ = s.Shutdown() })
	return ln.Addr().String()
}

func benchLoad(b *testing.B, addr string, conns int, read func(*bufio.Reader) error) {
	msg := []byte("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1024\r\n\r\n" + strings.Repeat("x", 1024))
	clients := make(chan *rawClient, conns)
	for range conns {
		c := dialRaw(b, addr)
		c.br = bufio.NewReaderSize(c, 16<<10)
		clients <- c
	}
	defer func() {
		for range conns {
			_ = (<-clients).Close()
		}
	}()
	b.SetParallelism((conns + runtime.GOMAXPROCS(0) - 1) / runtime.GOMAXPROCS(0))
	b.ResetTimer()
	cpu := cpuTime()
	b.RunParallel(func(pb *testing.PB) {
		c := <-clients
		defer func() { clients <- c }()
		for i := 0; pb.Next(); i++ {
			if i%64 == 0 { // bounds every wait without setting a timer in each exchange
				_ = c.SetDeadline(time.Now().Add(time.Minute))
			}
			if _, err := c.Write(msg); err != nil {
				b.Error(err)
				return
			}
			if err := read(c.br); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.ReportMetric(float64((cpuTime()-cpu).Microseconds())/float64(b.N), "cpu-µs/op")
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
