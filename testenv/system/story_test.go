package system

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"reveille/testenv"
	"reveille/testenv/calls"
	"reveille/testenv/kit"
	"reveille/testenv/worlds"
)

// A day on the real engine, through the official openai client: one process runs all cases in order over
// one stack, each case is a subtest.
func TestStory(t *testing.T) {
	testenv.Engines(t)
	s := testenv.Start(t, testenv.Spec{Models: "testenv/local/models.yaml"})
	cases(t, "story.py", s.URL)
	t.Run("commands_of_the_documents", func(t *testing.T) { documents(t, s) })
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

// The same of the official anthropic client.
func TestAnthropic(t *testing.T) {
	testenv.Engines(t)
	cases(t, "anthropic_story.py", testenv.Start(t, testenv.Spec{Models: "testenv/local/models.yaml"}).URL)
}

// The same of the Responses API.
func TestResponses(t *testing.T) {
	testenv.Engines(t)
	cases(t, "responses_story.py", testenv.Start(t, testenv.Spec{Models: "testenv/local/models.yaml"}).URL)
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

// documents runs the lines of the documents' sh blocks: the README's, and then those of infra/docs while one llm is busy and
// another waits for its slot, so that each line has something to show.
func documents(t *testing.T, s *testenv.System) {
	runLines(t, s, filepath.Join(testenv.Root(t), "README.md"))
	w := &world{worlds.Of(t, calls.Catalogue{"gemma-3-270m": "llm", "gemma-3-270m-twin": "llm"}, s)}
	busy := w.Chat("gemma-3-270m", 3500)
	_, leave := w.Later("gemma-3-270m-twin")
	kit.Becomes(t, "queue", []string{"gemma-3-270m-twin"}, w.Queued)
	defer busy.Leave()
	defer leave()
	files, err := filepath.Glob(filepath.Join(testenv.Root(t), "infra", "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	runLines(t, s, files...)
}

// runLines runs the lines as they stand in the files, but for addresses and the state folder. Each must succeed and
// print something.
func runLines(t *testing.T, s *testenv.System, files ...string) {
	t.Helper()
	here := strings.NewReplacer("http://127.0.0.1:8080", s.URL, ".reveille/", s.StateDir+"/")
	ran := 0
	for _, file := range files {
		for _, line := range shellLines(t, file) {
			ran++
			ctx, cancel := context.WithTimeout(t.Context(), kit.Patience)
			out, err := exec.CommandContext(ctx, "sh", "-c", here.Replace(line)).CombinedOutput()
			cancel()
			text := strings.TrimSpace(string(out))
			failed := slices.ContainsFunc([]string{"ERR", "NOAUTH", "WRONGTYPE", `{"error"`}, func(p string) bool { return strings.HasPrefix(text, p) })
			empty := text == "" && !strings.Contains(line, "mm:") // no medium was sent: the encoder cache is empty
			if err != nil || empty || failed {
				t.Errorf("%s: %s: %v, %q", filepath.Base(file), line, err, text)
			}
		}
	}
	if ran == 0 {
		t.Errorf("no sh block in %v", files)
	}
}

// shellLines are the lines of a document's sh blocks.
func shellLines(t *testing.T, file string) []string {
	t.Helper()
	text, err := os.ReadFile(file)
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
		} else if block == "sh" && line != "" {
			lines = append(lines, line)
		}
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
