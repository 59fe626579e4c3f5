package attack

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"reveille/testenv"
	"reveille/testenv/calls"
	"reveille/testenv/kit"
)

// TestQuotesInEngineLogs has an engine log what clients sent, in several lines and in one that is too long: managers read in
// /logs what the engine says itself.
func TestQuotesInEngineLogs(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s := testenv.Start(t, testenv.Spec{Args: []string{withKeys(t)}, Models: fmt.Sprintf(`
recipes:
  hostile:
    command: [[%q], ["{host}"]]
    env: {%s: "{host}:{port}"}
    types: llm
    devices: cpu
    health_path: /health
    checkpoint: any
    log_line: '^engine: '
    redact: ['bad text: .*']
models:
  m: {type: llm, recipe: hostile, checkpoint: x}
%s`, self, hostileEngine, calls.LocalHost)})
	const private = "canary-quote-3c81"
	for _, text := range []string{
		"engine: bad text: " + private + "\n" + private + "\n\n  " + private, "engine: bad text: " + strings.Repeat(private+" ", 500), "engine: goes on",
	} {
		body, _ := json.Marshal(map[string]any{"model": "m", "messages": []any{map[string]string{"role": "user", "content": "log " + text}}})
		if a := call(t, "POST", s.URL+"/v1/chat/completions", string(body), bearer(inferKey)); !a.OK() {
			t.Fatal(a)
		}
	}
	var log string
	kit.Becomes(t, "the last line in the log", true, func() bool {
		log = string(call(t, "GET", s.URL+"/logs", "", bearer(manageKey)).Body)
		return strings.Contains(log, "engine: goes on")
	})
	if strings.Contains(log, private) || strings.Count(log, "engine: [redacted]") != 2 {
		t.Errorf("the log is\n%s", log)
	}
}
