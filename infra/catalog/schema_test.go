package catalog

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/google/jsonschema-go/jsonschema"

	"reveille/infra/policy"
	"reveille/infra/recipe"
)

func oneOfSchema[T ~string](values ...T) *jsonschema.Schema {
	s := &jsonschema.Schema{}
	for _, v := range values {
		s.Enum = append(s.Enum, string(v))
	}
	return s
}

// generate makes the JSON Schema of a models file from the types that it is read into. The descriptions are the first
// paragraphs of the comments of their fields.
func generate(t *testing.T) string {
	t.Helper()
	text := func(pattern string) *jsonschema.Schema {
		return &jsonschema.Schema{Types: []string{"string", "integer"}, Pattern: pattern}
	}
	device := oneOfSchema("cpu", "gpu", "npu")
	duration := text(`^([0-9.]+(ns|us|µs|ms|s|m|h))+$|^0$`)
	types := map[reflect.Type]*jsonschema.Schema{
		reflect.TypeFor[Duration]():         duration,
		reflect.TypeFor[time.Duration]():    duration,
		reflect.TypeFor[Size]():             text(`^[0-9.e+]+ ?([KkMmGgTt]?[Ii]?[Bb])?$`),
		reflect.TypeFor[Schedule]():         {Type: "string"},
		reflect.TypeFor[policy.Type]():      oneOfSchema(policy.Types()...),
		reflect.TypeFor[policy.Devices]():   {AnyOf: []*jsonschema.Schema{device, {Type: "array", Items: device}}},
		reflect.TypeFor[Sharing]():          oneOfSchema(SharePerKey, ShareAll, ShareNone),
		reflect.TypeFor[Driver]():           oneOfSchema(DriverLocal, DriverWoL, DriverEC2, DriverASG, DriverExec, DriverKubernetes),
		reflect.TypeFor[recipe.Options]():   {Type: "object"},
		reflect.TypeFor[regexp.Regexp]():    {Type: "string"},
		reflect.TypeFor[BackgroundPolicy](): oneOfSchema(BackgroundLoaded, BackgroundWait, BackgroundRefuse),
		reflect.TypeFor[map[string]Size]():  {Type: "object", PropertyNames: device},
	}
	for _, list := range []reflect.Type{
		reflect.TypeFor[recipe.List[string]](), reflect.TypeFor[recipe.List[policy.Type]](), reflect.TypeFor[recipe.List[*regexp.Regexp]](),
	} {
		types[list] = &jsonschema.Schema{Types: []string{"string", "number", "array"}}
	}
	types[reflect.TypeFor[aliases]()] = &jsonschema.Schema{Types: []string{"string", "number", "array", "object"}}
	for _, byType := range []reflect.Type{
		reflect.TypeFor[map[policy.Type]string](), reflect.TypeFor[map[policy.Type]int](), reflect.TypeFor[map[policy.Type]recipe.List[string]](),
	} {
		types[byType] = &jsonschema.Schema{Type: "object", PropertyNames: types[reflect.TypeFor[policy.Type]()]}
	}
	comments := fieldComments(t, ".", filepath.Join("..", "recipe"))
	var of func(typ reflect.Type) *jsonschema.Schema
	of = func(typ reflect.Type) *jsonschema.Schema {
		s, err := jsonschema.ForType(typ, &jsonschema.ForOptions{TypeSchemas: types})
		if err != nil {
			t.Fatal(err)
		}
		s.PropertyOrder = nil
		for field := range typ.Fields() {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if p := s.Properties[name]; p != nil {
				inner := field.Type
				if inner.Kind() == reflect.Pointer {
					inner = inner.Elem()
				}
				if inner.Kind() == reflect.Struct && types[inner] == nil {
					p = of(inner)
					s.Properties[name] = p
				}
				p.Description = comments[typ.Name()+"."+field.Name]
			}
			if written := field.Tag.Get("yaml"); written != "" && written != "-" {
				s.Properties[written] = types[field.Type].CloneSchemas()
				s.Properties[written].Description = comments[typ.Name()+"."+field.Name]
			}
			if field.Tag.Get("yaml") == "-" {
				delete(s.Properties, name)
				s.Required = slices.DeleteFunc(s.Required, func(r string) bool { return r == name })
			}
		}
		return s
	}
	byName := func(description string, entries *jsonschema.Schema) *jsonschema.Schema {
		return &jsonschema.Schema{Description: description, Types: []string{"object", "null"}, AdditionalProperties: entries}
	}
	root := &jsonschema.Schema{
		Schema: "https://json-schema.org/draft/2020-12/schema", Title: "Reveille models file", Type: "object",
		Properties: map[string]*jsonschema.Schema{
			"defaults":         of(reflect.TypeFor[Defaults]()),
			"models":           byName("Models by the name that clients use.", of(reflect.TypeFor[Model]())),
			"recipes":          byName("Changes of shipped recipes, and recipes of your own.", of(reflect.TypeFor[recipe.Recipe]())),
			"hosts":            byName("Hosts by name.", of(reflect.TypeFor[Host]())),
			"any":              byName(comments["Catalog.Any"], types[reflect.TypeFor[recipe.List[string]]()]),
			"background":       {Description: comments["Catalog.Background"], Type: "array", Items: of(reflect.TypeFor[BackgroundRule]())},
			"daily_host_hours": {Description: comments["Catalog.DailyHostHours"], Type: "number"},
			"warm":             {Description: "When models are kept loaded.", Type: "array", Items: of(reflect.TypeFor[Warmup]())},
		},
		PatternProperties:    map[string]*jsonschema.Schema{"^x-": {Description: "For anchors."}},
		AdditionalProperties: &jsonschema.Schema{Not: &jsonschema.Schema{}},
	}
	hours := of(reflect.TypeFor[Period]())
	hours.Description = comments["Catalog.BatchHours"]
	root.Properties["batch_hours"] = hours
	out, err := json.MarshalIndent(root, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(out) + "\n"
}

// fieldComments returns the first paragraphs of the comments of the fields of structs in some folders, by "Type.Field".
func fieldComments(t *testing.T, folders ...string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, folder := range folders {
		files, _ := filepath.Glob(filepath.Join(folder, "*.go"))
		for _, name := range files {
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				spec, ok := n.(*ast.TypeSpec)
				if !ok {
					return true
				}
				if st, ok := spec.Type.(*ast.StructType); ok {
					for _, f := range st.Fields.List {
						text, _, _ := strings.Cut(f.Doc.Text(), "\n\n")
						for _, name := range f.Names {
							out[spec.Name.Name+"."+name.Name] = strings.Join(strings.Fields(text), " ")
						}
					}
				}
				return false
			})
		}
	}
	return out
}

