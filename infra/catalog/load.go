package catalog

import (
	"bytes"
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"reveille/infra/jsonscan"
	"reveille/infra/recipe"
)

// Schema is the JSON Schema (draft 2020-12) of a models.yaml, for editors. It knows the fields and the form of their
// values; what [Load] checks beyond that, such as names of models that do not exist, it does not.
//
//go:embed models.schema.json
var Schema string

// maxFile bounds the bytes of a models file.
const maxFile = 1 << 20

// A Problem is one mistake in a catalog, or one warning about it.
type Problem struct {
	File string // as given to Load or Parse; empty when it came from no file
	Line int    // from 1; 0 without a position in a file
	Path string // where in the structure: "models.gemma.device"
	Text string
}

// String is "file:line: path: text", without the parts that are empty.
func (p Problem) String() string {
	out := p.Text
	if p.Path != "" {
		out = p.Path + ": " + out
	}
	switch {
	case p.Line > 0:
		out = fmt.Sprintf("%s:%d: %s", p.File, p.Line, out)
	case p.File != "":
		out = p.File + ": " + out
	}
	return out
}

// Problems is everything wrong with a catalog, or the warnings about one that is still usable, in the order of the
// file. As an error it is never empty.
type Problems []Problem

// Error has one line for each problem.
func (ps Problems) Error() string {
	out := make([]string, len(ps))
	for i, p := range ps {
		out[i] = p.String()
	}
	return strings.Join(out, "\n")
}

// Load reads and checks the file at path as Parse does. It wraps an error of reading the file; any other error is of
// type [Problems].
func Load(path string) (*Catalog, Problems, error) {
	data, err := readBounded(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil, fmt.Errorf("models file: %w; gateway init writes one", err)
	case err != nil:
		return nil, nil, fmt.Errorf("models file: %w", err)
	}
	return Parse(path, data)
}

// Parse makes a catalog from the text of a models.yaml; name is the file's name in problems. An empty text is a
// catalog without models. The error, if any, is of type [Problems], in the order of the file: every entry that cannot
// be read, else everything that is wrong with what they say. (A text that is not YAML has only one problem.) It warns of
// checkpoints and projectors that are paths and do not exist for this process; the hosts may have them.
func Parse(name string, data []byte) (*Catalog, Problems, error) {
	r := &report{file: name}
	c, err := r.parse(data)
	if err != nil {
		return nil, nil, err
	}
	r.missingFiles(c)
	if len(c.Models) == 0 {
		r.warn(nil, "no models; for example: models: {my-model: {checkpoint: /path/to/model.gguf, device: cpu}}")
	}
	r.warnings.sort()
	return c, r.warnings, nil
}

// readBounded reads a file, but not much more of it than Parse accepts.
func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxFile+1))
}

// missingFiles warns of files that models name by path and that do not exist here, unless all hosts are other machines.
func (r *report) missingFiles(c *Catalog) {
	if len(c.Hosts) > 0 && !slices.ContainsFunc(c.Hosts, func(h *Host) bool { return h.Driver == DriverLocal }) {
		return
	}
	look := func(m *Model, field, file string) {
		if cp := ParseCheckpoint(file); file != "" && cp.Scheme == SchemePath {
			if _, err := os.Stat(file); err != nil {
				r.warn(at("models", m.ID, field), "no file %s here, relative to the working directory", clip(file))
			}
		}
	}
	for _, m := range c.Models {
		if rc := c.Recipes[m.Recipe]; rc.NeedsFile() {
			look(m, "checkpoint", m.Checkpoint)
		}
		look(m, "mmproj", m.MMProj)
	}
}

// entry is a part of a file that is decoded on its own, so that one mistake does not hide those of other parts.
type entry[T any] struct {
	value T
	err   error
}

// UnmarshalYAML reads the part and keeps its error.
func (e *entry[T]) UnmarshalYAML(unmarshal func(any) error) error {
	e.err = unmarshal(&e.value)
	return nil
}

