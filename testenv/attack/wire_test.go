package attack

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"reveille/testenv"
	"reveille/testenv/calls"
)

// fuzzTime is how long TestWire sends mutations of its table: `make fuzz-wire`.
var fuzzTime = flag.Duration("fuzz-wire", 0, "how long TestWire sends mutated requests")

// wireCase is a request as bytes and the statuses that its first response may have; 0 is a connection closed without
// one.
type wireCase struct {
	name     string
	text     string
	statuses []int
}

// closed is a wireCase's status for a connection that ended without a response.
const closed = 0

// wireCases are requests of one connection each that must be refused or served safely.
func wireCases() []wireCase {
	const path, ok = "/v1/chat/completions", 200
	good := calls.ChatBody("m", 2, false)
	head := func(start string, headers ...string) string {
		lines := append([]string{start, "Host: 127.0.0.1", bearer(inferKey)}, headers...)
		return strings.Join(lines, "\r\n") + "\r\n\r\n"
	}
	chat := func(body string, headers ...string) string {
		return head("POST "+path+" HTTP/1.1", append([]string{"Content-Type: application/json", fmt.Sprintf("Content-Length: %d", len(body))}, headers...)...) + body
	}
	get := func(path string) string { return head("GET " + path + " HTTP/1.1") }
	said := func(content string) string {
		return `{"model":"m","max_tokens":2,"messages":[{"role":"user","content":` + content + `}]}`
	}
	length := fmt.Sprintf("Content-Length: %d", len(good))
	const smuggled = "GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
	refusals := []int{400, closed}
	return []wireCase{
		{"a good request", chat(good), []int{ok}},
		// Framing.
		{"two lengths", chat(good, "Content-Length: 5"), refusals},
		{"two equal lengths", chat(good, length), refusals},
		{"a list of lengths", head("POST "+path+" HTTP/1.1", "Content-Length: 5, 5") + good, refusals},
		{"a signed length", head("POST "+path+" HTTP/1.1", "Content-Length: +5") + good, refusals},
		{"a negative length", head("POST "+path+" HTTP/1.1", "Content-Length: -1") + good, refusals},
		{"a length in hexadecimal", head("POST "+path+" HTTP/1.1", "Content-Length: 0x5") + good, refusals},
		{"a length beyond 64 bits", head("POST "+path+" HTTP/1.1", "Content-Length: 99999999999999999999") + good, []int{400, 413, closed}},
		{"a length of a terabyte", head("POST "+path+" HTTP/1.1", "Content-Length: 1099511627776") + good, []int{413, closed}},
		{"length and chunks", head("POST "+path+" HTTP/1.1", "Content-Length: 4", "Transfer-Encoding: chunked") + "0\r\n\r\n" + smuggled, refusals},
		{"chunks and length", head("POST "+path+" HTTP/1.1", "Transfer-Encoding: chunked", "Content-Length: 4") + "0\r\n\r\n" + smuggled, refusals},
		{"chunks in capitals and length", head("POST "+path+" HTTP/1.1", "TRANSFER-ENCODING: Chunked", "Content-Length: 4") + "0\r\n\r\n" + smuggled, refusals},
		{"another coding", head("POST "+path+" HTTP/1.1", "Transfer-Encoding: gzip, chunked") + "0\r\n\r\n", []int{400, 411, 415, 501, closed}},
		{"an unknown coding and length", head("POST "+path+" HTTP/1.1", "Transfer-Encoding: xchunked", length) + good, refusals},
		{"a chunk's size that is none", head("POST "+path+" HTTP/1.1", "Transfer-Encoding: chunked") + "zz\r\nabc\r\n0\r\n\r\n", refusals},
		{"a chunk's size beyond 64 bits", head("POST "+path+" HTTP/1.1", "Transfer-Encoding: chunked") + "fffffffffffffffff\r\nabc\r\n0\r\n\r\n", []int{400, 413, closed}},
		{"a folded header", head("POST "+path+" HTTP/1.1", "X-A: b", " folded: c", length) + good, []int{ok, 400, closed}},
		{"a folded length", head("POST "+path+" HTTP/1.1", "Content-Length:", " 5") + good, refusals},
		{"a space before the colon", head("POST "+path+" HTTP/1.1", "Content-Length : 5") + good, refusals},
		{"a tab before the colon", head("POST "+path+" HTTP/1.1", "Transfer-Encoding\t: chunked") + "0\r\n\r\n", refusals},
		{"a header without a name", head("POST "+path+" HTTP/1.1", ": x", length) + good, refusals},
		{"a header without a colon", head("POST "+path+" HTTP/1.1", "X-A", length) + good, refusals},
		{"a NUL in a header", chat(good, "X-A: a\x00b"), refusals},
		{"a bare CR in a header", chat(good, "X-A: a\rX-B: b"), refusals},
		{"bare line feeds", strings.ReplaceAll(get("/v1/models"), "\r\n", "\n"), []int{ok, 400, 408, closed}},
		{"two hosts", chat(good, "Host: localhost"), refusals},
		{"an overlong header", chat(good, "X-A: "+strings.Repeat("a", 40<<10)), []int{400, 431, closed}},
		{"ten thousand headers", chat(good, strings.Split(strings.Repeat("A: b\n", 9999)+"A: b", "\n")...), []int{400, 431, closed}},
		{"no version", "GET /v1/models\r\n\r\n", refusals},
		{"another version", head("GET /v1/models HTTP/9.9"), []int{ok, 400, 505, closed}},
		{"HTTP/1.0", head("GET /v1/models HTTP/1.0"), []int{ok}},
		{"HTTP/2's preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", []int{400, 401, 403, 404, 405, 505, closed}},
		{"a TLS hello", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", refusals},
		{"no request", "\r\n\r\n\r\n\r\n", refusals},
		// Methods and targets.
		{"a method of control characters", head("\x01\x02 /v1/models HTTP/1.1"), []int{400, 404, 405, closed}},
		{"CONNECT", head("CONNECT 169.254.169.254:80 HTTP/1.1"), []int{400, 403, 404, 405, closed}},
		{"TRACE", head("TRACE /v1/models HTTP/1.1"), []int{400, 404, 405, closed}},
		{"absolute form of another host", get("http://169.254.169.254/latest/meta-data/"), []int{400, 403, 404, closed}},
		{"another scheme", get("file:///etc/passwd"), []int{400, 403, 404, closed}},
		{"dots", get("/v1/../../../etc/passwd"), []int{400, 404}},
		{"encoded dots", get("/v1/%2e%2e/%2e%2e/etc/passwd"), []int{400, 404}},
		{"twice encoded dots", get("/upstream/m/%252e%252e/slots"), []int{400, 403, 404}},
		{"dots out of /upstream", get("/upstream/m/v1/../../../v1/models"), []int{400, 403, 404}},
		{"a backslash", get(`/v1\..\models`), []int{400, 404}},
		{"encoded slash in a model's name", get("/v1/models/..%2f..%2fetc"), []int{400, 404}},
		{"two slashes of a route that needs manage", head("POST //v1/load HTTP/1.1", "Content-Length: 2") + "{}", []int{400, 403, 404}},
		{"an encoded letter of a route that needs manage", head("POST /v1/%6coad HTTP/1.1", "Content-Length: 2") + "{}", []int{400, 403, 404}},
		{"a NUL in the path", get("/v1/models\x00"), []int{400, 404, closed}},
		{"an encoded NUL in the path", get("/v1/models/m%00"), []int{400, 404}},
		{"a broken escape", get("/v1/models/%zz"), []int{400, 404}},
		{"an encoded line break in the path", get("/v1/models/a%0d%0aX-Injected:%20b"), []int{400, 404}},
		{"a long path", get("/v1/models/" + strings.Repeat("a/", 3000)), []int{400, 404, 414, closed}},
		{"a path of other bytes", get("/v1/models/\xff\xfe\xc0\xaf"), []int{400, 404, closed}},
		{"the model's name as a key pattern", get("/v1/models/*"), []int{400, 404}},
		// Headers.
		{"no key", "GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", []int{401}},
		{"an empty key", "GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer \r\n\r\n", []int{401}},
		{"a key's beginning", "GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n" + bearer(inferKey[:20]) + "\r\n\r\n", []int{401}},
		{"a key of 12 KB", "GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n" + bearer(strings.Repeat("k", 12<<10)) + "\r\n\r\n", []int{401, 431}},
		{"a packed body", chat("\x1f\x8b\x08\x00\x00\x00\x00\x00", "Content-Encoding: gzip"), []int{400, 415}},
		{"another media type", chat(good, "Content-Type: application/xml"), []int{ok, 400, 415, closed}},
		{"a request's name with a line break", chat(good, "X-Request-Id: a%0d%0ab"), []int{ok, 400}},
		// Bodies.
		{"no body", chat(""), []int{400}},
		{"no JSON", chat("model=m"), []int{400}},
		{"half of the JSON", chat(good[:len(good)/2]), []int{400}},
		{"JSON and more", chat(good + good), []int{400}},
		{"a list", chat("[" + good + "]"), []int{400}},
		{"a number beyond all", chat(`{"model":"m","temperature":1e400,"messages":[{"role":"user","content":"a"}]}`), []int{ok, 400}},
		{"a half surrogate", chat(said(`"\ud800"`)), []int{ok, 400}},
		{"bytes that are no UTF-8", chat(said("\"\xff\xfe\"")), []int{ok, 400}},
		{"a NUL in a text", chat(said(`"a\u0000b"`)), []int{ok, 400}},
		{"a NUL between members", chat(said("\x00\"a\"")), []int{400}},
		{"deep lists", chat(said(strings.Repeat("[", 20000) + strings.Repeat("]", 20000))), []int{400}},
		{"deep objects", chat(said(strings.Repeat(`{"a":`, 20000) + "1" + strings.Repeat("}", 20000))), []int{400}},
		{"many members", chat(said(`"a"`)[:10] + strings.Repeat(`,"x":1`, 20000) + said(`"a"`)[10:]), []int{ok, 400}},
		{"a name that climbs", chat(strings.Replace(good, `"m"`, `"../../etc/passwd"`, 1)), []int{400, 404}},
		{"a name with a line break", chat(strings.Replace(good, `"m"`, `"m\r\nx"`, 1)), []int{400, 404}},
		{"a name of a megabyte", chat(strings.Replace(good, `"m"`, `"`+strings.Repeat("m", 1<<20)+`"`, 1)), []int{400, 404}},
		{"a negative count", chat(strings.Replace(good, "{", `{"n_discard":-1,"n_predict":-5,`, 1)), []int{ok, 400}},
	}
}

// exchange sends bytes on a connection of its own and reads answers until one is overdue or the connection ends. It
// returns their statuses and the first response's body. A response that is no HTTP is an error.
func exchange(server, text string, patience time.Duration) (statuses []int, body []byte, err error) {
	conn, err := net.DialTimeout("tcp", strings.TrimPrefix(server, "http://"), limit)
	if err != nil {
		return nil, nil, err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	_, _ = io.WriteString(conn, text) // a server may refuse before it has read all
	br := bufio.NewReader(conn)
	for {
		if _, err := br.Peek(1); err != nil {
			return statuses, body, nil // the end, or nothing more in time
		}
		resp, err := http.ReadResponse(br, nil)
		if err != nil {
			if timeout(err) || errors.Is(err, syscall.ECONNRESET) {
				return statuses, body, nil
			}
			return statuses, body, err
		}
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if len(statuses) == 0 {
			body = b
		}
		statuses = append(statuses, resp.StatusCode)
		_ = conn.SetReadDeadline(time.Now().Add(min(patience, 100*time.Millisecond))) // a second response would come immediately
		if err != nil {
			return statuses, body, nil // cut: a client sees that
		}
	}
}

func timeout(err error) bool {
	var e net.Error
	return errors.As(err, &e) && e.Timeout()
}

// TestWire sends what is malformed or out of bounds in framing, target, headers or body: each request has one answer at
// most, none is a failure of the server, and the gateway serves as before. With -fuzz-wire it goes on with mutations.
func TestWire(t *testing.T) {
	s := testenv.Start(t, testenv.Spec{
		Models: calls.Catalogue{"m": "llm"}.YAML(calls.LocalHost),
		Args:   []string{withKeys(t), "--read-timeout=2s"},
	})
	serves := func() {
		t.Helper()
		if a := call(t, "POST", s.URL+"/v1/chat/completions", calls.ChatBody("m", 1, false), bearer(inferKey)); !a.OK() {
			t.Fatalf("the gateway does not serve: %v", a)
		}
	}
	serves()
	cases := wireCases()
	var all sync.WaitGroup
	check := func(c wireCase) {
		statuses, body, err := exchange(s.URL, c.text, limit)
		first := closed
		if len(statuses) > 0 {
			first = statuses[0]
		}
		if err != nil || len(statuses) > 1 || !slices.Contains(c.statuses, first) {
			t.Errorf("%s: %v %v, want one of %v\n%.200s", c.name, statuses, err, c.statuses, body)
		}
		if first >= 400 && !json.Valid(body) {
			t.Errorf("%s: %d with a body that is not JSON: %.200q", c.name, first, body)
		}
		for _, key := range []string{inferKey, "goroutine ", s.StateDir} {
			if bytes.Contains(body, []byte(key)) {
				t.Errorf("%s: the response holds %q: %.200s", c.name, key, body)
			}
		}
	}
	for _, c := range cases {
		all.Go(func() { check(c) })
	}
	all.Wait()
	serves()
	if *fuzzTime > 0 && !t.Failed() {
		fuzzWire(t, s, cases)
		serves()
	}
}

// fuzzWire sends mutations of cases for the time of -fuzz-wire.
func fuzzWire(t *testing.T, s *testenv.System, cases []wireCase) {
	const workers, more = 64, 512 << 20 // most connections wait for a response that cannot come
	seed := uint64(time.Now().UnixNano())
	before := rss(t, s.PID())
	var sent, peak atomic.Int64
	var mu sync.Mutex
	seen := map[int]int{}
	var all sync.WaitGroup
	for w := range workers {
		all.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(w)))
			for end := time.Now().Add(*fuzzTime); time.Now().Before(end) && !t.Failed(); {
				text := mutate(r, cases)
				statuses, body, err := exchange(s.URL, text, 3*time.Second)
				mu.Lock()
				for _, status := range statuses {
					seen[status]++
					if status >= 500 && status != 502 && status != 503 && status != 504 {
						t.Errorf("status %d: %.300s\nof %q", status, body, text)
					}
				}
				mu.Unlock()
				if err != nil {
					t.Errorf("the response is not HTTP: %v\nto %q", err, text)
				}
				if n := sent.Add(1); n%256 == 0 {
					if now := rss(t, s.PID()); now > peak.Load() {
						peak.Store(now)
					}
				}
			}
		})
	}
	all.Wait()
	if peak.Load() > before+more {
		t.Errorf("the gateway grew from %d MiB to %d MiB", before>>20, peak.Load()>>20)
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", s.PID())); err != nil {
		t.Errorf("the gateway has ended: %v", err)
	}
	t.Logf("seed %d: %d requests in %v, statuses %v, %d MiB before, %d MiB at most", seed, sent.Load(), *fuzzTime, seen, before>>20, peak.Load()>>20)
}

