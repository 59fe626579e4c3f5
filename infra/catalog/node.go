package catalog

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// Bounds on what is read at all, far above any sensible file, so that a hostile one costs little.
const (
	maxFile    = 1 << 20 // bytes
	maxNesting = 32      // brackets inside brackets, or block indicators on one line
	maxNodes   = 100_000 // nodes visited, aliases followed each time
	maxMerges  = 8       // merge keys inside merged mappings
	maxReports = 100     // problems kept
)

// position is a place in a file, from 1.
type position struct{ line, col int }

// yamlPath names a part of the structure. Its parts are separated by a byte that no name can hold.
type yamlPath string

const pathSep = "\x1f"

func (p yamlPath) child(key string) yamlPath {
	if p == "" {
		return yamlPath(key)
	}
	return p + pathSep + yamlPath(key)
}

func (p yamlPath) index(i int) yamlPath { return p.child(strconv.Itoa(i)) }

func (p yamlPath) parent() yamlPath {
	i := strings.LastIndex(string(p), pathSep)
	return p[:max(i, 0)]
}

// String returns the place as people read it.
func (p yamlPath) String() string { return strings.ReplaceAll(string(p), pathSep, ".") }

// report collects problems and warnings and knows where each part of the structure was written.
type report struct {
	file     string
	at       map[yamlPath]position // of the value, or of the key where the value is not a scalar
	problems Problems
	warnings Warnings
}

// add notes a problem with p, at its place in the file or at that of the nearest part around it.
func (r *report) add(p yamlPath, hint, format string, args ...any) {
	r.addAt(r.position(p), p, hint, format, args...)
}

func (r *report) addAt(pos position, p yamlPath, hint, format string, args ...any) {
	x := r.problem(pos, p, hint, format, args...)
	if len(r.problems) < maxReports && !slices.Contains(r.problems, x) {
		r.problems = append(r.problems, x)
	}
}

// warn notes a warning about p.
func (r *report) warn(p yamlPath, hint, format string, args ...any) {
	if len(r.warnings) < maxReports {
		r.warnings = append(r.warnings, r.problem(r.position(p), p, hint, format, args...))
	}
}

func (r *report) problem(pos position, p yamlPath, hint, format string, args ...any) Problem {
	return Problem{File: r.file, Line: pos.line, Col: pos.col, Path: p.String(), Text: fmt.Sprintf(format, args...), Hint: hint}
}

func (r *report) position(p yamlPath) position {
	pos := r.at[p]
	for pos.line == 0 && p != "" {
		p = p.parent()
		pos = r.at[p]
	}
	return pos
}

// nodes reads the values of a parsed document. An invalid value becomes a problem and reads as absent.
type nodes struct {
	*report
	anchors map[string]ast.Node
	visited int
}

// parseYAML returns the root of a file's only document, nil for an empty one.
func (r *nodes) parseYAML(data []byte) (root ast.Node) {
	// A bug of the YAML library must end in a message, like any other file that cannot be read.
	defer func() {
		if v := recover(); v != nil {
			root = nil
			r.add("", "", "cannot be parsed as YAML")
		}
	}()
	if len(data) > maxFile {
		r.add("", "", "file is larger than %d bytes", maxFile)
		return nil
	}
	tokens := lexer.Tokenize(string(data))
	if pos, deep := tooDeep(tokens); deep {
		r.addAt(pos, "", "", "nested more than %d deep", maxNesting)
		return nil
	}
	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		r.addYAMLError("", err)
		return nil
	}
	for _, doc := range file.Docs {
		switch {
		case doc.Body == nil:
		case root != nil:
			r.addAt(positionOf(doc.Body), "", "put everything into one", "a second document")
		default:
			root = doc.Body
		}
	}
	if root != nil {
		ast.Walk(anchorFinder{r.anchors}, root)
	}
	return root
}

// addYAMLError notes an error of the YAML library under its own position, if it has one.
func (r *nodes) addYAMLError(p yamlPath, err error) {
	if ye, ok := errors.AsType[yaml.Error](err); ok && ye.GetToken() != nil {
		pos := ye.GetToken().Position
		r.addAt(position{pos.Line, pos.Column}, p, "", "%s", ye.GetMessage())
		return
	}
	r.add(p, "", "%s", strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "; "))
}

// tooDeep finds nesting that would take the recursive parser too far. Nesting by indentation needs no bound of its own:
// its depth is at most the square root of the file's length.
func tooDeep(tokens token.Tokens) (position, bool) {
	flow, line, indicators := 0, 0, 0
	for _, t := range tokens {
		if t.Position.Line != line {
			line, indicators = t.Position.Line, 0
		}
		switch t.Type {
		case token.MappingStartType, token.SequenceStartType:
			flow++
		case token.MappingEndType, token.SequenceEndType:
			flow = max(flow-1, 0)
		case token.SequenceEntryType, token.MappingKeyType, token.MappingValueType, token.TagType, token.AnchorType:
			if flow == 0 {
				indicators++
			}
		}
		if flow > maxNesting || indicators > maxNesting {
			return position{t.Position.Line, t.Position.Column}, true
		}
	}
	return position{}, false
}

