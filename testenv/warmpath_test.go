package testenv

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestWarmPathIsTrue: gateway/doc.go names functions that exist, few enough to read in one sitting, in few files.
func TestWarmPathIsTrue(t *testing.T) {
	const most, mostFiles = 35, 20
	root := Root(t)
	text, err := os.ReadFile(filepath.Join(root, "gateway", "doc.go"))
	if err != nil {
		t.Fatal(err)
	}
	folders := map[string]string{}
	for _, pattern := range []string{"gateway/*", "infra/*"} {
		dirs, _ := filepath.Glob(filepath.Join(root, filepath.FromSlash(pattern)))
		for _, dir := range dirs {
			folders[filepath.Base(dir)] = dir
		}
	}
	named := regexp.MustCompile(`\[(\w+)\.([\w.]+)\]`).FindAllStringSubmatch(string(text), -1)
	if len(named) == 0 || len(named) > most {
		t.Errorf("gateway/doc.go names %d functions, want 1 to %d", len(named), most)
	}
	known, files := map[string]map[string]string{}, map[string]bool{}
	for _, m := range named {
		folder, name := m[1], m[2]
		if known[folder] == nil {
			known[folder] = functionsIn(t, folders[folder])
		}
		file := known[folder][name]
		if files[file] = true; file == "" {
			t.Errorf("gateway/doc.go names %s, which is not in %s", m[0], folders[folder])
		}
	}
	if len(files) > mostFiles {
		t.Errorf("the functions of gateway/doc.go are in %d files, want at most %d: %v", len(files), mostFiles, slices.Sorted(maps.Keys(files)))
	}
}

// functionsIn lists a folder's functions as name and its methods as Type.name, with their files, without those of tests.
func functionsIn(t *testing.T, dir string) map[string]string {
	t.Helper()
	files, _ := filepath.Glob(filepath.Join(dir, "*.go"))
	names := map[string]string{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			fn, is := d.(*ast.FuncDecl)
			if !is {
				continue
			}
			name := fn.Name.Name
			if fn.Recv != nil {
				receiver := fn.Recv.List[0].Type
				if star, pointer := receiver.(*ast.StarExpr); pointer {
					receiver = star.X
				}
				if id, plain := receiver.(*ast.Ident); plain {
					name = id.Name + "." + name
				}
			}
			names[name] = file
		}
	}
	return names
}
