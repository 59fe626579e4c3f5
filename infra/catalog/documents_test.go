package catalog

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/goccy/go-yaml"
)

var (
	yamlBlock = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```")
	jsonBlock = regexp.MustCompile("(?ms)^```json\n(.*?)^```")
)

// TestDocumentsYAML: each models file, or section of one, that the documents show is valid, and all their other YAML
// and JSON is YAML and JSON. A file that only shows hosts is read with one model.
func TestDocumentsYAML(t *testing.T) {
	root := filepath.Join("..", "..")
	files, _ := filepath.Glob(filepath.Join(root, "infra", "docs", "*.md"))
	models := 0
	for _, file := range append(files, filepath.Join(root, "README.md"), filepath.Join(root, "terraform", "README.md")) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range yamlBlock.FindAllStringSubmatch(string(text), -1) {
			var top map[string]any
			if err := yaml.Unmarshal([]byte(block[1]), &top); err != nil {
				t.Errorf("%s: %v\n%s", filepath.Base(file), err, block[1])
				continue
			}
			if _, other := top["models"].([]any); other || top["models"] == nil && top["hosts"] == nil {
				continue
			}
			models++
			example := block[1]
			if top["models"] == nil {
				example += "models: {m: {recipe: standin, device: cpu}}\n"
			}
			if _, _, err := Parse(filepath.Base(file), []byte(example)); err != nil {
				t.Errorf("%v\n%s", err, example)
			}
		}
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range jsonBlock.FindAllSubmatch(text, -1) {
			if !json.Valid(block[1]) {
				t.Errorf("%s: not JSON: %s", filepath.Base(file), block[1])
			}
		}
	}
	if models < 2 {
		t.Errorf("%d models files", models)
	}
}
