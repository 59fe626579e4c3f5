package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestCheckEngines: programs are found, asked for their version and their flags. Their help may be that of a
// subcommand.
func TestCheckEngines(t *testing.T) {
	dir := t.TempDir()
	bin, packages := filepath.Join(dir, "bin"), filepath.Join(dir, "lib", "python3.12", "site-packages", "infinity_emb-0.0.78.dist-info")
	for _, d := range []string{bin, packages} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for name, script := range map[string]string{
		"whisper-server": `echo "error: unknown argument: --version"
			echo "  -m FNAME, --model FNAME  --host HOST --port PORT --inference-path PATH -l LANG, --language LANG"; exit 1`,
		"sd-server": `echo "stable-diffusion.cpp version master-5, commit x"; exit 3`,
		"local-tts": `[ "$1" = --version ] && echo 1.0.0 || echo "--host HOST --port PORT"`,
		"vllm": `case "$*" in
			"--version") echo "Triton is disabled."; echo 0.32.0+cpu ;;
			"serve --help") echo "see --help=all" ;;
			"serve --help=all") echo "--host --port --served-model-name --tensor-parallel-size --runner --max-model-len" \
				"--max-num-batched-tokens --max-num-seqs --gpu-memory-utilization --kv-cache-memory-bytes" ;;
			esac`,
		"infinity_emb": "# of a Python environment\nfalse && \\\nfrom infinity_emb.cli import cli\nexit 0",
	} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", "/usr/bin:/bin")
	var out bytes.Buffer
	if err := (&Check{Engines: true, EnginesDir: []string{bin}}).Run(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`whispercpp +\S+/whisper-server +unknown +5 of 6 known, not --no-gpu`, `sd-cpp +\S+/sd-server +unknown +its help names none`,
		`local-tts +\S+/local-tts +1.0.0 +all 2 known`, `vllm +\S+/vllm +0.32.0\+cpu +all 10 known`,
		`infinity +\S+/infinity_emb +0.0.78 +its help names none`, `kokoro +koko not found +- +-`,
	} {
		if !regexp.MustCompile(`(?m)^` + want + `$`).MatchString(out.String()) {
			t.Errorf("no line is %q in\n%s", want, &out)
		}
	}
	out.Reset()
	file := filepath.Join(dir, "models.yaml")
	if err := os.WriteFile(file, []byte("models: {m: {type: tts, recipe: local-tts, checkpoint: /nowhere}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	err := (&Check{File: file, Engines: true, EnginesDir: []string{bin}}).Run(t.Context(), &out)
	if got := out.String(); err != nil || strings.Contains(got, "vllm") || !strings.Contains(got, "1.0.0") {
		t.Errorf("with a models file: %v\n%s", err, &out)
	}
}