// file is a models.yaml.
type file struct {
	Defaults entry[Defaults]                 `yaml:"defaults"`
	Models   map[string]entry[Model]         `yaml:"models"`
	Recipes  map[string]entry[recipe.Recipe] `yaml:"recipes"`
	Hosts    map[string]entry[Host]          `yaml:"hosts"`
	Warm     []entry[Warmup]                 `yaml:"warm"`

	Any            entry[map[string]recipe.List[string]] `yaml:"any"`
	Background     []entry[BackgroundRule]               `yaml:"background"`
	DailyHostHours entry[float64]                        `yaml:"daily_host_hours"`
	BatchHours     *entry[Period]                        `yaml:"batch_hours"`
}

// parse reads a file and checks it.
func (r *report) parse(data []byte) (*Catalog, error) {
	f, err := r.decode(data)
	if err != nil {
		r.addYAMLError(nil, err)
		return nil, r.problems
	}
	c := &Catalog{Defaults: value(r, f.Defaults, "defaults"), Any: value(r, f.Any, "any"), DailyHostHours: value(r, f.DailyHostHours, "daily_host_hours")}
	if f.BatchHours != nil {
		c.BatchHours = new(value(r, *f.BatchHours, "batch_hours"))
	}
	for _, name := range r.inOrder("models", slices.Collect(maps.Keys(f.Models))) {
		m := value(r, f.Models[name], "models", name)
		m.ID, m.Aliases, m.Presets, m.Named = name, m.Named.names, m.Named.presets, aliases{}
		c.Models = append(c.Models, &m)
	}
	for _, name := range r.inOrder("hosts", slices.Collect(maps.Keys(f.Hosts))) {
		h := value(r, f.Hosts[name], "hosts", name)
		h.Name = name
		c.Hosts = append(c.Hosts, h.slots()...)
	}
	for i, w := range f.Warm {
		c.Warm = append(c.Warm, value(r, w, "warm", strconv.Itoa(i)))
	}
	for i, b := range f.Background {
		c.Background = append(c.Background, value(r, b, "background", strconv.Itoa(i)))
	}
	over := map[string]recipe.Recipe{}
	for name, e := range f.Recipes {
		rc := value(r, e, "recipes", name)
		rc.Name = name
		over[name] = rc
	}
	if len(r.problems) == 0 {
		if c.Recipes, err = recipe.Shipped().With(over); err != nil {
			for text := range strings.SplitSeq(err.Error(), "\n") { // "recipe NAME: what is wrong"
				name, _, _ := strings.Cut(strings.TrimPrefix(text, "recipe "), ":")
				r.add(at("recipes", name), "%s", text)
			}
		} else {
			r.check(c)
		}
	}
	if len(r.problems) == 0 {
		r.seal(c)
	}
	if len(r.problems) > 0 {
		r.problems.sort()
		return nil, r.problems
	}
	return c, nil
}

// value returns what an entry holds and notes its error.
func value[T any](r *report, e entry[T], path ...string) T {
	if e.err != nil {
		r.addYAMLError(path, e.err)
	}
	return e.value
}

// decode reads the text of a file, and notes in the report where its parts are.
func (r *report) decode(data []byte) (f file, err error) {
	defer func() {
		if v := recover(); v != nil { // go-yaml v1.19.2 panics on some texts
			err = errors.New("cannot be parsed as YAML")
		}
	}()
	data = jsonscan.TrimMark(data)
	if len(data) > maxFile {
		return f, fmt.Errorf("the file is larger than %d bytes", maxFile)
	}
	if !utf8.Valid(data) || bytes.IndexByte(data, 0) >= 0 {
		return f, errors.New("the file is not UTF-8 (perhaps it is UTF-16); save it as UTF-8")
	}
	parsed, err := parser.ParseBytes(data, 0) // which refuses a key that is there twice
	if err != nil {
		return f, err
	}
	for _, doc := range parsed.Docs {
		switch {
		case doc.Body == nil || doc.Body.Type() == ast.NullType:
		case r.root != nil:
			return f, &yaml.SyntaxError{Message: "a second document; put everything into one", Token: doc.Body.GetToken()}
		default:
			r.root = doc.Body
		}
	}
	if r.root == nil {
		return f, nil
	}
	ast.Walk(mergesFirst{}, r.root)
	// Keys that start with x- are for anchors. Duplicate keys are those that override a merged one.
	d := yaml.NewDecoder(strings.NewReader(""), yaml.Strict(), yaml.AllowFieldPrefixes("x-"), yaml.AllowDuplicateMapKey())
	return f, d.DecodeFromNode(r.root, &f)
}