// TestSchemaIsGenerated: the checked-in schema is what the types give. `go test -update` writes it.
func TestSchemaIsGenerated(t *testing.T) {
	want := generate(t)
	if *update {
		if err := os.WriteFile("models.schema.json", []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if Schema != want {
		t.Error("models.schema.json is not that of the types: run go test ./infra/catalog -update")
	}
}

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
	good := []string{
		documented,
		"models: {a: {type: llm, recipe: standin, memory: 4GiB, idle: 1h30m, replicas: {max: 2}, hosts: one}}\nhosts:\n",
		"models: {a: {recipe: standin, device: 'gpu:1'}, b: {recipe: standin, device: ['gpu:0', 'gpu:15'], gpus: 2}}\n",
	}
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
		"model: {}", "models: [a]", "models: {a: {recipe: x, ctx_size: 1}}", "models: {a: {type: chat, recipe: x}}",
		"models: {a: {recipe: x, memory: 4G}}", "models: {a: {recipe: x, pin: maybe}}", "hosts: {a: {driver: ssh}}",
		"hosts: {a: {driver: local, devices: 'gpu:1'}}", "hosts: {a: {driver: local, npu_seats: {chat: 1}}}",
		"hosts: {a: {driver: local, memory: {tpu: 1GiB}}}", "warm: [{model: a}]", "defaults: {idle: soon}",
		"recipes: {a: {comand: [x]}}",
	} {
		if fits(bad) == nil {
			t.Errorf("%s fits the schema", bad)
		}
		if _, _, err := Parse("models.yaml", []byte(bad)); err == nil {
			t.Errorf("%s loads", bad)
		}
	}
}

// TestDocumentedFields: rows of the table of a model's fields are those of the schema.
func TestDocumentedFields(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "infra", "docs", "models.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "| field of a model | meaning |")
	table, _, _ = strings.Cut(table, "\n\n")
	var s jsonschema.Schema
	if err := json.Unmarshal([]byte(Schema), &s); err != nil {
		t.Fatal(err)
	}
	var documented []string
	for _, row := range regexp.MustCompile("(?m)^\\| (`[^|]*) \\|").FindAllStringSubmatch(table, -1) {
		for _, name := range regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(row[1], -1) {
			documented = append(documented, name[1])
		}
	}
	slices.Sort(documented)
	fields := slices.Sorted(maps.Keys(s.Properties["models"].AdditionalProperties.Properties))
	if !slices.Equal(fields, documented) {
		t.Errorf("documented are\n%q, the schema has\n%q", documented, fields)
	}
}
