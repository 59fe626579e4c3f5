package hf

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"reveille/infra/catalog"
	"reveille/runner/weights"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestNew(t *testing.T) {
	for _, endpoint := range []string{"", "https://hf-mirror.example", "http://127.0.0.1:1/below/"} {
		if _, err := New(endpoint, ""); err != nil {
			t.Errorf("%q: %v", endpoint, err)
		}
	}
	for _, endpoint := range []string{"huggingface.co", "ftp://x", "https://", "https://me:SECRET@x", "https://x?a=SECRET", "https://x#a", "http://[", "\n"} {
		if _, err := New(endpoint, ""); err == nil || strings.Contains(err.Error(), "SECRET") {
			t.Errorf("%q: %v", endpoint, err)
		}
	}
	s, err := New("https://x/below", "")
	if err != nil {
		t.Fatal(err)
	}
	page := s.page(catalog.ParseCheckpoint("hf://o/r/d e/ü?#%.gguf@refs/pr/1"))
	if got := page.String(); got != "https://x/below/o/r/resolve/refs%2Fpr%2F1/d%20e/%C3%BC%3F%23%25.gguf" {
		t.Error(got)
	}
}

// A mirror that only passes files on, without telling sizes and sums of its own.
func TestPlainMirror(t *testing.T) {
	store := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Etag", `"store's own"`)
		_, _ = io.WriteString(w, "0123456789"[:min(10, 10*len(r.Method)/3)]) // and no ranges
	}))
	defer store.Close()
	between := httptest.NewServer(http.RedirectHandler(store.URL+"/x?secret", http.StatusFound))
	defer between.Close()
	mirror := httptest.NewServer(http.RedirectHandler(between.URL+"/x?secret", http.StatusFound))
	defer mirror.Close()
	s, err := New(mirror.URL, "")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	f, err := s.Stat(t.Context(), catalog.ParseCheckpoint("hf://o/r/x"))
	if err != nil || f.Size != 10 || f.Digest != (weights.Digest{}) {
		t.Fatalf("%+v %v", f, err)
	}
	body, err := f.Open(t.Context(), 0, 10)
	if err != nil {
		t.Fatal(err)
	}
	if raw, err := io.ReadAll(body); string(raw) != "0123456789" || err != nil {
		t.Errorf("%q %v", raw, err)
	}
	_ = body.Close()
	if _, err := f.Open(t.Context(), 5, 5); !errors.Is(err, weights.ErrChanged) || strings.Contains(err.Error(), "secret") {
		t.Errorf("a store without ranges: %v", err)
	}
}

func TestStrangeHubs(t *testing.T) {
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		final  bool
	}{
		"turns round and round": {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.Path, http.StatusFound) }, false},
		"sends nowhere":         {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusFound) }, false},
		"leaves https":          {http.RedirectHandler("http://127.0.0.1:1/plain", http.StatusFound).ServeHTTP, true},
		"tells no size":         {func(w http.ResponseWriter, _ *http.Request) { w.(http.Flusher).Flush() }, false},
		"is busy":               {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTooManyRequests) }, false},
		"is not logged in to":   {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			hub := httptest.NewTLSServer(c.answer)
			defer hub.Close()
			s, err := New(hub.URL, "TOKEN")
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			s.client.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: hub.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs}
			_, err = s.Stat(t.Context(), catalog.ParseCheckpoint("hf://o/r/x"))
			var e *weights.Error
			if err == nil || (errors.As(err, &e) && e.Kind != weights.ErrFetch) != c.final || strings.Contains(err.Error(), "TOKEN") {
				t.Errorf("%v", err)
			}
		})
	}
}

// A listing whose next page is at another origin, or whose pages never end.
func TestStrangeListings(t *testing.T) {
	pages := 0
	next := ""
	hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		pages++
		w.Header().Set("Link", fmt.Sprintf(`<%s>; rel="next"`, next))
		fmt.Fprintf(w, `[{"type":"directory","path":"d"},{"type":"file","path":"d/%d","size":1,"oid":"x"}]`, pages)
	}))
	defer hub.Close()
	s, err := New(hub.URL, "")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	next = "http://127.0.0.1:1/"
	if _, err := s.List(t.Context(), catalog.ParseCheckpoint("hf://o/r")); err == nil {
		t.Error("followed to another origin")
	}
	next = "?more"
	files, err := s.List(t.Context(), catalog.ParseCheckpoint("hf://o/r/d"))
	if err != nil || len(files) != weights.MaxFiles+1 {
		t.Errorf("%d files, %v", len(files), err)
	}
}

func TestCancelled(t *testing.T) {
	s, err := New("http://127.0.0.1:1", "")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Stat(ctx, catalog.ParseCheckpoint("hf://o/r/x")); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
