package hf

import (
	"crypto/sha1"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"reveille/infra/catalog"
	"reveille/runner/weights"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestInvalidEndpointsAreRefused(t *testing.T) {
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
	page := s.fileURL(catalog.ParseCheckpoint("hf://o/r/d e/ü?#%.gguf@refs/pr/1"))
	if got := page.String(); got != "https://x/below/o/r/resolve/refs%2Fpr%2F1/d%20e/%C3%BC%3F%23%25.gguf" {
		t.Error(got)
	}
}

// Mirrors that answer in their own ways. Each redirects to a store at another origin.
func TestMirrorsAreRead(t *testing.T) {
	const content = "0123456789"
	whole := func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, content) }
	ranged := func(header string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			var from, to int
			if n, _ := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &from, &to); n < 2 {
				whole(w, r)
				return
			}
			w.Header().Set("Accept-Ranges", "none")
			w.Header().Set("Content-Range", fmt.Sprintf(header, from, to))
			w.WriteHeader(http.StatusPartialContent)
			_, _ = io.WriteString(w, content[from:to+1])
		}
	}
	for name, c := range map[string]struct {
		store  http.HandlerFunc
		ranges bool
		size   int64
	}{
		"without ranges": {whole, false, 10},
		"without a size": {func(w http.ResponseWriter, r *http.Request) {
			w.(http.Flusher).Flush()
			whole(w, r)
		}, false, -1},
		"ranges":               {ranged("bytes %d-%d/10"), true, 10},
		"ranges, spelled so":   {ranged("Bytes=%d-%d / 10"), true, 10},
		"ranges, without unit": {ranged("%d-%d/10"), true, 10},
		"ranges refused": {func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Range") != "" {
				w.Header().Set("Content-Range", "bytes */10")
				w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
				return
			}
			whole(w, r)
		}, false, 10},
		"ranges refused beyond the first": {func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Range") != "bytes=0-0" && r.Header.Get("Range") != "" {
				w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
				return
			}
			ranged("bytes %d-%d/10")(w, r)
		}, true, 10},
		"ranges without a size": {ranged("bytes %d-%d/*"), false, -1},
		"ranges, not said":      {ranged("none %d %d"), false, -1},
	} {
		t.Run(name, func(t *testing.T) {
			store := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodHead || r.Header.Get("Authorization") != "" {
					w.WriteHeader(http.StatusMethodNotAllowed)
					return
				}
				w.Header().Set("Etag", `"store's own"`)
				c.store(w, r)
			}))
			defer store.Close()
			mirror := httptest.NewServer(http.RedirectHandler(store.URL+"/x?secret", http.StatusFound))
			defer mirror.Close()
			s, err := New(mirror.URL, "TOKEN")
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			f, err := s.Stat(t.Context(), catalog.ParseCheckpoint("hf://o/r/x"))
			if err != nil || f.Size != c.size || f.NoRanges == c.ranges || f.Digest != (weights.Digest{}) {
				t.Fatalf("%+v %v", f, err)
			}
			cache, err := weights.Open(weights.Config{
				Dir: t.TempDir(), Margin: 1, Range: 3, Sources: map[catalog.Scheme]weights.Source{catalog.SchemeHF: s},
			})
			if err != nil {
				t.Fatal(err)
			}
			defer cache.Close()
			hold, err := cache.Hold(t.Context(), weights.Location{Checkpoint: catalog.ParseCheckpoint("hf://o/r/x")})
			if err != nil {
				t.Fatal(err)
			}
			defer hold.Release()
			if raw, err := os.ReadFile(hold.Path); string(raw) != content || err != nil {
				t.Errorf("%q %v", raw, err)
			}
		})
	}
}

// A file whose size nobody says stays within the room that there is, and is compared with the hub's checksum.
func TestFileOfUnknownSizeIsPulled(t *testing.T) {
	const content = "0123456789"
	var sum string
	mirror := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Linked-Etag", sum)
		w.(http.Flusher).Flush()
		_, _ = io.WriteString(w, content)
	}))
	defer mirror.Close()
	s, err := New(mirror.URL, "")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, c := range []struct {
		name, sum string
		room      int64
		want      error
	}{
		{"in order", fmt.Sprintf("%x", sha256.Sum256([]byte(content))), 10, nil},
		{"by Git", fmt.Sprintf("%x", sha1.Sum([]byte("blob 10\x00"+content))), 10, nil},
		{"another sum", strings.Repeat("0", 64), 10, weights.ErrDigest},
		{"without room", "", 9, weights.ErrFull},
	} {
		sum = c.sum
		cache, err := weights.Open(weights.Config{
			Dir: t.TempDir(), Margin: 1, Bytes: c.room, Sources: map[catalog.Scheme]weights.Source{catalog.SchemeHF: s},
		})
		if err != nil {
			t.Fatal(err)
		}
		at := weights.Location{Checkpoint: catalog.ParseCheckpoint("hf://o/r/x")}
		if err := cache.Pull(t.Context(), at); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		if got, size := cache.Progress(at); c.want == nil && (got != 10 || size != 10) {
			t.Errorf("%s: %d of %d bytes", c.name, got, size)
		}
		cache.Close()
	}
}

// A file that only points to the weights is named as such.
func TestLFSPointerIsRefused(t *testing.T) {
	mirror := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n")
	}))
	defer mirror.Close()
	s, err := New(mirror.URL, "")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	cache, err := weights.Open(weights.Config{Dir: t.TempDir(), Margin: 1, Sources: map[catalog.Scheme]weights.Source{catalog.SchemeHF: s}})
	if err != nil {
		t.Fatal(err)
	}
	defer cache.Close()
	err = cache.Pull(t.Context(), weights.Location{Checkpoint: catalog.ParseCheckpoint("hf://o/r/m.gguf")})
	if err == nil || !strings.Contains(err.Error(), "m.gguf is a Git LFS pointer") {
		t.Error(err)
	}
}

func TestInvalidHubResponsesAreErrors(t *testing.T) {
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		final  bool
	}{
		"turns round and round": {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.Path, http.StatusFound) }, false},
		"sends nowhere":         {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusFound) }, false},
		"leaves https":          {http.RedirectHandler("http://127.0.0.1:1/plain", http.StatusFound).ServeHTTP, true},
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
func TestInvalidListingsAreErrors(t *testing.T) {
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
