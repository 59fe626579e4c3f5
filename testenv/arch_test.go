package testenv

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// This file keeps the picture of the architecture true: what may import what, where
// things are, what must be written down. A failure says the rule in words.

const module = "reveille"

// programs are the folders of the three binaries.
var programs = []string{"gateway", "runner", "warmer"}

// goFile is a parsed source file; path is relative to the module, with slashes.
type goFile struct {
	path    string
	test    bool
	syntax  *ast.File
	imports []string
}

// folder is the package's folder, relative to the module.
func (f goFile) folder() string { return filepath.ToSlash(filepath.Dir(f.path)) }

// sources parses every Go file of the module, whatever its build tags.
func sources(t *testing.T) []goFile {
	t.Helper()
	root := Root(t)
	var files []goFile
	fset := token.NewFileSet()
	walk(t, root, func(path string) {
		if !strings.HasSuffix(path, ".go") {
			return
		}
		syntax, err := parser.ParseFile(fset, filepath.Join(root, path), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Error(err)
			return
		}
		f := goFile{path: path, test: strings.HasSuffix(path, "_test.go"), syntax: syntax}
		for _, spec := range syntax.Imports {
			name, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				t.Error(err)
			}
			f.imports = append(f.imports, name)
		}
		files = append(files, f)
	})
	return files
}

// walk visits the module's own files: not those of dot folders, testdata or bin.
func walk(t *testing.T, root string, visit func(path string)) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			if rel != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || rel == "bin" || rel == "dist") {
				return filepath.SkipDir
			}
			return nil
		}
		visit(filepath.ToSlash(rel))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// inside reports whether a package path or folder is dir or below it.
func inside(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, dir+"/")
}

// fromModule reports whether an import is one of ours.
func fromModule(imported string) bool { return inside(imported, module) }

// forbidden says why a file in folder must not import a package, or "".
func forbidden(folder, imported string, test bool) string {
	first, _, _ := strings.Cut(imported, "/")
	standard := !strings.Contains(first, ".") && !fromModule(imported)
	if inside(folder, "infra/policy") && !test && !standard && !inside(imported, module+"/infra/policy") {
		return "infra/policy decides and does nothing else: standard library only"
	}
	if !fromModule(imported) {
		return ""
	}
	target := strings.TrimPrefix(strings.TrimPrefix(imported, module), "/")
	if inside(target, "testenv") && !inside(folder, "testenv") && !test {
		return "testenv is for tests and local runs only"
	}
	for _, program := range programs {
		if !inside(target, program) || inside(folder, program) {
			continue
		}
		switch {
		case folder == "infra/config" && test: // it compares the settings of all programs with their page
		case inside(folder, "infra"):
			return "infra is below the binaries and imports none of them"
		case program == "runner" && inside(folder, "gateway") && !test && !startsRunner(folder):
			return "of the gateway only what starts, prepares or describes a runner on this machine may import one"
		case inside(folder, "gateway"): // gateway run starts a runner and a warmer beside itself
		case slices.ContainsFunc(programs, func(p string) bool { return inside(folder, p) }):
			return "binaries do not import each other; only gateway may import packages under runner/ and warmer/"
		}
	}
	return ""
}

// startsRunner reports whether a folder of the gateway starts a runner (app, for gateway run) or prepares one: setup and
// the commands init, check and ps.
func startsRunner(folder string) bool {
	return folder == "gateway/app" || folder == "gateway/setup" || folder == "gateway/cli"
}

func TestImportsFollowTheArrows(t *testing.T) {
	for _, f := range sources(t) {
		for _, imported := range f.imports {
			if why := forbidden(f.folder(), imported, f.test); why != "" {
				t.Errorf("%s imports %s: %s", f.path, imported, why)
			}
		}
	}
}

func TestForbidden(t *testing.T) {
	for _, tc := range []struct {
		folder, imported string
		test, bad        bool
	}{
		{"infra/policy", "slices", false, false},
		{"infra/policy", "reveille/infra/state", false, true},
		{"infra/policy", "pgregory.net/rapid", true, false},
		{"infra/policy", "pgregory.net/rapid", false, true},
		{"infra/policy/sub", "reveille/infra/policy", false, false},
		{"infra/state", "reveille/infra/policy", false, false},
		{"infra/state", "reveille/gateway/scheduling", false, true},
		{"infra/state", "reveille/testenv", true, false},
		{"infra/config", "reveille/runner/app", true, false},
		{"infra/config", "reveille/runner/app", false, true},
		{"infra/state", "reveille/testenv", false, true},
		{"gateway/app", "reveille/runner/engine", false, false},
		{"gateway/httpapi", "reveille/runner/app", true, false},
		{"gateway/models", "reveille/runner/plan", false, true},
		{"gateway", "reveille/gateway/scheduling", false, false},
		{"runner", "reveille/gateway/scheduling", false, true},
		{"runner/engine", "reveille/warmer/sweep", false, true},
		{"warmer", "reveille/runner", false, true},
		{"testenv/system", "reveille/runner/engine", false, false},
	} {
		if got := forbidden(tc.folder, tc.imported, tc.test); (got != "") != tc.bad {
			t.Errorf("%s importing %s (test: %v): %q, want forbidden %v", tc.folder, tc.imported, tc.test, got, tc.bad)
		}
	}
}

