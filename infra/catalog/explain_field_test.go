package catalog

import (
	"encoding/json"
	"strings"
	"testing"
)

// Every field of the schema is explained, by its name and by its path.
func TestExplainField(t *testing.T) {
	var root schemaNode
	if err := json.Unmarshal([]byte(Schema), &root); err != nil {
		t.Fatal(err)
	}
	fields := 0
	root.walk(root.Defs, nil, func(path []string, _ *schemaNode) {
		fields++
		full := strings.Join(path, ".")
		for _, name := range []string{full, path[len(path)-1]} {
			var out strings.Builder
			if err := ExplainField(&out, name); err != nil {
				t.Error(err)
			}
			_, after, found := strings.Cut("\n"+out.String(), "\n"+full+": ")
			if text, _, _ := strings.Cut(after, "\n"); !found || strings.TrimSpace(text) == "" {
				t.Errorf("%s: %q", name, out.String())
			}
		}
	})
	if fields < 60 {
		t.Errorf("only %d fields", fields)
	}
	var out strings.Builder
	if err := ExplainField(&out, "hosts.driver"); err != nil || out.String() != "hosts.NAME.driver: How the host is woken and put to sleep. One of local, wol, ec2, asg, exec, kubernetes.\n" {
		t.Errorf("%q %v", out.String(), err)
	}
	for name, want := range map[string]string{"idel": "no field", "alias": "aliases", "x": "gateway schema"} {
		if err := ExplainField(&out, name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
