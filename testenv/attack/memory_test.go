package attack

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"reveille/testenv"
	"reveille/testenv/calls"
	"reveille/testenv/kit"
)

// rss is the memory of a process in bytes.
func rss(t *testing.T, pid int) int64 { return memory(t, pid, "VmRSS:") }

// memory is a value of a process's status in bytes.
func memory(t *testing.T, pid int, field string) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Skip("no /proc:", err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == field {
			kib, _ := strconv.ParseInt(f[1], 10, 64)
			return kib << 10
		}
	}
	t.Fatal("no " + field)
	return 0
}

// peer is a client's connection, byte by byte.
type peer struct {
	net.Conn
	t  *testing.T
	br *bufio.Reader
}

// dialFrom connects to a server at a URL or host:port, from a local address or from "".
func dialFrom(t *testing.T, from, server string) peer {
	t.Helper()
	d := net.Dialer{Timeout: limit}
	if from != "" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
	}
	c, err := d.Dial("tcp", strings.TrimPrefix(server, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(limit))
	return peer{c, t, bufio.NewReader(c)}
}

// hear reads a response: its status, 0 for none.
func (p peer) hear() int {
	resp, err := http.ReadResponse(p.br, nil)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return 0
	}
	return resp.StatusCode
}

// post is the head of a request with a body of n bytes.
func post(path string, n int, headers ...string) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%s\r\n", path, n, strings.Join(append(headers, ""), "\r\n"))
}

// TestListsOfNothing: a body of empty tool calls in Ollama's form, of empty items in that of responses, or of one field many
// times, takes no more memory than any other of its size.
func TestListsOfNothing(t *testing.T) {
	s := testenv.Start(t, testenv.Spec{Models: calls.Catalogue{"m": "llm", "r": "reranking"}.YAML(calls.LocalHost), Args: []string{withKeys(t)}})
	chat := func(list string) calls.Answer {
		return call(t, "POST", s.URL+"/api/chat", `{"model":"m","stream":false,"messages":[{"role":"assistant","tool_calls":[`+list+`]},{"role":"user","content":"x"}]}`, bearer(inferKey))
	}
	if a := chat("{}"); !a.OK() {
		t.Fatal(a)
	}
	before, most := rss(t, s.PID()), 12*6<<20
	if kit.Race {
		most *= 2 // of which the detector takes half
	}
	many := strings.Repeat("{},", 2_000_000) + "{}"
	refused(t, "two million tool calls", chat(many), 413)
	refused(t, "two million parts", call(t, "POST", s.URL+"/v1/responses", `{"model":"m","input":[{"role":"user","content":[`+many+`]}]}`, bearer(inferKey)), 413)
	call(t, "POST", s.URL+"/rerank", `{"model":"r","query":"x",`+strings.Repeat(`"documents":["a"],`, 300)+`"documents":["`+strings.Repeat("a ", 1<<19)+`"]}`, bearer(inferKey))
	if grown := memory(t, s.PID(), "VmHWM:") - before; grown > int64(most) {
		t.Errorf("the gateway's memory grew by %d MiB", grown>>20)
	}
}

// TestAnnouncedBodies announces a gigabyte to gateway and runner and sends a byte of each body.
func TestAnnouncedBodies(t *testing.T) {
	s := testenv.Start(t, testenv.Spec{Models: calls.Catalogue{"m": "llm"}.YAML(calls.LocalHost), Args: []string{withKeys(t)}})
	const chat = "/v1/chat/completions"
	if a := call(t, "POST", s.URL+chat, calls.ChatBody("m", 1, false), bearer(inferKey)); !a.OK() {
		t.Fatal(a)
	}
	runner := s.Redis().HGet(t.Context(), "rv:{main}:host:local", "addr").Val()
	if runner == "" {
		t.Fatal("the runner has no address")
	}
	const conns, size = 16, 64<<20 - 1
	for _, c := range []struct {
		name, addr string
		headers    []string
		status     int // 0: the body is awaited
	}{
		{"gateway, no key", s.URL, nil, http.StatusUnauthorized},
		{"gateway, infer key", s.URL, []string{bearer(inferKey)}, 0},
		{"runner, no signature", runner, []string{"X-Reveille-Model: m"}, http.StatusMisdirectedRequest},
		{"runner, a wrong signature", runner, []string{"X-Reveille-Model: m", "X-Reveille-Auth: v2 a 1 2 local AAAA"}, http.StatusMisdirectedRequest},
		{"runner, no model", runner, nil, http.StatusMisdirectedRequest},
	} {
		before := rss(t, s.PID())
		for range conns {
			p := dialFrom(t, "", c.addr)
			if _, err := io.WriteString(p, post(chat, size, c.headers...)+"{"); err != nil {
				t.Fatal(c.name, err)
			}
			if c.status != 0 {
				if got := p.hear(); got != c.status {
					t.Errorf("%s: %d, want %d", c.name, got, c.status)
				}
			}
		}
		most := before
		for range 20 { // what was not read at once shows a little later
			most = max(most, rss(t, s.PID()))
			time.Sleep(10 * time.Millisecond)
		}
		grown := most - before
		t.Logf("%s: %d bodies of %d bytes announced, %d KiB more memory, %.5f bytes for each", c.name, conns, size, grown>>10, float64(grown)/conns/size)
		if grown > conns*size/20 {
			t.Errorf("%s: memory grew by %d MiB", c.name, grown>>20)
		}
	}

	// Refused requests cost no memory either, and their connections survive.
	const refusals, lanes = 10_000, 8
	before, began := rss(t, s.PID()), time.Now()
	var wg sync.WaitGroup
	for range lanes {
		p := dialFrom(t, "", s.URL)
		wg.Go(func() {
			for i := range refusals / lanes {
				if _, err := io.WriteString(p, post(chat, 1000, bearer("wrong"))+strings.Repeat("x", 1000)); err != nil {
					t.Error(err)
					return
				}
				if got := p.hear(); got != http.StatusUnauthorized {
					t.Errorf("refusal %d: %d", i, got)
					return
				}
			}
		})
	}
	wg.Wait()
	grown := rss(t, s.PID()) - before
	t.Logf("%d refused requests in %v, %d KiB more memory", refusals, time.Since(began).Round(time.Millisecond), grown>>10)
	if grown > 64<<20 {
		t.Errorf("refused requests took %d MiB", grown>>20)
	}
	if a := call(t, "POST", s.URL+chat, calls.ChatBody("m", 1, false), bearer(inferKey)); !a.OK() {
		t.Errorf("afterwards: %v", a)
	}
}

