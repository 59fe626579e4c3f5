package catalog

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestExplain(t *testing.T) {
	c, warnings, err := Parse("models.yaml", []byte(documented+`
  - {model: gemma, schedule: "30 7 * * sat", for: 90m}
`))
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := c.Explain(&b, warnings); err != nil {
		t.Fatal(err)
	}
	got := strings.ReplaceAll(b.String(), c.Version, "VERSION") // changes with the shipped recipes
	golden := filepath.Join("testdata", "explain.txt")
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	if err := c.Explain(brokenPipe{}, nil); !errors.Is(err, os.ErrClosed) {
		t.Error(err)
	}
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, os.ErrClosed }