// mergesFirst moves the merge keys of a mapping before the keys that override them, because the decoder lets the last
// one win, and makes a key for each mapping of a list, the first of which must win.
type mergesFirst struct{}

func (v mergesFirst) Visit(n ast.Node) ast.Visitor {
	if m, ok := n.(*ast.MappingNode); ok {
		var merges, own []*ast.MappingValueNode
		for _, entry := range m.Values {
			list, several := entry.Value.(*ast.SequenceNode)
			switch {
			case !entry.Key.IsMergeKey():
				own = append(own, entry)
			case several:
				for _, value := range slices.Backward(list.Values) {
					merges = append(merges, ast.MappingValue(entry.Start, entry.Key, value))
				}
			default:
				merges = append(merges, entry)
			}
		}
		m.Values = append(merges, own...)
	}
	return v
}

// report collects problems and warnings and finds their lines.
type report struct {
	file     string
	root     ast.Node // of the file; nil for a catalog from elsewhere
	problems Problems
	warnings Problems
}

// at is a place in the structure of a file: the keys and indexes that lead there.
func at(path ...string) []string { return path }

func (r *report) add(path []string, format string, args ...any) {
	r.problems = append(r.problems, r.problem(path, format, args...))
}

func (r *report) warn(path []string, format string, args ...any) {
	r.warnings = append(r.warnings, r.problem(path, format, args...))
}

func (r *report) problem(path []string, format string, args ...any) Problem {
	p := Problem{File: r.file, Path: strings.Join(path, "."), Text: fmt.Sprintf(format, args...)}
	if pos := r.position(path); pos != nil {
		p.Line = pos.Line
	}
	return p
}

// addYAMLError notes an error of the YAML library under its own line, if it has one.
func (r *report) addYAMLError(path []string, err error) {
	p := r.problem(path, "%s", strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "; "))
	if ye, ok := errors.AsType[yaml.Error](err); ok {
		p.Text = ye.GetMessage()
		if t := ye.GetToken(); t != nil {
			p.Line = t.Position.Line
		}
	}
	r.problems = append(r.problems, p)
}

// position returns the place of a path in the file, or of the nearest part around it.
func (r *report) position(path []string) *token.Position {
	if r.root == nil {
		return nil
	}
	node, pos := r.root, r.root.GetToken().Position
	for _, part := range path {
		if anchor, ok := node.(*ast.AnchorNode); ok {
			node = anchor.Value
		}
		var next ast.Node
		switch n := node.(type) {
		case *ast.MappingNode:
			for _, entry := range n.Values {
				if t := entry.Key.GetToken(); t.Value == part {
					next, pos = entry.Value, t.Position
				}
			}
		case *ast.SequenceNode:
			if i, err := strconv.Atoi(part); err == nil && i < len(n.Values) {
				next, pos = n.Values[i], n.Values[i].GetToken().Position
			}
		}
		if node = next; node == nil {
			break
		}
	}
	return pos
}

// inOrder sorts the names of a section's entries as they are in the file.
func (r *report) inOrder(section string, names []string) []string {
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(r.position(at(section, a)).Offset-r.position(at(section, b)).Offset, cmp.Compare(a, b))
	})
	return names
}

func (ps Problems) sort() {
	slices.SortStableFunc(ps, func(a, b Problem) int { return cmp.Or(a.Line-b.Line, cmp.Compare(a.Path, b.Path)) })
}
