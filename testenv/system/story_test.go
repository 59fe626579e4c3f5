package system

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"reveille/testenv"
)

// The story on the real engine, told by the official openai client: one process runs all cases in order over
// one stack, each case is a subtest.
func TestStory(t *testing.T) {
	testenv.Engines(t)
	s := testenv.Start(t, testenv.Spec{Models: "testenv/local/models.yaml"})
	cases(t, "story.py", s.URL)
	t.Run("redis-cli_of_the_README", func(t *testing.T) { readme(t, s) })
	family := s.Processes()
	if !slices.ContainsFunc(family, func(p testenv.Process) bool { return strings.Contains(p.Args, "llama-server") }) {
		t.Errorf("no llama-server among %v", family)
	}
	s.Kill() // the real engine dies with the gateway, too
}

// The same of the official ollama client.
func TestOllama(t *testing.T) {
	testenv.Engines(t)
	cases(t, "ollama_story.py", testenv.Start(t, testenv.Spec{Models: "testenv/local/models.yaml"}).URL)
}

// cases runs a script, each case of it as a subtest.
func cases(t *testing.T, name, url string) {
	for _, o := range script(t, name, url) {
		t.Run(o.Case, func(t *testing.T) {
			t.Logf("%.1f s", o.Seconds)
			if o.Error != "" {
				t.Error(o.Error)
			}
		})
	}
}

// readme runs the README's redis-cli lines as they stand there, but for the port and the state folder, while one llm is
// busy and another waits for its slot: then each has something to show.
func readme(t *testing.T, s *testenv.System) {
	lines := redisLines(t)
	w := &world{System: s, t: t, rdb: s.Redis(), types: map[string]string{"gemma-3-270m": "llm", "gemma-3-270m-twin": "llm"}}
	busy := w.chat("gemma-3-270m", 3500)
	_, leave := w.later("gemma-3-270m-twin")
	eventually(t, "queue", []string{"gemma-3-270m-twin"}, w.queued)
	defer busy.leave()
	defer leave()
	_, port, err := net.SplitHostPort(s.RedisAddr)
	if err != nil {
		t.Fatal(err)
	}
	here := strings.NewReplacer("-p 6380", "-p "+port, ".reveille/", s.StateDir+"/")
	exports := ""
	for _, line := range lines {
		if strings.HasPrefix(line, "export ") {
			exports += line + "\n"
			continue
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		cmd := exec.CommandContext(ctx, "sh", "-c", here.Replace(exports+line))
		out, err := cmd.CombinedOutput()
		cancel()
		if text := strings.TrimSpace(string(out)); err != nil || text == "" || strings.HasPrefix(text, "ERR") || strings.HasPrefix(text, "NOAUTH") || strings.HasPrefix(text, "WRONGTYPE") {
			t.Errorf("%s: %v, %q", line, err, text)
		}
	}
}

// redisLines are the lines of the README's sh blocks that run redis-cli or say its password.
func redisLines(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(testenv.Root(t), "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	block := ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if rest, fence := strings.CutPrefix(line, "```"); fence {
			if block != "" {
				rest = ""
			}
			block = rest
		} else if block == "sh" && (strings.Contains(line, "redis-cli ") || strings.Contains(line, "REDISCLI_AUTH=")) {
			lines = append(lines, line)
		}
	}
	if len(lines) == 0 {
		t.Fatal("README.md has no redis-cli line in a sh block")
	}
	return lines
}

// outcome is the line that a script of testdata prints for each of its cases.
type outcome struct {
	Case    string
	Seconds float64
	Error   string
}

// script runs a Python script of testdata to its end and returns its cases.
func script(t *testing.T, name string, args ...string) []outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, testenv.Python(t), append([]string{"-B", filepath.Join("testdata", name)}, args...)...)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	var list []outcome
	for lines := bufio.NewReader(out); ; {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			break
		}
		var o outcome
		if err := errors.Join(err, json.Unmarshal(line, &o)); err != nil {
			t.Errorf("%s printed %q: %v", name, line, err)
			break
		}
		list = append(list, o)
	}
	if err := cmd.Wait(); err != nil || len(list) == 0 {
		t.Errorf("%s: %v, %d cases\n%s", name, err, len(list), errs.String())
	}
	return list
}
