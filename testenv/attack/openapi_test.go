package attack

import (
	"context"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"reveille/gateway/api"
	"reveille/gateway/httpapi"
	"reveille/testenv"
	"reveille/testenv/calls"
)

var allRequests = flag.Bool("all-requests", false, "try every boundary of every schema of /openapi.json (minutes)")

// Requests that schemathesis makes up from /openapi.json, valid and not, get no status and no content type that the document
// does not name, no response of another form, and no error of the
// gateway's own.
func TestOpenAPI(t *testing.T) {
	models := calls.Catalogue{"chat": "llm", "vec": "embedding", "rank": "reranking", "ear": "audio", "voice": "tts", "brush": "image"}
	s := testenv.Start(t, testenv.Spec{
		Models: models.YAML("defaults: {models: {llm: chat, embedding: vec, reranking: rank, audio: ear, tts: voice, image: brush}}\n" + calls.LocalHost),
		Args:   []string{withKeys(t), "--max-loaded-models=-1", "--store-responses=1h", "--batch-dir=" + t.TempDir()},
	})
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "schemathesis.toml"), []byte(schemathesis), 0o600); err != nil {
		t.Fatal(err)
	}
	phases := "fuzzing"
	if *allRequests {
		phases = "coverage,fuzzing"
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, testenv.Python(t), "-c", "import schemathesis.cli; schemathesis.cli.schemathesis()", "run", s.URL+"/openapi.json",
		"--header", bearer(ownerKey), "--phases="+phases, "--max-examples=3", "--generation-deterministic", "--continue-on-failure", "--no-color", "--request-timeout=60",
		"--checks=not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,unsupported_method",
		"--exclude-path-regex="+strings.Join(passedOver(), "|"))
	cmd.WaitDelay = time.Second
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// schemathesis is its configuration. Of 5xx it accepts 501, of routes that are not served, and 503, of models that load or
// are unloaded by another request.
const schemathesis = `
[parameters]
"path.id" = "chat"

[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", 501, 503]
`

// passedOver returns patterns of paths that are not tried: streams that do not end, what an engine answers by itself, and second
// places of a route.
func passedOver() (patterns []string) {
	for _, r := range httpapi.Routes() {
		path := regexp.QuoteMeta(r.Path) + "$"
		switch {
		case strings.HasPrefix(r.Name, "logs_stream"), r.Name == "ui_stream", r.Name == "upstream":
			patterns = append(patterns, "^(/v1)?"+path)
		case r.Mount == api.Prefixed|api.Bare:
			patterns = append(patterns, "^"+path)
		}
	}
	return patterns
}
