package drivers

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"reveille/infra/catalog"
)

// The token of the Kubernetes API stays with its server: a redirect is an error, and wakes nothing.
func TestKubernetesRedirect(t *testing.T) {
	followed := ""
	other := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		followed = r.Method + " with " + r.Header.Get("Authorization")
		fmt.Fprint(w, `{"kind":"Scale"}`)
	}))
	defer other.Close()
	asked := ""
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = r.Header.Get("Authorization")
		http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
	}))
	defer server.Close()
	path := filepath.Join(t.TempDir(), "config")
	config := `{"apiVersion":"v1","kind":"Config","current-context":"a","contexts":[{"name":"a","context":{"cluster":"a","user":"a"}}],` +
		`"clusters":[{"name":"a","cluster":{"insecure-skip-tls-verify":true,"server":"` + server.URL + `"}}],"users":[{"name":"a","user":{"token":"canary"}}]}`
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBECONFIG", path)
	d, host := Remote(nil)[catalog.DriverKubernetes], catalog.Host{Name: "h", Workload: "statefulset/h"}
	if err := d.Wake(t.Context(), host); err == nil || asked != "Bearer canary" || followed != "" {
		t.Errorf("%v: the server was asked with %q, the other: %s", err, asked, followed)
	}
}
