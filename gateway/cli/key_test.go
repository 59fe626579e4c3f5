package cli

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestAdminKeyStaysHere: the admin key is found without a flag and goes to this machine alone.
func TestAdminKeyStaysHere(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, AdminKeyFile), []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for at, sent := range map[string]bool{
		"http://127.0.0.1:8080": true, "http://localhost:8080": true, "http://[::1]:8080": true, "http://127.9.9.9": true,
		"http://gw.example": false, "http://localhost.evil.example": false, "http://localhost.": false, "http://evil.localhost": false, "http://127.0.0.1.nip.io": false,
		"http://127.0.0.1@evil.example": false, "http://0.0.0.0:8080": false, "http://192.0.2.1": false, "http://evil.example/127.0.0.1": false,
	} {
		u, err := url.Parse(at)
		if err != nil {
			t.Fatal(err)
		}
		if got := (Remote{StateDir: dir}).key(u); (got == "secret") != sent || !sent && got != "" {
			t.Errorf("%s: key %q", at, got)
		}
		if got := (Remote{StateDir: dir, APIKey: "mine"}).key(u); got != "mine" {
			t.Errorf("%s: key %q in place of the given one", at, got)
		}
	}
	t.Setenv("REVEILLE_ADMIN_KEY", "the gateway's")
	far := &url.URL{Scheme: "https", Host: "gw.example"}
	if got := (Remote{StateDir: dir}).key(far); got != "the gateway's" {
		t.Errorf("key %q in place of the environment's", got)
	}
	if got := (Remote{StateDir: dir, APIKey: "mine"}).key(far); got != "mine" {
		t.Errorf("key %q in place of the flag's", got)
	}
	t.Setenv("REVEILLE_ADMIN_KEY", "")
	if got := (Remote{StateDir: t.TempDir()}).key(&url.URL{Host: "localhost"}); got != "" {
		t.Errorf("without the file: %q", got)
	}
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the redirect was followed") }))
	defer other.Close()
	srv := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	defer srv.Close()
	err := Remote{URL: srv.URL, APIKey: "k", Timeout: time.Minute}.call(t.Context(), "POST", "/v1/load", map[string]string{}, nil)
	if err == nil || !strings.Contains(err.Error(), "307") {
		t.Error(err)
	}
}
