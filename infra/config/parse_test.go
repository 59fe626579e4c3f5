package config

import (
	"slices"
	"strings"
	"testing"
)

// A limit is written as the documents write it: a number, or a list in words of its own, -1 among them.
func TestMaxLoadedModelsWithoutQuotes(t *testing.T) {
	for line, want := range map[string]string{
		"--max-loaded-models -1 --host a":    "-1",
		"--max-loaded-models 5 2 4 --host a": "5 2 4",
		"--host a --max-loaded-models 1 -1":  "1 -1",
		"--max-loaded-models=3 --host a":     "3",
	} {
		var flags struct {
			MaxLoadedModels string
			Host            string
		}
		if _, err := Parse(&flags, "test", "A test.", strings.Fields(line)); err != nil || flags.MaxLoadedModels != want || flags.Host != "a" {
			t.Errorf("%s: %q, %q, %v", line, flags.MaxLoadedModels, flags.Host, err)
		}
	}
	for args, want := range map[string]string{
		"--idle -1s --host a":          "--idle=-1s --host a",
		"--ctx-size -1":                "--ctx-size=-1",
		"--llamacpp-args --no-mmap -x": "--llamacpp-args=--no-mmap -x",
		"--json --url x":               "--json --url x",
		"--url -v":                     "--url -v",
		"ps -- --idle -1s":             "ps -- --idle -1s",
		"--idle":                       "--idle",
		"--idle=-1s -1":                "--idle=-1s -1",
	} {
		if got := strings.Join(joinValues(strings.Fields(args)), " "); got != want {
			t.Errorf("%s: %s", args, got)
		}
	}
	same := []string{"--max-loaded-models", "x", "--max-loaded-models"}
	if got := joinLimits(same); !slices.Equal(got, same) {
		t.Errorf("%q became %q", same, got)
	}
}
