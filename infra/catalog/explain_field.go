package catalog

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// schemaNode is the part of a JSON Schema that [ExplainField] reads.
type schemaNode struct {
	Description string
	Ref         string `json:"$ref"`
	Enum        []any
	Properties  map[string]*schemaNode
	More        json.RawMessage `json:"additionalProperties"` // a schema, or false
	Items       *schemaNode
	Defs        map[string]*schemaNode `json:"$defs"`
}

// ExplainField writes what the schema says of each field of a models file with the given name, such as idle, or path, such as
// hosts.memory. The error names fields like it, or is w's.
func ExplainField(w io.Writer, name string) error {
	var root schemaNode
	if err := json.Unmarshal([]byte(Schema), &root); err != nil {
		return err // never: the schema is embedded
	}
	out, similar, found := &printer{w: w}, []string{}, false
	root.walk(root.Defs, nil, func(path []string, n *schemaNode) {
		last := path[len(path)-1]
		plain := strings.Join(slices.DeleteFunc(slices.Clone(path), func(s string) bool { return s == anyName }), ".")
		if full := strings.Join(path, "."); name != last && name != plain && name != full {
			if a, b := letters(last), letters(name); last != anyName && (shared(a, b) >= minShared || len(b) >= minShared && strings.Contains(a, b)) && !slices.Contains(similar, last) {
				similar = append(similar, last)
			}
			return
		}
		found = true
		out.printf("%s: %s\n", strings.Join(path, "."), n.meaning(root.Defs))
	})
	if !found {
		hint := "gateway schema prints all"
		if len(similar) > 0 {
			hint = "similar ones are " + strings.Join(similar, ", ")
		}
		return fmt.Errorf("a models file has no field %q; %s", name, hint)
	}
	return out.err
}

// anyName stands for the name of a model, a host or a recipe.
const anyName = "NAME"

// walk calls fn with each field below a node, and its path.
func (n *schemaNode) walk(defs map[string]*schemaNode, path []string, fn func(path []string, n *schemaNode)) {
	n = n.resolved(defs)
	for _, name := range slices.Sorted(maps.Keys(n.Properties)) {
		below := append(slices.Clone(path), name)
		fn(below, n.Properties[name])
		n.Properties[name].walk(defs, below, fn)
	}
	if n.Items != nil {
		n.Items.walk(defs, path, fn)
	}
	var more schemaNode
	if json.Unmarshal(n.More, &more) == nil {
		more.walk(defs, append(slices.Clone(path), anyName), fn)
	}
}

// resolved follows a reference.
func (n *schemaNode) resolved(defs map[string]*schemaNode) *schemaNode {
	if d := defs[strings.TrimPrefix(n.Ref, "#/$defs/")]; d != nil {
		return d
	}
	return n
}

// meaning is the description, with the values or the fields of the node's own where they are listed.
func (n *schemaNode) meaning(defs map[string]*schemaNode) string {
	text, of := []string{}, n.resolved(defs)
	if d := n.Description; d != "" {
		text = append(text, d)
	}
	var values []string
	for _, v := range of.Enum {
		if v != nil {
			values = append(values, fmt.Sprint(v))
		}
	}
	switch {
	case len(values) > 0:
		text = append(text, "One of "+strings.Join(values, ", ")+".")
	case len(of.Properties) > 0:
		text = append(text, "Fields: "+strings.Join(slices.Sorted(maps.Keys(of.Properties)), ", ")+".")
	}
	return strings.Join(text, " ")
}
