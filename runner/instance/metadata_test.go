package instance_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"reveille/runner/instance"
	"reveille/testenv/imds"
)

func metadata(t *testing.T, endpoint string) *instance.Metadata {
	m := instance.NewMetadata(endpoint)
	t.Cleanup(m.Close)
	return m
}

func TestMetadataIsRead(t *testing.T) {
	s := imds.Start(t, map[string]string{imds.InstanceID: "i-0123456789abcdef0\n"})
	m := metadata(t, s.URL+"/")
	want := func(path, text string, there bool) {
		t.Helper()
		if got, found, err := m.Get(t.Context(), path); got != text || found != there || err != nil {
			t.Errorf("%s: %q %v %v", path, got, found, err)
		}
	}
	want(imds.InstanceID, "i-0123456789abcdef0", true)
	want(imds.Target, "", false)
	want(imds.InstanceID, "i-0123456789abcdef0", true)
	if n := s.Tokens(); n != 1 {
		t.Errorf("%d tokens for three reads", n)
	}
	s.Expire()
	want(imds.InstanceID, "i-0123456789abcdef0", true)
	if n := s.Tokens(); n != 2 {
		t.Errorf("%d tokens after the first ran out", n)
	}
	for _, status := range []int{http.StatusInternalServerError, http.StatusForbidden} {
		s.Break(status)
		if _, _, err := m.Get(t.Context(), imds.InstanceID); err == nil {
			t.Errorf("status %d was passed over", status)
		}
	}
	s.Break(0)
	want(imds.InstanceID, "i-0123456789abcdef0", true)
}

// What is no metadata service makes an error: one that has no tokens, that leads elsewhere, that refuses its own
// tokens, that is not there.
func TestMissingMetadataServiceIsAnError(t *testing.T) {
	serve := func(h http.HandlerFunc) string {
		server := httptest.NewServer(h)
		t.Cleanup(server.Close)
		return server.URL
	}
	token := func(then http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPut {
				_, _ = w.Write([]byte("t"))
				return
			}
			then(w, r)
		}
	}
	for name, at := range map[string]string{
		"no tokens":   serve(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }),
		"empty token": serve(func(http.ResponseWriter, *http.Request) {}),
		"redirect":    serve(token(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) })),
		"own tokens":  serve(token(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) })),
		"not there":   "http://127.0.0.1:1",
		"no URL":      "http://[::1",
		"broken reply": serve(token(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "9")
			_, _ = w.Write([]byte("i"))
		})),
	} {
		if text, there, err := metadata(t, at).Get(t.Context(), imds.InstanceID); err == nil || there || !strings.HasPrefix(err.Error(), "instance metadata: ") {
			t.Errorf("%s: %q %v %v", name, text, there, err)
		}
	}
}
