package lambda

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"go.uber.org/goleak"

	function "reveille/testenv/lambda"
)

// role is the variable that makes this test binary the program of a function.
const role = "GATEWAY_LAMBDA_TEST"

func TestMain(m *testing.M) {
	if os.Getenv(role) != "" {
		l := NewListener()
		server := &http.Server{Handler: http.HandlerFunc(breaks)}
		go func() { _ = server.Serve(l) }() // ends with the process
		New(l, &recorder{}, slog.New(slog.DiscardHandler)).Run(context.Background())
	}
	goleak.VerifyTestMain(m)
}

// breaks is a gateway whose answers end in the middle, but for one path.
func breaks(w http.ResponseWriter, r *http.Request) {
	fmt.Fprint(w, "some")
	if r.URL.Path != "/whole" {
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}

// recorder is a Gateway that notes what happens, in order.
type recorder struct {
	mu    sync.Mutex
	steps []string
	cut   func()
}

func (r *recorder) note(step string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.steps = append(r.steps, step)
}

func (r *recorder) Begin(context.Context) { r.note("begin") }
func (r *recorder) Flush()                { r.note("settle") }
func (r *recorder) Cut() {
	r.note("cut")
	if r.cut != nil {
		r.cut()
	}
}

// told returns the steps so far.
func (r *recorder) told() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.steps, " ")
}

// serve starts a gateway that is only a handler, and the function before it.
func serve(t *testing.T, h http.HandlerFunc) (*Function, *recorder) {
	t.Helper()
	l := NewListener()
	server := &http.Server{Handler: h}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close(); <-ended })
	r := &recorder{}
	return New(l, r, slog.New(slog.DiscardHandler)), r
}

func event(method, path string) *events.LambdaFunctionURLRequest {
	ev := &events.LambdaFunctionURLRequest{RawPath: path}
	ev.RequestContext.HTTP.Method = method
	return ev
}

func TestRequest(t *testing.T) {
	type seen struct {
		method, uri, host, body string
		header                  http.Header
	}
	got := make(chan seen, 1)
	f, _ := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- seen{r.Method, r.RequestURI, r.Host, string(body), r.Header}
	})
	for name, c := range map[string]struct {
		ev   events.LambdaFunctionURLRequest
		want seen
	}{
		"text": {
			events.LambdaFunctionURLRequest{
				RawPath: "/v1/chat/completions", RawQueryString: "a=1&b=%20", Body: `{"a":1}`,
				Headers: map[string]string{"host": "u.example", "content-type": "application/json", "x-forwarded-for": "192.0.2.1", "connection": "close", "content-length": "99"},
				Cookies: []string{"a=1", "b=2"},
			},
			seen{"POST", "/v1/chat/completions?a=1&b=%20", "u.example", `{"a":1}`, http.Header{
				"Content-Type": {"application/json"}, "X-Forwarded-For": {"192.0.2.1"}, "Cookie": {"a=1; b=2"}, "Content-Length": {"7"}, "Connection": {"close"},
			}},
		},
		"bytes": {
			events.LambdaFunctionURLRequest{RawPath: "/v1/audio/transcriptions", Body: "/wA=", IsBase64Encoded: true, Headers: map[string]string{"user-agent": "u"}},
			seen{"POST", "/v1/audio/transcriptions", "lambda", "\xff\x00", http.Header{"Content-Length": {"2"}, "User-Agent": {"u"}, "Connection": {"close"}}},
		},
		"a path that is escaped":   {events.LambdaFunctionURLRequest{RawPath: "/v1/models/org%2Frepo"}, seen{method: "POST", uri: "/v1/models/org%2Frepo", host: "lambda"}},
		"a path that is not":       {events.LambdaFunctionURLRequest{RawPath: "/v1/models/a b ü"}, seen{method: "POST", uri: "/v1/models/a%20b%20%C3%BC", host: "lambda"}},
		"a path that cannot be so": {events.LambdaFunctionURLRequest{RawPath: "/100%"}, seen{method: "POST", uri: "/100%25", host: "lambda"}},
		"no path":                  {events.LambdaFunctionURLRequest{}, seen{method: "POST", uri: "/", host: "lambda"}},
	} {
		c.ev.RequestContext.HTTP.Method = "POST"
		resp, err := f.Handle(t.Context(), &c.ev)
		if err != nil {
			t.Fatal(name, err)
		}
		_ = resp.Close()
		s := <-got
		if s.method != c.want.method || s.uri != c.want.uri || s.host != c.want.host || s.body != c.want.body {
			t.Errorf("%s: %+v, want %+v", name, s, c.want)
		}
		if c.want.header != nil && !maps.EqualFunc(s.header, c.want.header, slices.Equal) {
			t.Errorf("%s: headers %v, want %v", name, s.header, c.want.header)
		}
	}
	if _, err := f.Handle(t.Context(), &events.LambdaFunctionURLRequest{Body: "?", IsBase64Encoded: true}); err == nil {
		t.Error("a body that is not base64 was taken")
	}
}

