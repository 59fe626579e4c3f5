package attack

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"reveille/testenv"
)

// fakeEngines makes a folder of programs that write their arguments to a file, one a line, and fail.
func fakeEngines(t *testing.T, names ...string) (dir, argv string) {
	t.Helper()
	dir = t.TempDir()
	argv = filepath.Join(t.TempDir(), "argv")
	if err := os.WriteFile(argv, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	script := "#!/bin/sh\nfor a in \"$0\" \"$@\"; do printf '%s\\n' \"$a\"; done >>" + argv + "\necho 'unrecognized arguments' >&2\nexit 1\n"
	for _, name := range names {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir, argv
}

// TestArguments tries to put words on engines' command lines through every route that takes options or registers models.
func TestArguments(t *testing.T) {
	engines, argv := fakeEngines(t, "vllm", "whisper-server", "sd-server", "koko")
	const models = `models:
  big: {type: llm, recipe: vllm, device: cpu, checkpoint: "lab/big", options: {vllm_args: "--chat-template /owner.jinja"}}
  plain: {type: llm, recipe: standin, device: cpu}
  ears: {type: audio, recipe: mine, checkpoint: "x"}
  llama: {type: llm, recipe: llamacpp, device: cpu, checkpoint: .cache/models/tiny-gemma.gguf}
recipes:
  mine: {inherit: whispercpp, command: [whisper-server, "{model}"], checkpoint: any}
hosts:
  local: {driver: local, devices: [cpu]}
`
	weights := t.TempDir()
	if err := os.Symlink("/etc", filepath.Join(weights, "etc")); err != nil {
		t.Fatal(err)
	}
	s := testenv.Start(t, testenv.Spec{Models: models, Args: []string{withKeys(t), "--engines-dir", engines, "--register-allow", weights, "--register-allow", "hf://lab"}})
	manage := bearer(manageKey)
	post := func(path, body string, args ...any) {
		t.Helper()
		what := path + " " + fmt.Sprintf(body, args...)
		refused(t, what, call(t, "POST", s.URL+path, fmt.Sprintf(body, args...), manage, "Content-Type: application/json"), 400, 403, 404, 422)
	}
	quoted := func(s string) string {
		text, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}

	// The attack as it was made, and its siblings.
	for _, checkpoint := range []string{
		"--trust-remote-code", "-v", "--", "-", "attacker/repo", "/etc/passwd", weights + "/etc/passwd", weights + "/../../etc/passwd", weights,
		"./" + weights, "hf://attacker/repo", "hf://-x/repo", "s3://bucket/key", "file:///etc/passwd", "http://127.0.0.1/x", "hf://lab/../attacker/x", "\x00--x", "a\n--x",
	} {
		for _, path := range []string{"/v1/models/register", "/v1/pull"} {
			post(path, `{"model_name":"user.evil","checkpoint":%s,"recipe":"vllm","device":"cpu","recipe_options":{"vllm_args":"attacker/repo"}}`, quoted(checkpoint))
			post(path, `{"model_name":"user.evil","checkpoint":%s,"recipe":"vllm","device":"cpu"}`, quoted(checkpoint))
			post(path, `{"model_name":"user.evil","checkpoints":{"main":%s},"recipe":"vllm","device":"cpu"}`, quoted(checkpoint))
			post(path, `{"model_name":"user.evil","checkpoint":"hf://lab/a/a.gguf","checkpoints":{"mmproj":%s},"recipe":"llamacpp","device":"cpu"}`, quoted(checkpoint))
		}
	}
	post("/v1/models/register", `{"model_name":"user.evil","checkpoint":"hf://lab/a/a","recipe":"mine"}`)
	post("/v1/models/register", `{"model_name":"user.evil","checkpoint":"hf://lab/a/a","recipe":"kokoro","labels":["tts"],"recipe_options":{"voices":"/etc/shadow"}}`)
	for _, name := range []string{"-v", "--host", "user.-v/..", "user.a b", "user.a\n--x"} {
		post("/v1/models/register", `{"model_name":%s,"checkpoint":"hf://lab/a/a","recipe":"vllm","device":"cpu","labels":[]}`, quoted(strings.Repeat(name, 2)))
	}
	post("/v1/models/register", `{"model_name":"user.evil","checkpoint":"hf://lab/a/a","recipe":"vllm","device":"cpu","labels":["--x"]}`)

	// No arguments are taken over the API, harmless or not, through any route that takes options.
	words := map[string][]string{
		"vllm": {
			"attacker/repo", "--trust-remote-code", "--trust_remote_code=1", `\-\-trust-remote-code`, "\u2013\u2013trust-remote-code",
			"-tp 1 --worker-cls x", "--chat-template /owner.jinja", "--enforce-eager", "-tp 2", "-tp\u00002", "'", " ",
		},
		"llamacpp": {"-md /x", "--props", "--lora /x", "--log-file /x", "-np 1 /x", "-np 2", "--no-mmap"},
	}
	for engine, list := range words {
		model := map[string]string{"vllm": "big", "llamacpp": "llama"}[engine]
		for _, text := range list {
			text := quoted(text)
			for _, more := range []string{"", `,"merge_args":true,"save_options":true`} {
				post("/v1/load", `{"model_name":%q,"%s_args":%s%s}`, model, engine, text, more)
			}
			post("/v1/models/"+model+"/options", `{"%s_args":%s}`, engine, text)
			post("/v1/models/register", `{"model_name":"user.evil","checkpoint":"hf://lab/a/a.gguf","recipe":%q,"device":"cpu","recipe_options":{"%s_args":%s}}`, engine, engine, text)
			if engine == "llamacpp" {
				post("/v1/internal/set", `{"llamacpp":{"args":%s}}`, text)
			}
		}
	}
	for _, options := range []string{`{"vllm_args":"--trust-remote-code"}`, `{"num_ctx":"--x"}`, `{"args":"--need-file /etc/passwd"}`} {
		call(t, "POST", s.URL+"/api/chat", `{"model":"big","stream":false,"messages":[{"role":"user","content":"x"}],"options":`+options+`}`, bearer(inferKey))
	}

	// Those of the models file arrive, and typed options.
	call(t, "POST", s.URL+"/v1/load", `{"model_name":"big","n_parallel":3,"vllm_args":"","merge_args":true}`, manage)
	text, err := os.ReadFile(argv)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\n--max-num-seqs\n3\n", "\n--chat-template\n/owner.jinja\n"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the engine's arguments are\n%s\nwant\n%s", text, want)
		}
	}
	for _, word := range []string{"attacker", "trust", "plugin", "passwd", "evil", "worker", "-cls", "endpoint"} {
		if strings.Contains(string(text), word) {
			t.Errorf("%q reached an engine:\n%s", word, text)
		}
	}
	for _, key := range []string{"", inferKey} { // who may not manage, registers nothing
		a := call(t, "POST", s.URL+"/v1/models/register", `{"model_name":"user.ok","checkpoint":"hf://lab/a/a.gguf","recipe":"llamacpp"}`, bearer(key))
		refused(t, "register with key "+key, a, 401, 403)
	}
	// A pool without a GPU takes the backend that its hosts have.
	a := call(t, "POST", s.URL+"/v1/models/register", `{"model_name":"user.ok","checkpoint":"hf://lab/a/a.gguf","recipe":"llamacpp","recipe_options":{"n_parallel":2}}`, manage)
	if a.Status != 200 || !strings.Contains(string(a.Body), `"llamacpp_backend":"cpu"`) {
		t.Errorf("register: %v", a)
	}
}