func TestEveryPackageHasOneComment(t *testing.T) {
	comments := map[string][]string{}
	for _, f := range sources(t) {
		if f.test {
			continue
		}
		if _, known := comments[f.folder()]; !known {
			comments[f.folder()] = nil
		}
		if f.syntax.Doc != nil {
			comments[f.folder()] = append(comments[f.folder()], f.path)
		}
	}
	for folder, files := range comments {
		if len(files) != 1 {
			t.Errorf("package in %s has %d package comments, want one: %v", folder, len(files), files)
		}
	}
}

// TestPackagesAreOnTheMap: the table of folders in architecture.md has every package of the programs.
func TestPackagesAreOnTheMap(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(Root(t), "infra", "docs", "architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, top := range []string{"gateway", "runner", "warmer", "infra"} {
		files, _ := filepath.Glob(filepath.Join(Root(t), top, "*", "*.go"))
		folders := map[string]bool{}
		for _, file := range files {
			folders[top+"/"+filepath.Base(filepath.Dir(file))] = true
		}
		delete(folders, top+"/app") // the wiring of each program
		for folder := range folders {
			if !bytes.Contains(text, []byte("`"+folder+"`")) {
				t.Errorf("infra/docs/architecture.md does not say what %s is for", folder)
			}
		}
	}
}

// TestPackagesAreSmall: a package that one person can read in an afternoon.
func TestPackagesAreSmall(t *testing.T) {
	const most = 4500 // lines, without tests
	lines := map[string]int{}
	walk(t, Root(t), func(path string) {
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return
		}
		text, err := os.ReadFile(filepath.Join(Root(t), path))
		if err != nil {
			t.Fatal(err)
		}
		lines[filepath.Dir(path)] += bytes.Count(text, []byte("\n"))
	})
	for folder, n := range lines {
		if n > most {
			t.Errorf("%s has %d lines, want at most %d: move a part with a purpose of its own to another package", folder, n, most)
		}
	}
}

func TestNoInit(t *testing.T) {
	for _, f := range sources(t) {
		for _, decl := range f.syntax.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
				t.Errorf("%s has an init function: wiring belongs in run, where it can be read", f.path)
			}
		}
	}
}

// contract returns the words that a script's leading comment must hold, in any case: what
// it is given if it is given anything, what it returns, what it keeps true. A library is
// no operation but what the others begin with.
func contract(path, script string) []string {
	var words []string
	for _, given := range []string{"KEYS", "ARGV"} {
		if strings.Contains(script, given+"[") {
			words = append(words, given)
		}
	}
	if strings.Contains(path, "/lib/") {
		return words
	}
	return append(words, "Returns", "Invariant")
}

func TestEveryLuaScriptHasAContractAndACaller(t *testing.T) {
	root := Root(t)
	embedded := map[string]bool{} // folder/file.lua named by a go:embed line
	for _, f := range sources(t) {
		for _, group := range f.syntax.Comments {
			for _, c := range group.List {
				if patterns, ok := strings.CutPrefix(c.Text, "//go:embed "); ok {
					for pattern := range strings.FieldsSeq(patterns) {
						matches, _ := filepath.Glob(filepath.Join(root, f.folder(), pattern))
						for _, m := range matches {
							embedded[m] = true
						}
					}
				}
			}
		}
	}
	walk(t, root, func(path string) {
		if !strings.HasSuffix(path, ".lua") {
			return
		}
		if !embedded[filepath.Join(root, path)] {
			t.Errorf("%s: no Go file embeds it", path)
		}
		header, script := splitLua(t, filepath.Join(root, path))
		for _, word := range contract(path, script) {
			if !strings.Contains(strings.ToLower(header), strings.ToLower(word)) {
				t.Errorf("%s: its leading comment lacks %q", path, word)
			}
		}
	})
}

// splitLua returns the comment at the start of a Lua file, after a #! line, and the rest.
func splitLua(t *testing.T, file string) (header, script string) {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	rest := string(raw)
	for line := range strings.Lines(rest) {
		if !strings.HasPrefix(line, "--") && !strings.HasPrefix(line, "#!") && strings.TrimSpace(line) != "" {
			break
		}
		header += line
		rest = rest[len(line):]
	}
	return header, rest
}

func TestTopLevelIsTheAgreedOne(t *testing.T) {
	allowed := []string{
		"gateway", "runner", "warmer", "infra", "terraform", "testenv",
		"go.mod", "go.sum", "Makefile", "README.md",
		"bin", "dist", "shared", // not in the repository: built here, or lent to it
	}
	entries, err := os.ReadDir(Root(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") && !slices.Contains(allowed, e.Name()) {
			t.Errorf("%s at the top level: it belongs in one of the folders there", e.Name())
		}
	}
}