// FuzzRequest makes requests of whatever Lambda may send.
func FuzzRequest(f *testing.F) {
	f.Add([]byte(`{"rawPath":"/a","rawQueryString":"b","headers":{"host":"h","x":"y"},"cookies":["a=b"],"body":"aGk=","isBase64Encoded":true,"requestContext":{"http":{"method":"PUT"}}}`))
	f.Add([]byte(`{"rawPath":"//%zz? #","headers":{"\n":"\r","":""}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var ev events.LambdaFunctionURLRequest
		if json.Unmarshal(text, &ev) != nil {
			return
		}
		if req, err := requestOf(t.Context(), &ev); err == nil && (req.URL.Host != "lambda" || !strings.HasPrefix(req.URL.RequestURI(), "/")) {
			t.Errorf("%q goes to %s", text, req.URL)
		}
	})
}

// TestStream: an answer's head and each of its events are out before the next is made; the gateway flushes before the end.
func TestStream(t *testing.T) {
	next := make(chan struct{})
	f, steps := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Add("Set-Cookie", "a=1")
		w.Header().Add("Set-Cookie", "b=2")
		w.Header().Add("Vary", "Origin")
		w.Header().Add("Vary", "Accept")
		w.Header().Set("Content-Type", "text/event-stream")
		w.WriteHeader(http.StatusAccepted)
		out := http.NewResponseController(w)
		_ = out.Flush()
		for i := range 3 {
			<-next
			fmt.Fprintf(w, "data: %d\n\n", i)
			_ = out.Flush()
		}
		<-next
	})
	resp, err := f.Handle(t.Context(), event(http.MethodPost, "/"))
	if err != nil {
		t.Fatal(err)
	}
	if got := resp.Headers; resp.StatusCode != http.StatusAccepted || got["Vary"] != "Origin, Accept" || got["Content-Type"] != "text/event-stream" || len(resp.Cookies) != 2 || got["Transfer-Encoding"]+got["Connection"]+got["Content-Length"] != "" {
		t.Error(resp.StatusCode, got, resp.Cookies)
	}
	lines := bufio.NewReader(resp.Body)
	for i := range 3 {
		next <- struct{}{}
		if line, err := lines.ReadString('\n'); err != nil || line != fmt.Sprintf("data: %d\n", i) {
			t.Fatal(line, err)
		}
		_, _ = lines.ReadString('\n')
	}
	if got := steps.told(); got != "begin" {
		t.Error("before the end:", got)
	}
	next <- struct{}{}
	if _, err := lines.ReadByte(); err != io.EOF {
		t.Error(err)
	}
	if got := steps.told(); got != "begin settle" {
		t.Error("at the end:", got)
	}
	_ = resp.Close()
	if got := steps.told(); got != "begin settle" {
		t.Error("after the end:", got)
	}
}

func TestBrokenAnswer(t *testing.T) {
	f, steps := serve(t, breaks)
	for path, broken := range map[string]bool{"/whole": false, "/": true} {
		resp, err := f.Handle(t.Context(), event(http.MethodGet, path))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		var b *brokenAnswer
		if string(body) != "some" || errors.As(err, &b) != broken {
			t.Errorf("%s: %q %v", path, body, err)
		}
		_ = resp.Close()
	}
	if got := steps.told(); got != "begin settle begin settle" {
		t.Error(got)
	}
}

// TestBrokenAnswerInLambda: the Runtime API is told in the trailers, and a client of the function URL does not take what it
// got for the whole.
func TestBrokenAnswerInLambda(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	f := function.Start(t, function.Spec{Binary: self, Env: []string{role + "=1"}})
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	get := func(path string) (string, error) {
		resp, err := client.Get(f.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		return string(body), err
	}
	if body, err := get("/"); err == nil {
		t.Errorf("%q looks whole", body)
	}
	if got := f.Failures(); len(got) != 1 || got[0].Type != "brokenAnswer" || !strings.Contains(got[0].Message, "unexpected EOF") {
		t.Error(got)
	}
	if body, err := get("/whole"); body != "some" || err != nil || f.Environments() != 1 {
		t.Errorf("the next answer of the same process: %q %v, %d environments", body, err, f.Environments())
	}
}

// TestClose: an answer that nobody reads to its end looks to the gateway like a client that left.
func TestClose(t *testing.T) {
	left := make(chan error, 1)
	f, steps := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		for {
			if _, err := w.Write(make([]byte, 4096)); err != nil {
				left <- err
				return
			}
		}
	})
	resp, err := f.Handle(t.Context(), event(http.MethodGet, "/"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(resp.Body, make([]byte, 10)); err != nil {
		t.Fatal(err)
	}
	_ = resp.Close()
	select {
	case <-left:
	case <-time.After(60 * time.Second):
		t.Fatal("the gateway writes on")
	}
	if got := steps.told(); got != "begin settle" {
		t.Error(got)
	}
}

// TestCut: shortly before the event's time is over the gateway ends what is open, and its last words still come.
func TestCut(t *testing.T) {
	cut := make(chan struct{})
	f, steps := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		_ = http.NewResponseController(w).Flush()
		<-cut
		fmt.Fprint(w, "last words")
	})
	steps.cut = func() { close(cut) }
	ctx, cancel := context.WithTimeout(t.Context(), cutBefore+100*time.Millisecond)
	defer cancel()
	resp, err := f.Handle(ctx, event(http.MethodGet, "/"))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Close()
	if body, err := io.ReadAll(resp.Body); string(body) != "last words" || err != nil {
		t.Errorf("%q %v", body, err)
	}
	if got := steps.told(); got != "begin cut settle" {
		t.Error(got)
	}
}

func TestGatewayThatIsGone(t *testing.T) {
	l := NewListener()
	_ = l.Close()
	_ = l.Close()
	steps := &recorder{}
	if _, err := New(l, steps, slog.New(slog.DiscardHandler)).Handle(t.Context(), event(http.MethodGet, "/")); err == nil {
		t.Error("an answer of nobody")
	}
	if _, err := l.Accept(); err == nil {
		t.Error("a connection after Close")
	}
	if got := steps.told(); got != "begin settle" {
		t.Error(got)
	}
}
