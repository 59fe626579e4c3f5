package lambda_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/events"
	runtime "github.com/aws/aws-lambda-go/lambda"

	"reveille/testenv/lambda"
)

// role is the variable that makes this test binary the program of a function.
const role = "LAMBDA_TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(role) {
	case "":
		os.Exit(m.Run())
	case "echo":
		runtime.Start(func(_ context.Context, event json.RawMessage) (json.RawMessage, error) {
			if string(event) == `"fail"` {
				return nil, errors.New("as asked")
			}
			return event, nil
		})
	case "url":
		runtime.Start(serveURL)
	case "ended":
		os.Exit(3)
	case "hangs":
		runtime.Start(func(ctx context.Context) error { select {} })
	}
}

// broken is an answer that breaks off.
type broken struct{ error }

// serveURL streams what the path asks for.
func serveURL(_ context.Context, r events.LambdaFunctionURLRequest) (*events.LambdaFunctionURLStreamingResponse, error) {
	out := &events.LambdaFunctionURLStreamingResponse{
		StatusCode: http.StatusTeapot, Headers: map[string]string{"X-Path": r.RawPath + "?" + r.RawQueryString, "X-Pid": fmt.Sprint(os.Getpid())}, Cookies: []string{"a=1", "b=2"},
	}
	in, w := io.Pipe()
	out.Body = in
	go func() {
		switch r.RawPath {
		case "/echo":
			fmt.Fprintf(w, "%s %s %v %q %q", r.RequestContext.HTTP.Method, r.Headers["x-one"], r.IsBase64Encoded, r.Body, r.Cookies)
		case "/breaks":
			fmt.Fprint(w, "some")
			_ = w.CloseWithError(broken{errors.New("broke off")})
			return
		case "/dies":
			fmt.Fprint(w, "some")
			time.Sleep(50 * time.Millisecond) // what was written may come or not
			os.Exit(1)
		case "/long":
			for range 1000 {
				fmt.Fprint(w, strings.Repeat("x", 10_000))
			}
		}
		_ = w.Close()
	}()
	return out, nil
}

func start(t *testing.T, name string, change ...func(*lambda.Spec)) *lambda.Function {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s := lambda.Spec{Name: name, Binary: self, Env: []string{role + "=" + name}}
	for _, c := range change {
		c(&s)
	}
	return lambda.Start(t, s)
}

func TestInvoke(t *testing.T) {
	f := start(t, "echo")
	for _, event := range []string{`{"a":1}`, `"b"`} {
		if r, err := f.Invoke([]byte(event)); err != nil || r.Failed || string(r.Payload) != event {
			t.Errorf("%s: %s %v %v", event, r.Payload, r.Failed, err)
		}
	}
	if r, err := f.Invoke([]byte(`"fail"`)); err != nil || !r.Failed || !strings.Contains(string(r.Payload), "as asked") {
		t.Errorf("%s %v %v", r.Payload, r.Failed, err)
	}
	if n := f.Environments(); n != 1 {
		t.Errorf("%d environments for one event after the other", n)
	}
	if got := f.Failures(); len(got) != 1 || got[0] != (lambda.Failure{Type: "errorString", Message: "as asked"}) {
		t.Error(got)
	}
	if _, err := f.Invoke(make([]byte, 7<<20)); err == nil {
		t.Error("an event of 7 MB was taken")
	}
}

func TestInvokeOfBadPrograms(t *testing.T) {
	if _, err := start(t, "ended").Invoke([]byte(`1`)); err == nil || !strings.Contains(err.Error(), "Runtime.ExitError") {
		t.Error(err)
	}
	f := start(t, "hangs", func(s *lambda.Spec) { s.Timeout = 300 * time.Millisecond })
	if _, err := f.Invoke([]byte(`1`)); err == nil || len(f.Failures()) == 0 || f.Failures()[0].Type != "Sandbox.Timedout" {
		t.Error(err, f.Failures())
	}
}

// fetch makes a request and returns the answer with its body.
func fetch(t *testing.T, req *http.Request, err error) (*http.Response, string, error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp, string(body), err
}

func TestURL(t *testing.T) {
	f := start(t, "url")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.URL+"/echo?q=%20x", strings.NewReader("text"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Add("X-One", "1")
	req.Header.Add("X-One", "2")
	req.Header.Set("Cookie", "k=v; l=w")
	resp, body, err := fetch(t, req, nil)
	if want := `POST 1,2 false "text" ["k=v" "l=w"]`; err != nil || body != want || resp.StatusCode != http.StatusTeapot {
		t.Errorf("%s %s %v, want %s", resp.Status, body, err, want)
	}
	if resp.Header.Get("X-Path") != "/echo?q=%20x" || len(resp.Header.Values("Set-Cookie")) != 2 {
		t.Error(resp.Header)
	}
	stat := "/proc/" + resp.Header.Get("X-Pid") + "/stat"
	for deadline := time.Now().Add(60 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		text, err := os.ReadFile(stat)
		if err == nil && strings.Contains(string(text), ") T ") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the process is not frozen after its answer: %s %v", text, err)
		}
	}
	req, err = http.NewRequestWithContext(t.Context(), http.MethodPost, f.URL+"/echo", strings.NewReader("\xff\x00"))
	if _, body, err := fetch(t, req, err); err != nil || body != `POST  true "/wA=" []` {
		t.Error(body, err)
	}
	for _, c := range [][2]string{{"/breaks", "broken"}, {"/dies", "Runtime.TruncatedResponse"}} {
		path, kind := c[0], c[1]
		before := len(f.Failures())
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.URL+path, nil)
		resp, body, err := fetch(t, req, err)
		if err == nil || resp.StatusCode != http.StatusTeapot {
			t.Errorf("%s: %s %q looks whole", path, resp.Status, body)
		}
		if got := f.Failures()[before:]; len(got) != 1 || got[0].Type != kind {
			t.Errorf("%s: %v", path, got)
		}
	}
	if n := f.Environments(); n != 1 {
		t.Errorf("%d environments before one has ended", n)
	}
	req, err = http.NewRequestWithContext(t.Context(), http.MethodGet, f.URL+"/echo", nil)
	if resp, _, err := fetch(t, req, err); err != nil || resp.StatusCode != http.StatusTeapot || f.Environments() != 2 {
		t.Errorf("after the end of an environment: %v %v, %d environments", resp.Status, err, f.Environments())
	}
}

// TestURLOfAClientThatLeaves: its answer is taken to the end, and the environment serves the next.
func TestURLOfAClientThatLeaves(t *testing.T) {
	f := start(t, "url", func(s *lambda.Spec) { s.Concurrency = 1 })
	ctx, leave := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.URL+"/long", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(resp.Body).ReadByte(); err != nil {
		t.Fatal(err)
	}
	leave()
	resp.Body.Close()
	for deadline := time.Now().Add(60 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, f.URL+"/echo", nil)
		resp, _, err := fetch(t, req, err)
		if err == nil && resp.StatusCode == http.StatusTeapot {
			break
		}
		if resp.StatusCode != http.StatusTooManyRequests || time.Now().After(deadline) {
			t.Fatal(resp.Status, err)
		}
	}
	if f.Environments() != 1 || len(f.Failures()) > 0 {
		t.Error(f.Environments(), f.Failures())
	}
}
