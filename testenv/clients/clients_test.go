package clients

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"reveille/testenv"
	"reveille/testenv/calls"
)

var try = flag.Bool("try", false, "install the clients into .cache/clients and try them, see make clients")

// patience is the longest that one client may take, and installing some.
const patience = 5 * time.Minute

// Agents write a file as the engine tells them, and see that it is written.
func TestAgents(t *testing.T) {
	s := start(t)
	node, aider := npm(t), pip(t, "aider.txt")
	for _, agent := range []struct {
		name string
		env  []string
		args []string // {} is the folder that it works in, {gateway} its gateway
	}{
		{
			"claude", []string{"ANTHROPIC_BASE_URL={gateway}", "ANTHROPIC_AUTH_TOKEN=none", "ANTHROPIC_MODEL=coder", "ANTHROPIC_DEFAULT_HAIKU_MODEL=coder", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1"},
			[]string{filepath.Join(node, ".bin", "claude"), "-p", "--allowedTools", "Write", "--", `<<call Write {"file_path": "{}/hello.txt", "content": "hello\n"}>>`},
		},
		{
			"codex", []string{"REVEILLE_KEY=none"},
			[]string{
				filepath.Join(node, ".bin", "codex"), "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox",
				"-c", "model_provider=reveille", "-c", "model=coder",
				"-c", `model_providers.reveille={name="Reveille", base_url="{gateway}/v1", env_key="REVEILLE_KEY", wire_api="responses"}`,
				`<<call exec_command {"cmd": "echo hello >hello.txt"}>>`,
			},
		},
		{
			"continue", nil,
			[]string{filepath.Join(node, ".bin", "cn"), "--config", "{}/continue.yaml", "--auto", "-p", `<<call Write {"filepath": "{}/hello.txt", "content": "hello\n"}>>`},
		},
		{
			"aider", []string{"OPENAI_API_BASE={gateway}/v1", "OPENAI_API_KEY=none"},
			[]string{
				filepath.Join(aider, "aider"), "--model", "openai/coder", "--no-show-model-warnings", "--edit-format", "whole", "--no-git", "--yes-always",
				"--no-check-update", "--analytics-disable", "--message", "<<say hello.txt\n```\nhello\n```\n>>", "hello.txt",
			},
		},
	} {
		t.Run(agent.name, func(t *testing.T) {
			dir := t.TempDir()
			put := strings.NewReplacer("{gateway}", s.URL, "{}/", dir+"/").Replace
			if err := os.WriteFile(filepath.Join(dir, "continue.yaml"), []byte(put(continueConfig)), 0o600); err != nil {
				t.Fatal(err)
			}
			var env, args []string
			for _, v := range agent.env {
				env = append(env, put(v))
			}
			for _, a := range agent.args {
				args = append(args, put(a))
			}
			out := run(t, dir, append(env, "HOME="+dir), args...)
			if got, err := os.ReadFile(filepath.Join(dir, "hello.txt")); err != nil || string(got) != "hello\n" {
				t.Errorf("the file holds %q (%v); the client said:\n%s", got, err, out)
			}
		})
	}
}

// continueConfig is the recipe of infra/docs/clients.md with this test's model.
const continueConfig = `
name: Reveille
version: 1.0.0
schema: v1
models:
  - name: Chat
    provider: openai
    model: coder
    apiBase: {gateway}/v1
    apiKey: none
    roles: [chat, edit, apply, summarize]
    capabilities: [tool_use]
`

// Libraries get what their scripts in testdata ask for.
func TestLibraries(t *testing.T) {
	s := start(t)
	node, litellm := npm(t), pip(t, "litellm.txt")
	wav, _ := testenv.Sound(1, 1)
	sound, picture := base64.StdEncoding.EncodeToString(wav), base64.StdEncoding.EncodeToString(testenv.Picture(1, 64, 64))
	for name, args := range map[string][]string{
		"ai sdk":            {"node", script(t, "ai_sdk.mjs"), s.URL},
		"openai-node":       {"node", script(t, "openai_node.mjs"), s.URL, sound, picture},
		"openai":            {filepath.Join(litellm, "python"), script(t, "openai_batches.py"), s.URL}, // LiteLLM depends on openai-python
		"anthropic":         {filepath.Join(litellm, "python"), script(t, "anthropic_batches.py"), s.URL},
		"litellm":           {filepath.Join(litellm, "python"), script(t, "litellm_story.py"), s.URL},
		"litellm's batches": {filepath.Join(litellm, "python"), script(t, "litellm_batches.py"), s.URL},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, filepath.Dir(node), []string{"HOME=" + t.TempDir(), "LITELLM_LOCAL_MODEL_COST_MAP=True"}, args...)
		})
	}
}

// start starts a gateway whose engines do as a message tells them.
func start(t *testing.T) *testenv.System {
	t.Helper()
	if !*try {
		t.Skip("takes minutes and downloads: make clients")
	}
	models := calls.Catalogue{"coder": "llm", "vec": "embedding", "rank": "reranking", "ear": "audio", "brush": "image"}
	return testenv.Start(t, testenv.Spec{Models: models.YAML(calls.LocalHost), Args: []string{"--max-loaded-models=-1", "--batch-dir=" + t.TempDir()}})
}

// run runs a client to its end and returns what it said.
func run(t *testing.T, dir string, env []string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.WaitDelay = time.Second
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%s: %v\n%s", filepath.Base(args[0]), err, out)
	}
	return string(out)
}

func script(t *testing.T, name string) string {
	t.Helper()
	return filepath.Join(testenv.Root(t), "testenv", "clients", "testdata", name)
}

// npm installs what testdata/package.json lists and returns the folder node_modules.
func npm(t *testing.T) string {
	t.Helper()
	return filepath.Join(installed(t, "package.json", func(dir string) {
		run(t, dir, nil, "npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error")
	}), "node_modules")
}

// pip installs what a file of testdata lists into an environment of its own and returns the folder of its programs.
func pip(t *testing.T, list string) string {
	t.Helper()
	return filepath.Join(installed(t, list, func(dir string) {
		run(t, dir, nil, "python3", "-m", "venv", "venv")
		run(t, dir, nil, filepath.Join(dir, "venv", "bin", "pip"), "install", "--quiet", "--requirement", list)
	}), "venv", "bin")
}

// installed returns the folder below .cache/clients where what a file of testdata lists is installed: one for each content of it,
// made whole or not at all.
func installed(t *testing.T, list string, install func(dir string)) string {
	t.Helper()
	text, err := os.ReadFile(script(t, list))
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(text)
	dir := filepath.Join(testenv.Root(t), ".cache", "clients", strings.TrimSuffix(list, filepath.Ext(list))+"-"+hex.EncodeToString(sum[:4]))
	whole := filepath.Join(dir, "whole")
	if _, err := os.Stat(whole); err == nil {
		return dir
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, list), text, 0o600); err != nil {
		t.Fatal(err)
	}
	if install(dir); t.Failed() {
		t.FailNow()
	}
	if err := os.WriteFile(whole, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}
