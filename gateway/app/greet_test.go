package app

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The first lines name an address that a browser on this machine opens.
func TestGreeting(t *testing.T) {
	models := filepath.Join(t.TempDir(), "models.yaml")
	if err := os.WriteFile(models, []byte("models:\n  m: {type: llm, recipe: standin, device: cpu}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for addr, want := range map[string]string{
		"[::]:8080": "http://localhost:8080", "0.0.0.0:80": "http://localhost:80", "127.0.0.1:1": "http://127.0.0.1:1",
		"[::1]:1": "http://[::1]:1", "192.168.1.2:8080": "http://192.168.1.2:8080",
	} {
		var s RunSettings
		s.Models = models
		var out bytes.Buffer
		s.greet(&out, addr, "")
		if !strings.HasPrefix(out.String(), "\nReveille serves 1 model at "+want+"/v1\n\n  The pool, live: "+want+"/ui\n") {
			t.Errorf("%s: %s", addr, &out)
		}
	}
}
