package catalog

import (
	"time"

	"github.com/goccy/go-yaml/ast"
)

// The readers below store a value into dst, leave dst unchanged if the value is null, and report a problem if it is of
// another kind.

func (r *nodes) text(dst *string) func(ast.Node, yamlPath) {
	return func(n ast.Node, p yamlPath) {
		v := r.value(n, p)
		if v == nil {
			return
		}
		s, ok := scalarText(v)
		if !ok {
			r.add(p, "put it into quotes if it is one", "want a text, not %s", kind(v))
			return
		}
		*dst = s
	}
}

func (r *nodes) boolean(dst *bool) func(ast.Node, yamlPath) {
	return func(n ast.Node, p yamlPath) {
		switch v := r.value(n, p).(type) {
		case nil:
		case *ast.BoolNode:
			*dst = v.Value
		default:
			r.add(p, "", "want true or false, not %s", kind(v))
		}
	}
}

// integer reads a whole number of at least low.
func (r *nodes) integer(dst *int, low int) func(ast.Node, yamlPath) {
	return func(n ast.Node, p yamlPath) {
		v := r.value(n, p)
		if v == nil {
			return
		}
		i, ok := scalarValue(v).(int64)
		if !ok || i < int64(low) || i > 1<<30 {
			r.add(p, "", "want a whole number of at least %d", low)
			return
		}
		*dst = int(i)
	}
}

// amount reads a number of 0 or more.
func (r *nodes) amount(dst *float64) func(ast.Node, yamlPath) {
	return func(n ast.Node, p yamlPath) {
		v := r.value(n, p)
		switch x := scalarValue(v).(type) {
		case nil:
			if v == nil {
				return
			}
		case int64:
			if x >= 0 {
				*dst = float64(x)
				return
			}
		case float64:
			if x >= 0 {
				*dst = x
				return
			}
		}
		r.add(p, "", "want a number of at least 0")
	}
}

func (r *nodes) size(dst *int64) func(ast.Node, yamlPath) { return parsed(r, dst, ParseSize, "") }

func (r *nodes) duration(dst *time.Duration) func(ast.Node, yamlPath) {
	return parsed(r, dst, parseDuration, `a number with a unit, such as "90s", "10m" or "2h"`)
}

// parsed reads a text that parse understands.
func parsed[T any](r *nodes, dst *T, parse func(string) (T, error), hint string) func(ast.Node, yamlPath) {
	return func(n ast.Node, p yamlPath) {
		var s string
		if r.text(&s)(n, p); s == "" {
			return
		}
		v, err := parse(s)
		if err != nil {
			r.add(p, hint, "%v", err)
			return
		}
		*dst = v
	}
}

func (r *nodes) optionalDuration(dst **time.Duration) func(ast.Node, yamlPath) {
	return func(n ast.Node, p yamlPath) {
		if r.value(n, p) != nil {
			*dst = new(time.Duration)
			r.duration(*dst)(n, p)
		}
	}
}

// texts reads a list of texts, or one text as a list of one.
func (r *nodes) texts(dst *[]string) func(ast.Node, yamlPath) {
	return func(n ast.Node, p yamlPath) {
		v := r.value(n, p)
		if v == nil {
			return
		}
		seq, ok := v.(*ast.SequenceNode)
		if !ok {
			s, ok := scalarText(v)
			if !ok || s == "" {
				r.add(p, "", "want a list of texts, not %s", kind(v))
				return
			}
			*dst = []string{s}
			return
		}
		for i, v := range seq.Values {
			at := p.index(i)
			r.at[at] = positionOf(v)
			var s string
			if r.text(&s)(v, at); s == "" {
				r.add(at, "", "is empty")
				continue
			}
			*dst = append(*dst, s)
		}
	}
}

// scalarText returns the text of a scalar: texts, and numbers as they are written.
func scalarText(n ast.Node) (string, bool) {
	switch v := n.(type) {
	case *ast.StringNode:
		return v.Value, true
	case *ast.LiteralNode:
		return v.Value.Value, true
	case *ast.IntegerNode:
		return v.Token.Value, true
	case *ast.FloatNode:
		return v.Token.Value, true
	}
	return "", false
}

// scalarValue returns the Go value of a scalar: string, bool, int64 or float64; nil for anything else.
func scalarValue(n ast.Node) any {
	switch v := n.(type) {
	case *ast.StringNode:
		return v.Value
	case *ast.LiteralNode:
		return v.Value.Value
	case *ast.BoolNode:
		return v.Value
	case *ast.FloatNode:
		return v.Value
	case *ast.IntegerNode:
		switch i := v.Value.(type) {
		case int64:
			return i
		case uint64:
			if i < 1<<63 {
				return int64(i)
			}
		}
	}
	return nil
}

// kind names a node for people.
func kind(n ast.Node) string {
	switch n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a mapping"
	case *ast.SequenceNode:
		return "a list"
	case *ast.BoolNode:
		return "true or false"
	case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		return "a number"
	case *ast.StringNode, *ast.LiteralNode:
		return "a text"
	}
	return "this"
}