type anchorFinder struct{ found map[string]ast.Node }

func (f anchorFinder) Visit(n ast.Node) ast.Visitor {
	if a, ok := n.(*ast.AnchorNode); ok && a.Name != nil {
		f.found[a.Name.String()] = a.Value
	}
	return f
}

func positionOf(n ast.Node) position {
	if m, ok := n.(*ast.MappingNode); ok && len(m.Values) > 0 && !m.IsFlowStyle {
		n = m.Values[0].Key
	}
	if t := n.GetToken(); t != nil {
		return position{t.Position.Line, t.Position.Column}
	}
	return position{}
}

// value strips anchors, aliases and tags. It returns nil for null and for what is missing, and for everything once the
// budget of nodes is spent.
func (r *nodes) value(n ast.Node, p yamlPath) ast.Node {
	for {
		if r.visited++; r.visited > maxNodes {
			if r.visited == maxNodes+1 {
				r.add(p, "", "the file has too many parts, aliases counted each time")
			}
			return nil
		}
		switch v := n.(type) {
		case nil, *ast.NullNode:
			return nil
		case *ast.AnchorNode:
			n = v.Value
		case *ast.TagNode:
			n = v.Value
		case *ast.AliasNode:
			name := v.Value.String()
			target, ok := r.anchors[name]
			if !ok {
				r.addAt(positionOf(v), p, "", "no anchor &%s", clip(name))
				return nil
			}
			n = target
		default:
			return n
		}
	}
}

// field is one entry of a mapping.
type field struct {
	key   string
	pos   position // of the key
	value ast.Node
}

// fields returns the entries of a mapping in the order of the file, each key once. Entries from a merge key come after
// the mapping's own.
func (r *nodes) fields(n ast.Node, p yamlPath, depth int) []field {
	var entries []*ast.MappingValueNode
	switch v := r.value(n, p).(type) {
	case nil:
		return nil
	case *ast.MappingNode:
		entries = v.Values
	case *ast.MappingValueNode:
		entries = []*ast.MappingValueNode{v}
	default:
		r.addAt(positionOf(v), p, "", "want a mapping of names to values, not %s", kind(v))
		return nil
	}
	var out, merged []field
	seen := map[string]position{}
	for _, e := range entries {
		if e.Key.IsMergeKey() {
			merged = append(merged, r.merged(e.Value, p, depth)...)
			continue
		}
		pos := positionOf(e.Key)
		key, ok := scalarText(r.value(e.Key, p))
		if !ok {
			r.addAt(pos, p, "", "a key must be a plain text")
			continue
		}
		if first, dup := seen[key]; dup {
			r.addAt(pos, p.child(key), "remove one of them", "duplicate key, first given in line %d", first.line)
			continue
		}
		seen[key] = pos
		out = append(out, field{key, pos, e.Value})
	}
	for _, f := range merged {
		if _, own := seen[f.key]; !own {
			seen[f.key] = f.pos
			out = append(out, f)
		}
	}
	return out
}

// merged returns the entries of "<<: *name" or "<<: [*a, *b]"; the first of several mappings ranks highest.
func (r *nodes) merged(n ast.Node, p yamlPath, depth int) []field {
	if depth >= maxMerges {
		r.addAt(positionOf(n), p, "", "merge keys nested more than %d deep", maxMerges)
		return nil
	}
	seq, ok := r.value(n, p).(*ast.SequenceNode)
	if !ok {
		return r.fields(n, p, depth+1)
	}
	var out []field
	for _, v := range seq.Values {
		out = append(out, r.fields(v, p, depth+1)...)
	}
	return out
}

// schema is the fields that an object may have, each with the function that reads its value.
type schema []struct {
	name string
	read func(ast.Node, yamlPath)
}

// object reads a mapping by its schema and notes unknown fields.
func (r *nodes) object(n ast.Node, p yamlPath, s schema) {
	names := make([]string, len(s))
	for i, f := range s {
		names[i] = f.name
	}
	r.each(n, p, func(f field, at yamlPath) {
		for _, known := range s {
			if known.name == f.key {
				known.read(f.value, at)
				return
			}
		}
		r.addAt(f.pos, p, didYouMean(f.key, names), "unknown field %q", clip(f.key))
	})
}

// each calls fn for the entries of a mapping, after their places were noted.
func (r *nodes) each(n ast.Node, p yamlPath, fn func(f field, at yamlPath)) {
	for _, f := range r.fields(n, p, 0) {
		at := p.child(f.key)
		r.at[at] = f.pos
		if v, ok := f.value.(ast.ScalarNode); ok && f.value.Type() != ast.NullType {
			r.at[at] = positionOf(v)
		}
		fn(f, at)
	}
}