// mutate changes one request in one to four places.
func mutate(r *rand.Rand, cases []wireCase) string {
	pick := func() []byte { return []byte(cases[r.IntN(len(cases))].text) }
	b := pick()
	if len(b) > 64<<10 || r.IntN(3) == 0 {
		b = []byte(cases[0].text)
	}
	words := []string{
		"\r\n", "\n", "\r", "\x00", " ", ":", "\t", "%2e", "%00", "/", "//", "..", "?", "#", "\"", "{", "[", "}", "]", ",", "-1", "1e400", "\\ud800", "\xff",
		"Content-Length: 0\r\n", "Transfer-Encoding: chunked\r\n", "Connection: close\r\n", "Expect: 100-continue\r\n", "Upgrade: h2c\r\n", "Host: evil.example\r\n",
		"X-Priority: high\r\n", "X-Cold-Wait: fail\r\n", "GET ", "HEAD ", "OPTIONS ", "DELETE ", "HTTP/1.0", "/api/chat", "/v1/embeddings", "/v1/messages", "/upstream/m/", "/v1/load",
		`"stream":true,`, `"n":9999,`, `"max_tokens":99,`, `"grammar":"((((",`, `"tools":[{}],`, `"model":`,
	}
	for range 1 + r.IntN(4) {
		at := r.IntN(len(b) + 1)
		end := min(len(b), at+1+r.IntN(16))
		switch r.IntN(6) {
		case 0: // another byte
			if at < len(b) {
				b[at] = byte(r.IntN(256))
			}
		case 1: // a word
			b = slices.Insert(b, at, []byte(words[r.IntN(len(words))])...)
		case 2: // less
			b = slices.Delete(b, at, end)
		case 3: // twice
			b = slices.Insert(b, at, slices.Clone(b[at:end])...)
		case 4: // a word instead
			b = slices.Replace(b, at, end, []byte(words[r.IntN(len(words))])...)
		case 5: // the end of another request
			other := pick()
			if len(other) < 16<<10 {
				b = append(b[:at], other[min(at, len(other)):]...)
			}
		}
		if len(b) == 0 {
			b = []byte("\r\n")
		}
	}
	return string(b)
}
