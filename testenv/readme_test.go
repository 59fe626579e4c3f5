package testenv

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestMetricsPage: infra/docs/metrics.md describes each metric. (infra/config compares the page of the settings.)
func TestMetricsPage(t *testing.T) {
	root := Root(t)
	text, err := os.ReadFile(filepath.Join(root, "infra", "docs", "metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range metricNames(t, root) {
		if !regexp.MustCompile("(?m)^\\| `" + name + "[`{].* \\| .+ \\|$").Match(text) {
			t.Errorf("infra/docs/metrics.md does not describe %s", name)
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
