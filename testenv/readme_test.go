package testenv

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"reveille/infra/meter"
)

// TestMetricsPage: infra/docs/metrics.md describes each metric in the words of /metrics. (infra/config compares the page of
// the settings.)
func TestMetricsPage(t *testing.T) {
	root := Root(t)
	text, err := os.ReadFile(filepath.Join(root, "infra", "docs", "metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	meanings := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(reveille_[a-z0-9_]+)[^|]*` \\| (.*) \\|$").FindAllSubmatch(text, -1) {
		meanings[string(row[1])] = strings.ReplaceAll(string(row[2]), "`", "")
	}
	names := append(metricNames(t, root), slices.Collect(maps.Keys(meanings))...) // those in the page may be put together in the source
	for _, name := range names {
		if help := meter.Help(name); meanings[name] != help {
			t.Errorf("infra/docs/metrics.md says of %s: %q, and /metrics: %q", name, meanings[name], help)
		}
	}
}

// metricNames are the names of metrics in the programs' sources.
func metricNames(t *testing.T, root string) []string {
	t.Helper()
	metric := regexp.MustCompile("[\"`](reveille_[a-z0-9_]*[a-z0-9])[\"`{]")
	var out []string
	for _, dir := range []string{"gateway", "runner", "warmer", "infra"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			src, err := os.ReadFile(path)
			for _, m := range metric.FindAllSubmatch(src, -1) {
				out = append(out, string(m[1]))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(out) == 0 {
		t.Fatal("no metric was found in the sources")
	}
	return out
}
