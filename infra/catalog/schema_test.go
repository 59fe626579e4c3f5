package catalog

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/jsonschema-go/jsonschema"
)

// TestSchema: files that load fit the schema, and files with a mistake that it can detect do not.
func TestSchema(t *testing.T) {
	var s jsonschema.Schema
	if err := json.Unmarshal([]byte(Schema), &s); err != nil {
		t.Fatal(err)
	}
	schema, err := s.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	fits := func(text string) error {
		var v any
		if err := yaml.Unmarshal([]byte(text), &v); err != nil {
			t.Fatal(err)
		}
		return schema.Validate(v)
	}
	good := []string{documented, "models: {a: {type: llm, recipe: standin, memory: 4GiB, idle: 1h30m, replicas: {max: 2}, hosts: one}}\nhosts:\n",
		"models: {a: {type: llm, recipe: standin, device: 'gpu:1'}, b: {type: llm, recipe: standin, device: ['gpu:0', 'gpu:15'], gpus: 2}, c: {type: llm, recipe: vllm, checkpoint: o/r, gpus: 4}}\n"}
	for _, file := range []string{"testenv/local/models.yaml", "testenv/stack/testdata/models.yaml", "terraform/examples/*/models.yaml"} {
		found, _ := filepath.Glob(filepath.Join("..", "..", filepath.FromSlash(file)))
		for _, name := range found {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			good = append(good, string(text))
		}
	}
	if len(good) < 5 {
		t.Errorf("only %d files", len(good))
	}
	for _, text := range good {
		if err := fits(text); err != nil {
			t.Errorf("%v\n%s", err, text)
		}
	}
	for _, bad := range []string{
		"model: {}", "models: [a]", "models: {a: {}}", "models: {a: {type: llm, recipe: x, ctx_size: 1}}", "models: {a: {type: chat, recipe: x}}",
		"models: {a: {type: llm, recipe: x, idle: 5}}", "models: {a: {type: llm, recipe: x, memory: 4G}}", "models: {a: {type: llm, recipe: x, pin: maybe}}",
		"models: {a: {type: llm, recipe: x, device: tpu}}", "models: {a: {type: llm, recipe: x, device: 'gpu:16'}}", "models: {a: {type: llm, recipe: x, gpus: 0}}", "hosts: {a: {driver: local, devices: 'gpu:1'}}", "hosts: {a: {driver: ssh}}", "hosts: {a: {driver: asg, max: 0}}",
		"hosts: {a: {driver: local, npu_seats: {chat: 1}}}", "hosts: {a: {driver: local, memory: {tpu: 1GiB}}}", "warm: [{model: a}]", "defaults: {idle: soon}", "recipes: {a: {comand: [x]}}",
	} {
		if fits(bad) == nil {
			t.Errorf("%s fits the schema", bad)
		}
		if _, _, err := Parse("models.yaml", []byte(bad)); err == nil {
			t.Errorf("%s loads", bad)
		}
	}
}

// TestSchemaHasEveryField: the schema names the fields that the reader knows, and no others.
func TestSchemaHasEveryField(t *testing.T) {
	var s struct {
		Properties map[string]json.RawMessage
		Defs       map[string]json.RawMessage `json:"$defs"`
	}
	if err := json.Unmarshal([]byte(Schema), &s); err != nil {
		t.Fatal(err)
	}
	top, err := json.Marshal(map[string]any{"properties": s.Properties})
	if err != nil {
		t.Fatal(err)
	}
	reader, err := os.ReadFile("read.go")
	if err != nil {
		t.Fatal(err)
	}
	parser, err := os.ReadFile(filepath.Join("..", "recipe", "parse.go"))
	if err != nil {
		t.Fatal(err)
	}
	fields, err := os.ReadFile(filepath.Join("..", "recipe", "recipe.go"))
	if err != nil {
		t.Fatal(err)
	}
	field := regexp.MustCompile(`\{"(\w+)", `)
	for name, c := range map[string]struct {
		schema       json.RawMessage
		code, begins string
		field        *regexp.Regexp
	}{
		"model":  {s.Defs["model"], string(reader), "func (r *reader) model(", field},
		"host":   {s.Defs["host"], string(reader), "func (r *reader) host(", field},
		"warm":   {s.Defs["warm"], string(reader), "func (r *reader) warm(", field},
		"recipe": {s.Defs["recipe"], string(parser), "type form struct", regexp.MustCompile("`(?:yaml|json):\"(\\w+)(?:,\\w+)?\"`")},
		"file":   {top, string(reader), "func (r *reader) file(", field},
	} {
		_, code, found := strings.Cut(c.code, c.begins)
		code, _, ended := strings.Cut(code, "\n}\n")
		if !found || !ended {
			t.Fatalf("%s: no %q", name, c.begins)
		}
		more := ""
		switch name {
		case "file": // its section defaults is read apart
			_, more, _ = strings.Cut(string(reader), "func (r *reader) defaults(")
		case "recipe": // the form has only what is written in another way
			_, more, _ = strings.Cut(string(fields), "type Recipe struct")
		}
		more, _, _ = strings.Cut(more, "\n}\n")
		code += more
		var known []string
		for _, m := range c.field.FindAllStringSubmatch(code, -1) {
			known = append(known, m[1])
		}
		inSchema := fieldsOf(t, c.schema)
		slices.Sort(known)
		slices.Sort(inSchema)
		if !slices.Equal(known, inSchema) {
			t.Errorf("%s: the reader knows\n%v, the schema\n%v", name, known, inSchema)
		}
	}
}

// fieldsOf lists the names of a schema's properties at any depth.
func fieldsOf(t *testing.T, schema json.RawMessage) (names []string) {
	t.Helper()
	var s struct{ Properties map[string]json.RawMessage }
	if json.Unmarshal(schema, &s) != nil {
		return nil // a reference, or anything
	}
	for name, inner := range s.Properties {
		names = append(append(names, name), fieldsOf(t, inner)...)
	}
	return names
}
