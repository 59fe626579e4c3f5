// Command engine answers by the seed that a request's body names, as testenv/hops plans it.
//
//	engine [--host ADDRESS] --port PORT
//
// GET /report reports how many requests are open, how many of the responses that hang were left by the other end, and
// how many were not within 20 s, and how many requests did not hold the text that their seed has. The program ends with
// the process that started it.
package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"reveille/testenv/hops"
)

const patience = 20 * time.Second // until the other end must have closed

var open, left, stayed, wrong atomic.Int64

func main() {
	parent := os.Getppid()
	go func() {
		for os.Getppid() == parent {
			time.Sleep(time.Second)
		}
		os.Exit(1)
	}()
	host, port := "127.0.0.1", ""
	for i, a := range os.Args[:len(os.Args)-1] {
		switch a {
		case "--host":
			host = os.Args[i+1]
		case "--port":
			port = os.Args[i+1]
		}
	}
	ln, err := net.Listen("tcp", net.JoinHostPort(host, port))
	if strings.HasSuffix(host, ".sock") {
		ln, err = net.Listen("unix", host)
	}
	for err == nil {
		var c net.Conn
		if c, err = ln.Accept(); err == nil {
			go serve(c)
		}
	}
	fmt.Fprintln(os.Stderr, "engine:", err)
	os.Exit(1)
}

// serve answers the requests of a connection.
func serve(c net.Conn) {
	defer c.Close()
	br := bufio.NewReader(c)
	for {
		req, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		open.Add(1)
		again := answer(c, br, req)
		open.Add(-1)
		if !again {
			return
		}
	}
}

// answer answers one request and reports whether the connection takes another.
func answer(c net.Conn, br *bufio.Reader, req *http.Request) bool {
	body := bufio.NewReader(req.Body)
	start, err := body.Peek(64) // shorter only if the body is
	if err != nil && err != io.EOF {
		return false
	}
	seed, ok := hops.SeedIn(start)
	if !ok {
		return simple(c, req.URL.Path, body)
	}
	p := hops.PlanOf(seed)
	r := hops.Random(seed, 2)
	send := func(b []byte) error {
		_, err := c.Write(b)
		return err
	}
	var sent error
	if p.Early {
		sent = hops.Pieces(r, p.Wire, send)
	}
	got, err := read(body, p.Slow)
	if err != nil {
		return false
	}
	if !bytes.Contains(got, []byte(p.Text)) || req.URL.Path != p.Path {
		wrong.Add(1)
		return simple(c, "", nil)
	}
	if !p.Early {
		sent = hops.Pieces(r, p.Wire, send)
	}
	switch {
	case sent != nil:
		return false
	case p.Hangs:
		_ = c.SetReadDeadline(time.Now().Add(patience))
		if _, err := br.ReadByte(); err != nil && !isTimeout(err) {
			left.Add(1)
		} else {
			stayed.Add(1)
		}
		return false
	case p.Resets:
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
	}
	return !p.Closes
}

func isTimeout(err error) bool {
	e, ok := err.(net.Error)
	return ok && e.Timeout()
}

// read reads a body, slowly in 20 pauses if asked for.
func read(body io.Reader, slow bool) ([]byte, error) {
	var b bytes.Buffer
	for range 20 {
		if !slow {
			break
		}
		time.Sleep(2 * time.Millisecond)
		if _, err := io.CopyN(&b, body, 3000); err == io.EOF {
			return b.Bytes(), nil
		} else if err != nil {
			return nil, err
		}
	}
	_, err := b.ReadFrom(body)
	return b.Bytes(), err
}

// simple answers what has no seed: probes, and GET /report.
func simple(c net.Conn, path string, body io.Reader) bool {
	if body != nil {
		if _, err := io.Copy(io.Discard, body); err != nil {
			return false
		}
	}
	text := `{"status":"ok"}`
	if path == "/report" {
		text = fmt.Sprintf(`{"open":%d,"left":%d,"stayed":%d,"wrong":%d}`, open.Load()-1, left.Load(), stayed.Load(), wrong.Load())
	}
	_, err := fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(text), text)
	return err == nil
}
