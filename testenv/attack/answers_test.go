package attack

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"reveille/testenv"
	"reveille/testenv/calls"
)

// TestLongChunkedAnswer: an answer that is not streamed, has no length and passes 16 MiB is cut where every client sees it:
// its chunks have no end. One with a length is refused before its head.
func TestLongChunkedAnswer(t *testing.T) {
	models := calls.Catalogue{"chunks": "llm, " + calls.Options("--garbage chunks"), "length": "llm, " + calls.Options("--garbage line")}
	s := testenv.Start(t, testenv.Spec{Models: models.YAML(calls.LocalHost), Args: []string{withKeys(t), "--max-loaded-models=2"}})
	const body = `{"model":"chunks","messages":[{"role":"user","content":"x"}]}`
	for _, version := range []string{"HTTP/1.1", "HTTP/1.0"} {
		for _, path := range []string{"/v1/chat/completions", "/upstream/chunks/v1/chat/completions"} {
			resp, answer, err := raw(t, s.URL, fmt.Sprintf("POST %s %s\r\nHost: localhost\r\n%s\r\nContent-Length: %d\r\n\r\n%s", path, version, bearer(ownerKey), len(body), body))
			if !errors.Is(err, io.ErrUnexpectedEOF) || resp.StatusCode != 200 || len(answer) < 1<<20 || len(answer) > 16<<20 {
				t.Errorf("%s %s: %v with %d bytes, %v", version, path, resp, len(answer), err)
			}
		}
	}
	refused(t, "an answer whose length is known", call(t, "POST", s.URL+"/v1/chat/completions", strings.Replace(body, "chunks", "length", 1), bearer(ownerKey)), 400)
}
