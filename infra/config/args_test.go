package config

import (
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
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
		parser, err := kong.New(&flags, Options("test", "A test.")...)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parser.Parse(Args(strings.Fields(line))); err != nil || flags.MaxLoadedModels != want || flags.Host != "a" {
			t.Errorf("%s: %q, %q, %v", line, flags.MaxLoadedModels, flags.Host, err)
		}
	}
	same := []string{"--max-loaded-models", "x", "--max-loaded-models"}
	if got := Args(same); !slices.Equal(got, same) {
		t.Errorf("%q became %q", same, got)
	}
}
