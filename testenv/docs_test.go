package testenv

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	testInText = regexp.MustCompile("`(?:([a-z][a-z0-9/]*)/)?((?:Test|Fuzz|Benchmark)[A-Z][A-Za-z0-9_]*)`")
	testInCode = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)[A-Z][A-Za-z0-9_]*)\(`)
)

// TestDocumentsNameRealTests: each `folder/TestName` and `TestName` of the documents is in the code, and the README leads to
// the security promises.
func TestDocumentsNameRealTests(t *testing.T) {
	root := Root(t)
	inCode := map[string][]string{} // name → folders
	for _, dir := range []string{"gateway", "runner", "warmer", "infra", "terraform", "testenv"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
				return err
			}
			src, err := os.ReadFile(path)
			folder, _ := filepath.Rel(root, filepath.Dir(path))
			for _, m := range testInCode.FindAllSubmatch(src, -1) {
				inCode[string(m[1])] = append(inCode[string(m[1])], filepath.ToSlash(folder))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	docs, _ := filepath.Glob(filepath.Join(root, "infra", "docs", "*.md"))
	adrs, _ := filepath.Glob(filepath.Join(root, "infra", "adr", "*.md"))
	named := 0
	for _, doc := range append(docs, adrs...) {
		text, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range testInText.FindAllStringSubmatch(string(text), -1) {
			named++
			folder, name := m[1], m[2]
			if folders := inCode[name]; len(folders) == 0 || folder != "" && !slices.Contains(folders, folder) {
				t.Errorf("%s names %s, which is in %v", filepath.Base(doc), m[0], folders)
			}
		}
	}
	if named == 0 {
		t.Error("no document names a test")
	}
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(readme), "](infra/docs/security.md)") {
		t.Error("README.md does not link to infra/docs/security.md")
	}
}
