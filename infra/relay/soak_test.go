package relay

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"reveille/testenv/kit"
)

var (
	soakFor     = flag.Duration("relay.soak", time.Second, "how long TestSoak runs")
	soakClients = flag.Int("relay.soakclients", 32, "clients of TestSoak at one time")
)

// soakPatience bounds one exchange. Even under heavy load, exceeding it means lost bytes or a lost wake-up.
const soakPatience = time.Minute

// soakText is the text that bodies are cut from, so that a misplaced byte is noticed.
var soakText = func() []byte {
	r := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, 4<<20)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}()

func soakBody(seed uint64, size int) []byte {
	at := int(seed % uint64(len(soakText)-size))
	return soakText[at : at+size]
}

// soakSize prefers sizes at limits: zero, the buffers, the pieces.
func soakSize(r *rand.Rand) int {
	switch r.IntN(8) {
	case 0:
		return 0
	case 1:
		return smallBuffer - 300 + r.IntN(600)
	case 2:
		return bigBuffer - 300 + r.IntN(600)
	case 3:
		return r.IntN(1 << 20)
	}
	return 1 + r.IntN(3000)
}

// soakUpstream answers as the request's path says: /kind/seed/size/cut. It checks each request's body, writes in pieces
// of random sizes, stops at cut, and closes some connections after an answer, announced or not.
func soakUpstream(t *testing.T) func(net.Conn, *bufio.Reader) {
	return func(nc net.Conn, br *bufio.Reader) {
		r := rand.New(rand.NewPCG(rand.Uint64(), 3))
		for {
			_ = nc.SetDeadline(time.Now().Add(2 * soakPatience))
			req, err := http.ReadRequest(br)
			if err != nil {
				return
			}
			got, err := io.ReadAll(req.Body)
			if err != nil {
				return // the client left
			}
			var kind string
			var seed uint64
			var size, cut, sent int
			if _, err := fmt.Sscanf(req.URL.Path, "/%1s/%d/%d/%d/%d", &kind, &seed, &size, &cut, &sent); err != nil {
				t.Error(req.URL.Path, err)
				return
			}
			if !bytes.Equal(got, soakBody(seed, sent)) {
				t.Errorf("request body of %d bytes, want %d with the right content", len(got), sent)
				return
			}
			out := soakReply(r, kind, soakBody(seed, size))
			whole := cut == 0
			if !whole {
				out = out[:min(cut, len(out)-1)]
			}
			for len(out) > 0 {
				n := len(out)
				if r.IntN(2) == 0 {
					n = 1 + r.IntN(n)
				}
				if _, err := nc.Write(out[:n]); err != nil {
					return
				}
				out = out[n:]
				if r.IntN(4) == 0 {
					time.Sleep(time.Duration(r.IntN(2000)) * time.Microsecond)
				}
			}
			if !whole || kind == "d" || r.IntN(50) == 0 {
				if r.IntN(4) == 0 {
					time.Sleep(time.Duration(r.IntN(2000)) * time.Microsecond)
				}
				return
			}
		}
	}
}

// soakReply returns an answer with body: with a length, chunked, as an event stream, or delimited by the connection's
// end.
func soakReply(r *rand.Rand, kind string, body []byte) []byte {
	var out []byte
	if r.IntN(10) == 0 {
		out = append(out, "HTTP/1.1 100 Continue\r\n\r\n"...)
	}
	out = append(out, "HTTP/1.1 200 OK\r\nContent-Type: application/x\r\n"...)
	switch kind {
	case "l":
		return append(fmt.Appendf(out, "Content-Length: %d\r\n\r\n", len(body)), body...)
	case "d":
		return append(append(out, "Connection: close\r\n\r\n"...), body...)
	}
	out = append(out, "Transfer-Encoding: chunked\r\n\r\n"...)
	if kind == "e" {
		body = soakEvents(body)
	}
	for len(body) > 0 {
		n := min(len(body), 1+r.IntN(1+r.IntN(20000)))
		out = append(append(fmt.Appendf(out, "%x\r\n", n), body[:n]...), "\r\n"...)
		body = body[n:]
	}
	return append(out, "0\r\n\r\n"...)
}

func soakEvents(body []byte) []byte {
	var out []byte
	for len(body) > 0 {
		n := min(len(body), 100)
		out = fmt.Appendf(out, "data: %x\n\n", body[:n])
		body = body[n:]
	}
	return out
}

// soakHandler relays as the gateway does: a watch per client, a call per exchange.
func soakHandler(c *Client, w *Watcher, open *atomic.Int64) fasthttp.RequestHandler {
	return func(ctx *fasthttp.RequestCtx) {
		if SmugglingCheck(ctx) {
			return
		}
		open.Add(1)
		call := new(Call)
		watch := w.Arm(ctx.Conn(), func() { call.Cancel(ErrGone) })
		end := func(error) {
			watch.Stop()
			open.Add(-1)
		}
		refuse := func(err error) {
			ctx.Response.ResetBody()
			ctx.SetStatusCode(fasthttp.StatusBadGateway)
			ctx.SetBodyString(err.Error())
		}
		req := &Request{Method: "POST", Path: ctx.Path(), Body: ctx.Request.Body(),
			FirstByte: soakPatience / 2, Silence: soakPatience / 2}
		r, err := c.Do(call, req)
		if err != nil {
			end(err)
			refuse(err)
			return
		}
		if len(ctx.Request.Header.Peek("Whole")) > 0 {
			b, err := r.AppendBody(nil, 2<<20)
			_ = r.Close()
			end(err)
			if err != nil {
				refuse(err)
				return
			}
			ctx.SetBody(b)
			return
		}
		r.OnEnd = end
		r.SendTo(ctx)
	}
}

