package testenv

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestReadmeNamesEverySettingAndMetric: who reads the README finds each variable that --help shows, and each metric.
func TestReadmeNamesEverySettingAndMetric(t *testing.T) {
	root := Root(t)
	text, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	variable := regexp.MustCompile(`REVEILLE_[A-Z0-9_]+`)
	for _, cmd := range [][]string{{"gateway", "run"}, {"gateway", "serve"}, {"gateway", "lambda"}, {"gateway", "ps"}, {"runner"}, {"warmer"}} {
		help, err := exec.Command(Build(t, cmd[0]), append(cmd[1:], "--help")...).Output()
		if err != nil {
			t.Fatalf("%v --help: %v", cmd, err)
		}
		found := variable.FindAllString(string(help), -1)
		if len(found) == 0 {
			t.Fatalf("%v --help names no variable", cmd)
		}
		names = append(names, found...)
	}
	names = append(names, metricNames(t, root)...)
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if !regexp.MustCompile(name + `\b`).Match(text) {
			t.Errorf("README.md does not name %s", name)
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
