package trace

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

const valid = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

// A valid context is continued; without one, with a broken one and with one whose sender does not record it, as W3C's
// flag says, a request begins a trace or is not recorded.
func TestBegin(t *testing.T) {
	tr, err := New("http://127.0.0.1:1", "gateway", "", "", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for header, want := range map[string]struct{ begun, continued bool }{
		valid: {true, true}, "cc" + valid[2:]: {true, true}, // a later version
		"": {true, false}, "ff" + valid[2:]: {true, false}, valid[:54]: {true, false}, strings.ToUpper(valid): {true, false},
		valid[:54] + "0": {false, false},
	} {
		s, c := tr.Start([]byte(header), "a", time.Now()), tr.Continue([]byte(header), "a", time.Now())
		if (s != nil) != want.begun || (c != nil) != want.continued {
			t.Errorf("%q: begun %v, continued %v, want %v", header, s != nil, c != nil, want)
		}
		sent := string(s.AppendContext(nil))
		if s != nil && (len(sent) != len(valid) || !strings.HasPrefix(sent, "00-"+s.Trace()+"-") || !strings.HasSuffix(sent, "-01")) {
			t.Errorf("%q is passed on as %q", header, sent)
		}
		if want.continued && (s.Trace() != valid[3:35] || strings.Contains(sent, valid[36:52])) {
			t.Errorf("%q becomes %q", header, sent)
		}
	}
}

// Off, nothing is recorded and nothing is allocated.
func TestOff(t *testing.T) {
	tr, err := New("", "gateway", "", "", nil)
	if tr != nil || err != nil {
		t.Fatal(tr, err)
	}
	tr.Run(t.Context())
	var buf [64]byte
	n := testing.AllocsPerRun(100, func() {
		s := tr.Start([]byte(valid), "a request", time.Time{})
		c := s.Child(Client, "another", time.Time{})
		c.Text("key", "value")
		c.Number("key", 1)
		c.Fail()
		if len(c.AppendContext(buf[:0])) != 0 || s.Trace() != "" {
			t.Error("a context without a trace")
		}
		c.End(time.Time{})
		s.End(time.Time{})
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Addresses of collectors: with OTLP's own path where there is none. Run sends what is left when it ends, and a
// collector that fails delays nothing.
func TestCollector(t *testing.T) {
	for _, address := range []string{"collector:4318", "ftp://c", "http://", "http://user:password@c", ":"} {
		if _, err := New(address, "", "", "", nil); err == nil {
			t.Errorf("%s is taken", address)
		}
	}
	for path, want := range map[string]string{"": "/v1/traces", "/": "/v1/traces", "/otlp/v1/traces": "/otlp/v1/traces"} {
		for _, status := range []int{200, 503, 302} {
			asked := make(chan string, 10)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				asked <- strings.ToLower(r.URL.Path + " " + string(body)) // digits of ids may be capitals
				w.WriteHeader(status)
			}))
			defer server.Close()
			tr, err := New(server.URL+path, "gateway", "v1", "here", slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			s := tr.Start([]byte(valid), "a request", time.Now())
			s.Text("text", strings.Repeat("x", maxText+1)+"\xff")
			s.Fail()
			s.End(time.Now())
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			tr.Run(ctx)
			got := <-asked
			if !strings.HasPrefix(got, want+" ") {
				t.Errorf("%q: asked %.30s", path, got)
			}
			for _, part := range []string{"service.name", "gateway", "v1", "here", "a request", valid[3:35], valid[36:52], `"` + strings.Repeat("x", maxText) + `"`} {
				if !strings.Contains(got, part) {
					t.Errorf("no %q in %.2000s", part, got)
				}
			}
		}
	}
}
