package httpapi

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"

	"reveille/gateway/api"
)

// /openapi.json is a document of OpenAPI 3.1 that has every route and the codes of all errors.
func TestOpenAPI(t *testing.T) {
	r := newStage(t).ask("GET", "/openapi.json", "")
	if r.status != 200 {
		t.Fatalf("%d %s", r.status, r.text)
	}
	text, err := os.ReadFile(filepath.Join("testdata", "openapi-3.1.json")) // https://spec.openapis.org/oas/3.1/schema/2022-10-07, for version 3.1 of the specification
	if err != nil {
		t.Fatal(err)
	}
	var s jsonschema.Schema
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	schema, err := s.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := schema.Validate(r.json); err != nil {
		t.Error(err)
	}
	if schema.Validate(map[string]any{"openapi": "3.1.0", "info": map[string]any{"title": "no version"}, "paths": map[string]any{}}) == nil {
		t.Error("the schema takes anything")
	}

	var d struct {
		Paths map[string]map[string]struct {
			ID        string `json:"operationId"`
			Responses map[string]any
			Security  []map[string][]string
		}
	}
	if err := json.Unmarshal([]byte(r.text), &d); err != nil {
		t.Fatal(err)
	}
	described, ids := 0, map[string]bool{}
	for _, route := range api.Routes() {
		method := strings.ToLower(strings.Replace(route.Method, "ANY", "PATCH", 1))
		for mount, path := range map[api.Mount]string{api.Prefixed: "/v1" + route.Path, api.Bare: route.Path} {
			if route.Mount&mount == 0 {
				continue
			}
			op, found := d.Paths[path][method]
			if !found || ids[op.ID] || len(op.Responses) == 0 || (len(op.Security) == 0) != (route.Scope == api.ScopeFree) {
				t.Errorf("%s %s: %+v", route.Method, path, op)
			}
			if method == "patch" {
				described += 4
			}
			ids[op.ID] = true
			described++
		}
	}
	operations := 0
	for _, item := range d.Paths {
		operations += len(item)
	}
	if operations != described {
		t.Errorf("%d operations, %d are routes", operations, described)
	}
	for _, k := range api.Kinds() {
		if !strings.Contains(r.text, " "+k.Code()) {
			t.Error("no code", k.Code())
		}
	}
}
