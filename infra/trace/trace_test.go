package trace

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

const valid = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func TestParse(t *testing.T) {
	for header, want := range map[string]bool{
		valid: true, valid[:54] + "0": true,
		"cc" + valid[2:]: true, "cc" + valid[2:] + "-more": true, // a later version
		"": false, valid[:54]: false, valid + "-more": false, "cc" + valid[2:] + "more": false, "ff" + valid[2:]: false,
		strings.ToUpper(valid): false, strings.Replace(valid, "0af", "0ag", 1): false, strings.Replace(valid, "-b7", "_b7", 1): false,
		"00-00000000000000000000000000000000-b7ad6b7169203331-01": false, "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01": false,
		"00-0af7651916cd43dd8448eb211c80319--b7ad6b7169203331-01": false,
	} {
		c, ok := Parse([]byte(header))
		if ok != want {
			t.Errorf("%q: %v", header, ok)
		}
		if got := string(c.Append(nil)); ok && got[3:] != header[3:size] {
			t.Errorf("%q becomes %q", header, got)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(valid))
	f.Fuzz(func(t *testing.T, header []byte) {
		c, ok := Parse(header)
		if again, ok2 := Parse(c.Append(nil)); ok && (!ok2 || again != c) {
			t.Errorf("%q becomes %+v", header, again)
		}
	})
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
		s := tr.Begin([]byte(valid), "a request", time.Time{})
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

// A trace that its sender does not record is not recorded, as W3C's flag asks.
func TestNotSampled(t *testing.T) {
	tr, err := New("http://127.0.0.1:1", "gateway", "", "", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if s := tr.Begin([]byte(valid[:54]+"0"), "a request", time.Now()); s != nil {
		t.Errorf("%+v", s)
	}
	if s := tr.Continue(nil, "a request", time.Now()); s != nil {
		t.Errorf("%+v", s)
	}
}

func TestAddress(t *testing.T) {
	for address, want := range map[string]string{
		"http://collector:4318": "http://collector:4318/v1/traces", "https://c/": "https://c/v1/traces", "http://c/otlp/v1/traces": "http://c/otlp/v1/traces",
		"collector:4318": "", "ftp://c": "", "http://": "", "http://user:password@c": "", ":": "",
	} {
		tr, err := New(address, "", "", "", nil)
		if (err != nil) != (want == "") || tr != nil && tr.url != want {
			t.Errorf("%s: %v, %v", address, tr, err)
		}
	}
}

// A full queue drops spans and blocks nobody; a collector that fails gets the spans that end after its pause; Run sends the
// rest when it ends.
func TestCollectorFails(t *testing.T) {
	bodies := make(chan string, 10)
	statuses := make(chan int, 10)
	statuses <- http.StatusServiceUnavailable
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		bodies <- string(body)
		select {
		case status := <-statuses:
			w.WriteHeader(status)
		default:
		}
	}))
	defer server.Close()
	tr, err := New(server.URL, "gateway", "v1", "", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for range queued + 10 {
		tr.Begin(nil, "early", time.Now()).End(time.Now())
	}
	if n := tr.dropped.Load(); n != 10 {
		t.Errorf("%d spans are dropped of 10 too many", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { tr.Run(ctx); close(done) }()
	first := <-bodies
	cancel()
	<-done
	total := 0
	close(bodies)
	for body := range bodies {
		total += spansIn(t, body)
	}
	if n := spansIn(t, first); n != batch || total != queued-batch {
		t.Errorf("%d spans in the first request, %d in the others", n, total)
	}
}

func spansIn(t *testing.T, body string) int {
	t.Helper()
	var m struct {
		ResourceSpans []struct {
			ScopeSpans []struct{ Spans []jsonSpan }
		}
	}
	if err := json.Unmarshal([]byte(body), &m); err != nil || len(m.ResourceSpans) != 1 || len(m.ResourceSpans[0].ScopeSpans) != 1 {
		t.Fatalf("%v: %.300s", err, body)
	}
	return len(m.ResourceSpans[0].ScopeSpans[0].Spans)
}
