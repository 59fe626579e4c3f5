package sleep

import (
	"bufio"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"reveille/testenv"
	"reveille/testenv/calls"
	"reveille/testenv/kit"
)

// held is a program that waits until the file gate is there and then is the stand-in engine.
func held(t *testing.T, gate string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "held")
	script := "#!/bin/sh\nwhile [ ! -e " + gate + " ]; do sleep 0.02; done\nexec " + testenv.Standin(t) + ` "$@"` + "\n"
	if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// A waiting stream is told by comments how far its model is, and the status route says the same meanwhile. The machine
// and the engine go on only once they were told of, however fast they are.
func TestStagesAreTold(t *testing.T) {
	t.Parallel()
	p := newPool(t, 1, woken, "--commit-after=10ms", "--keepalive=10ms")
	c, base, gate := client(t), p.gateways[0].URL, filepath.Join(p.dir, "gate")
	if st := status(t, c, base); st["value"] != "unloaded" || st["host"] != nil {
		t.Errorf("before: %v", st)
	}
	s := &stream{t: t, c: c, base: base}
	s.open()
	for _, at := range []struct {
		state string
		then  func()
	}{
		{"waking", func() { p.boot(held(t, gate)) }},
		{"loading", func() { p.write("gate", "") }},
	} {
		s.until(": loading model=m state=" + at.state + " host=box waited=")
		if st := status(t, c, base); st["value"] != at.state || st["host"] != "box" || st["waited"] == nil {
			t.Errorf("while the stream is told that its model is %s the status is %v", at.state, st)
		}
		at.then()
	}
	s.until("data: {")
	s.until("data: [DONE]")
	if s.state != "unloaded" {
		t.Errorf("X-Model-State is %q", s.state)
	}
	kit.Eventually(t, "the status says that the model is loaded", func() bool {
		st := status(t, c, base)
		return st["value"] == "loaded" && st["host"] == "box" && st["waited"] == nil
	})
}

// stream is a chat with model m that is read line by line.
type stream struct {
	t     *testing.T
	c     *http.Client
	base  string
	state string // of the model when the response began
	lines *bufio.Reader
}

// open asks for a stream.
func (s *stream) open() {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.base+"/v1/chat/completions", strings.NewReader(calls.ChatBody("m", 4, true)))
	if err != nil {
		s.t.Fatal(err)
	}
	resp, err := s.c.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = resp.Body.Close() })
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(resp.Body)
		s.t.Fatalf("%s %s", resp.Status, body)
	}
	s.state, s.lines = resp.Header.Get("X-Model-State"), bufio.NewReader(resp.Body)
}

// until reads up to a line that begins so. Before it there may be nothing but comments and empty lines, and data where
// data is wanted.
func (s *stream) until(prefix string) {
	s.t.Helper()
	for {
		line, err := s.lines.ReadString('\n')
		switch {
		case err != nil:
			s.t.Fatalf("%v before a line %q", err, prefix)
		case strings.HasPrefix(line, prefix):
			return
		case line == "\n", strings.HasPrefix(line, ": loading model=m state="), line == ": ping\n":
		case strings.HasPrefix(prefix, "data: ") && strings.HasPrefix(line, "data: {"):
		default:
			s.t.Fatalf("%q before a line %q", line, prefix)
		}
	}
}