// TestSlowAndManyConnections: clients that trickle get 408, one that uploads steadily is served however long it takes, and
// one address cannot take all connections.
func TestSlowAndManyConnections(t *testing.T) {
	const most = 20
	s := testenv.Start(t, testenv.Spec{
		Models: calls.Catalogue{"ears": "audio"}.YAML(calls.LocalHost),
		Args:   []string{"--read-timeout=2s", "--min-rate=20KiB", fmt.Sprintf("--max-conns-per-address=%d", most), "--proxies=none"},
	})
	const path = "/v1/audio/transcriptions"
	var wg sync.WaitGroup
	trickle := func(name, first, rest string) {
		p := dialFrom(t, "127.0.0.2", s.URL)
		wg.Go(func() {
			_, err := io.WriteString(p, first)
			for i := 0; err == nil && i < len(rest); i++ {
				time.Sleep(50 * time.Millisecond)
				_, err = io.WriteString(p, rest[i:i+1])
			}
		})
		wg.Go(func() {
			if got := p.hear(); got != http.StatusRequestTimeout {
				t.Errorf("%s: %d, want 408", name, got)
			}
			_ = p.Close()
		})
	}
	trickle("head", "POST "+path+" HTTP/1.1\r\n", "Host: "+strings.Repeat("a", 600))
	trickle("body", post(path, 1<<20), strings.Repeat("x", 600))
	trickle("chunks", "POST "+path+" HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n", strings.Repeat("1\r\nx\r\n", 100))

	// 100 KiB a second for longer than a head may take.
	var form bytes.Buffer
	fmt.Fprintf(&form, "--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nears\r\n--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n%s\r\n--b--\r\n", strings.Repeat("x", 400<<10))
	p := dialFrom(t, "127.0.0.3", s.URL)
	head := strings.Replace(post(path, form.Len()), "application/json", "multipart/form-data; boundary=b", 1)
	if _, err := io.WriteString(p, head); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for sent := 0; form.Len() > 0; {
		n, err := p.Write(form.Next(10 << 10))
		if err != nil {
			t.Fatalf("after %d bytes: %v", sent, err)
		}
		sent += n
		time.Sleep(time.Until(began.Add(time.Duration(sent) * time.Second / (100 << 10))))
	}
	if got := p.hear(); got != http.StatusOK {
		t.Errorf("a steady upload of %v: %d", time.Since(began), got)
	}
	wg.Wait()

	served := 0
	for range 3 * most {
		p := dialFrom(t, "127.0.0.4", s.URL)
		_, _ = io.WriteString(p, "GET /live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
		switch got := p.hear(); got {
		case http.StatusOK:
			served++
		case http.StatusServiceUnavailable, 0: // a reset may take the response along
		default:
			t.Errorf("flood: %d", got)
		}
	}
	if served > most {
		t.Errorf("%d connections of one address are served, want %d", served, most)
	}
	other := dialFrom(t, "127.0.0.5", s.URL)
	if _, err := io.WriteString(other, "GET /live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"); err != nil || other.hear() != http.StatusOK {
		t.Error("another address is not served:", err)
	}
}