type soakCounts struct{ whole, cut, left, refused, dialled atomic.Int64 }

// soakClient runs exchanges until end. Every wait is bounded; reaching a bound is the failure this test looks for.
func soakClient(t *testing.T, addr string, end time.Time, n *soakCounts) {
	r := rand.New(rand.NewPCG(rand.Uint64(), 4))
	var nc net.Conn
	var br *bufio.Reader
	drop := func() {
		if nc != nil {
			_ = nc.Close()
			nc = nil
		}
	}
	defer drop()
	for time.Now().Before(end) && !t.Failed() {
		if nc == nil {
			var err error
			if nc, err = net.DialTimeout("tcp", addr, soakPatience); err != nil {
				t.Error(err)
				return
			}
			br = bufio.NewReader(nc)
			n.dialled.Add(1)
		}
		_ = nc.SetDeadline(time.Now().Add(soakPatience))
		kind := string("llcced"[r.IntN(6)])
		seed, size, sent, cut := r.Uint64(), soakSize(r), soakSize(r), 0
		if kind != "d" && r.IntN(20) == 0 {
			cut = 1 + r.IntN(size+200)
		}
		leaves := r.IntN(20) == 0
		msg := fmt.Appendf(nil, "POST /%s/%d/%d/%d/%d HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n", kind, seed, size, cut, sent, sent)
		if r.IntN(4) == 0 {
			msg = append(msg, "Whole: 1\r\n"...)
		}
		msg = append(append(msg, "\r\n"...), soakBody(seed, sent)...)
		if _, err := nc.Write(msg); err != nil {
			soakFailed(t, "writing the request", err)
			return
		}
		if leaves && r.IntN(2) == 0 {
			n.left.Add(1)
			drop()
			continue
		}
		resp, err := http.ReadResponse(br, nil)
		if err != nil {
			if cut == 0 {
				soakFailed(t, "reading the head", err)
				return
			}
			n.cut.Add(1)
			drop()
			continue
		}
		if leaves {
			_, _ = io.CopyN(io.Discard, resp.Body, int64(r.IntN(size+1)))
			n.left.Add(1)
			drop()
			continue
		}
		body, err := io.ReadAll(resp.Body)
		if resp.StatusCode == fasthttp.StatusBadGateway {
			n.refused.Add(1) // the upstream closed the connection as the request arrived, or cut the head
			continue
		}
		want := soakBody(seed, size)
		if kind == "e" {
			want = soakEvents(want)
		}
		if err == nil {
			if !bytes.Equal(body, want) {
				t.Errorf("kind %s: %d bytes, want %d with the right content", kind, len(body), len(want))
				return
			}
			n.whole.Add(1)
			if r.IntN(100) == 0 {
				drop()
			}
			continue
		}
		// An answer that the upstream cut ends early but without a wrong byte.
		if !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) || !bytes.HasPrefix(want, body) {
			soakFailed(t, fmt.Sprintf("kind %s cut %d: %d bytes of %d", kind, cut, len(body), len(want)), err)
			return
		}
		n.cut.Add(1)
		drop()
	}
}

var soakDump sync.Once

// soakFailed reports a failure, with all goroutines' stacks if a wait reached its bound.
func soakFailed(t *testing.T, what string, err error) {
	t.Helper()
	t.Errorf("%s: %v", what, err)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		soakDump.Do(func() {
			stacks := make([]byte, 8<<20)
			t.Logf("%s", stacks[:runtime.Stack(stacks, true)])
		})
	}
}

// The bytes that arrive are the bytes that were sent, whatever is cut, closed or left, and nobody waits for something
// that never comes. Use -relay.soak for a longer run.
func TestSoak(t *testing.T) {
	var n soakCounts
	var open atomic.Int64
	u := newUpstream(t, soakUpstream(t))
	go func() {
		for range u.conns { // drain newUpstream's record of them, which is bounded
		}
	}()
	c := u.client(t, Config{MaxIdle: 64, IdleTimeout: 5 * time.Millisecond})
	w := NewWatcher(2 * time.Millisecond)
	addr := frontend(t, ListenerConfig{WriteTimeout: soakPatience}, soakHandler(c, w, &open))
	end := time.Now().Add(*soakFor)
	var wg sync.WaitGroup
	for range *soakClients {
		wg.Go(func() { soakClient(t, addr, end, &n) })
	}
	wg.Wait()
	kit.Eventually(t, "all exchanges end", func() bool { return open.Load() == 0 && c.Stats().Active == 0 })
	t.Log("whole " + strconv.FormatInt(n.whole.Load(), 10) + fmt.Sprintf(", cut %d, left %d, refused %d, dialled %d",
		n.cut.Load(), n.left.Load(), n.refused.Load(), n.dialled.Load()))
	if n.whole.Load() == 0 {
		t.Error("no answer was complete")
	}
}
