package relay

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"regexp"
	"testing"
	"time"
)

// piecesConn returns its bytes in pieces of n, then io.EOF.
type piecesConn struct {
	net.Conn
	rest []byte
	n    int
}

func (c *piecesConn) Read(p []byte) (int, error) {
	if len(c.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p, c.rest[:min(c.n, len(c.rest))])
	c.rest = c.rest[n:]
	return n, nil
}

func (c *piecesConn) SetReadDeadline(time.Time) error { return nil }

func (c *piecesConn) Close() error { return nil }

// outcome is everything that an exchange reveals about a response.
type outcome struct {
	status  int
	ctype   string
	size    int
	body    string
	kind    error // nil if the body ended properly
	atHead  bool  // the exchange failed before its body
	reused  bool
	framing framing
}

// answerIn reads raw as a response that arrives in pieces of n bytes.
func answerIn(t *testing.T, raw []byte, n int) (o outcome) {
	client := New(Config{Addr: "127.0.0.1:1"})
	defer client.Close()
	client.active = 1
	c := newConn(&piecesConn{rest: raw, n: n})
	r := &Response{c: c, client: client, reuse: true}
	r.requestWritten()
	err := r.Await(time.Time{})
	if o.atHead = err != nil; !o.atHead {
		o.status, o.ctype, o.size, o.framing = r.Status(), string(r.ContentType()), r.Size(), r.framing
		for line := range bytes.SplitSeq(bytes.TrimSuffix(r.head.fields, []byte("\n")), []byte("\n")) {
			name, _, _ := bytes.Cut(line, []byte(":"))
			if value := r.Header(string(name)); bytes.ContainsAny(value, "\r\n") {
				t.Fatalf("field %q: %q breaks out of its line", name, value)
			}
		}
		var b []byte
		b, err = r.AppendBody(nil, 1<<20)
		o.body = string(b)
	}
	for _, kind := range []error{ErrBroken, ErrInvalidResponse} {
		if errors.Is(err, kind) {
			o.kind = kind
		}
	}
	if err != nil && o.kind == nil {
		t.Fatalf("an error of no kind: %v", err)
	}
	_ = r.Close()
	s := client.Stats()
	o.reused = s.Idle == 1
	if s.Active != 0 || o.reused && o.kind != nil {
		t.Fatalf("%+v after %v", s, err)
	}
	return o
}

// blankedName matches a field whose name is followed by a blank. RFC 9112 5.1 has proxies remove the blank, and
// net/http takes it for another field.
var blankedName = regexp.MustCompile(`(?m)^[^:\r\n]*[ \t]:`)

// The result must not depend on how the response is cut. If net/http accepts it too, both must agree, since two
// readings of one head allow smuggling.
func FuzzHead(f *testing.F) {
	for _, s := range []string{
		"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nContent-Length: 5\r\n\r\nhello",
		"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\nConnection: x\r\nConnection: Close\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
		"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n\r\nto the end",
		"HTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
		"HTTP/1.1 304 \r\nContent-Length: 7\r\n\r\n",
		"HTTP/1.1 200 OK\r\nA: b\r\n Content-Length: 3\r\n\r\nabc",
		"HTTP/1.1 200 OK\r\nContent-Length : 3\r\nContent-Length: 3\r\n\r\nabc",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\nContent-Length: 3\r\n\r\nabc",
	} {
		f.Add([]byte(s), uint8(3))
	}
	f.Fuzz(func(t *testing.T, raw []byte, n uint8) {
		if len(raw) > 8<<10 {
			return // where a head too long for the buffer fails depends on the cut
		}
		got := answerIn(t, raw, len(raw)+1)
		cut := answerIn(t, raw, int(n)+1)
		cut.reused = got.reused // bytes after the body may be unread so far; isStale will see them
		if got != cut {
			t.Fatalf("whole: %+v; in pieces of %d: %+v", got, int(n)+1, cut)
		}
		if got.atHead || blankedName.Match(raw) {
			return
		}
		br := bufio.NewReader(bytes.NewReader(raw))
		std, err := http.ReadResponse(br, nil)
		for err == nil && std.StatusCode < 200 {
			std, err = http.ReadResponse(br, nil)
		}
		if err != nil {
			return // net/http is stricter
		}
		body, err := io.ReadAll(std.Body)
		if std.StatusCode != got.status || !std.Close != got.reused && br.Buffered() == 0 && got.kind == nil && err == nil {
			t.Fatalf("status %d, close %v; ours %+v", std.StatusCode, std.Close, got)
		}
		if got.kind == nil && err == nil && string(body) != got.body {
			t.Fatalf("body %q; ours %+v", body, got)
		}
	})
}
