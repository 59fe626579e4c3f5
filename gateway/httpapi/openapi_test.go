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

// /openapi.json is a document of OpenAPI 3.1 that has every route, no other one, and the codes of all errors.
func TestOpenAPI(t *testing.T) {
	r := newStage(t).ask("GET", "/openapi.json", "")
	if r.status != 200 {
		t.Fatalf("%d %s", r.status, r.text)
	}
	text, err := os.ReadFile(filepath.Join("testdata", "openapi-3.1.json")) // https://spec.openapis.org/oas/3.1/schema/2022-10-07
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
	var d struct {
		Paths map[string]map[string]json.RawMessage
	}
	if err := json.Unmarshal([]byte(r.text), &d); err != nil {
		t.Fatal(err)
	}
	described := map[string]bool{} // "get /v1/models"
	for path, item := range d.Paths {
		var ref string
		if json.Unmarshal(item["$ref"], &ref) == nil {
			item = d.Paths[strings.ReplaceAll(strings.TrimPrefix(ref, "#/paths/"), "~1", "/")]
		}
		for method, operation := range item {
			described[method+" "+path] = true
			var op struct{ Security []map[string][]string }
			if err := json.Unmarshal(operation, &op); err != nil {
				t.Errorf("%s %s: %v", method, path, err)
			}
			free := len(op.Security) == 0
			h := router.Match(strings.ToUpper(method), strings.ReplaceAll(path, "{id}", "x"))
			if h.Route == nil || free != (h.Route.Scope == api.ScopeFree) {
				t.Errorf("%s %s: security %v of %+v", method, path, op.Security, h.Route)
			}
		}
	}
	routes := 0
	for _, route := range Routes() {
		methods := []string{strings.ToLower(route.Method)}
		if route.Method == "ANY" {
			methods = []string{"get", "post", "put", "patch", "delete"}
		}
		for mount, path := range map[api.Mount]string{api.Prefixed: "/v1" + route.Path, api.Bare: route.Path} {
			for _, method := range methods {
				if route.Mount&mount == 0 {
					continue
				}
				if routes++; !described[method+" "+path] {
					t.Errorf("%s %s is not described", method, path)
				}
			}
		}
	}
	if routes != len(described) {
		t.Errorf("%d operations, %d are routes", len(described), routes)
	}
	for _, k := range api.Kinds() {
		if !strings.Contains(r.text, `"`+k.Code()+`"`) {
			t.Error("no code", k.Code())
		}
	}
}
