package testenv

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// arrows are the imports that the architecture forbids: files below a folder import no package below another one.
var arrows = []struct {
	from, to, why string
	tests         bool // tests are held to it, too
}{
	{"infra", "gateway", "infra is below the programs", false},
	{"infra", "runner", "infra is below the programs", false},
	{"infra", "warmer", "infra is below the programs", false},
	{"runner", "gateway", "only gateway may import packages of other programs", true},
	{"runner", "warmer", "only gateway may import packages of other programs", true},
	{"warmer", "gateway", "only gateway may import packages of other programs", true},
	{"warmer", "runner", "only gateway may import packages of other programs", true},
	{"gateway", "runner", "only what starts, prepares or describes a runner on this machine may import one", false},
	{"gateway", "testenv", "testenv is for tests", false},
	{"runner", "testenv", "testenv is for tests", false},
	{"warmer", "testenv", "testenv is for tests", false},
	{"infra", "testenv", "testenv is for tests", false},
	{"infra/policy", "infra/state", "policy decides and does nothing else", false},
	{"infra/policy", "infra/catalog", "policy decides and does nothing else", false},
}

// startsRunners are the packages of the gateway that start a runner, for gateway run, or prepare one.
var startsRunners = []string{"gateway/app/", "gateway/setup/", "gateway/cli/"}

func TestImportsFollowTheArrows(t *testing.T) {
	root := Root(t)
	for _, program := range []string{"gateway", "runner", "warmer", "infra"} {
		eachFile(t, filepath.Join(root, program), ".go", func(path string) {
			syntax, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
			if err != nil {
				t.Fatal(err)
			}
			file, _ := filepath.Rel(root, path)
			for _, spec := range syntax.Imports {
				imported := strings.Trim(spec.Path.Value, `"`) + "/"
				for _, a := range arrows {
					begins := func(folder string) bool { return strings.HasPrefix(file, folder) }
					if a.to == "runner" && slices.ContainsFunc(startsRunners, begins) {
						continue
					}
					if strings.HasPrefix(file, a.from+"/") && strings.HasPrefix(imported, "reveille/"+a.to+"/") &&
						(a.tests || !strings.HasSuffix(file, "_test.go")) {
						t.Errorf("%s imports %s: %s", file, spec.Path.Value, a.why)
					}
				}
			}
		})
	}
}

// TestProgramsHaveTimeZones: the images have no files of time zones, and schedules are in the zone that TZ names.
func TestProgramsHaveTimeZones(t *testing.T) {
	for _, program := range []string{"reveille/gateway", "reveille/warmer"} {
		deps, err := exec.Command("go", "list", "-deps", program).Output()
		if err != nil || !strings.Contains(string(deps), "\ntime/tzdata\n") {
			t.Errorf("%s has no time/tzdata (%v)", program, err)
		}
	}
}

// TestLinksOfDocuments: each relative link leads to a file, and each test that a document names exists.
func TestLinksOfDocuments(t *testing.T) {
	root := Root(t)
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)[A-Z]\w*)\(`)
	tests := map[string]bool{} // name, and folder/name
	eachFile(t, root, "_test.go", func(path string) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		folder, _ := filepath.Rel(root, filepath.Dir(path))
		for _, m := range declared.FindAllStringSubmatch(string(text), -1) {
			tests[m[1]], tests[filepath.ToSlash(folder)+"/"+m[1]] = true, true
		}
	})
	link := regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`)
	named := regexp.MustCompile("`((?:[a-z][a-z0-9/]*/)?(?:Test|Fuzz|Benchmark)[A-Z]\\w*)`")
	eachFile(t, root, ".md", func(path string) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), filepath.FromSlash(m[1]))); err != nil {
				t.Errorf("%s links to %s", path, m[1])
			}
		}
		for _, m := range named.FindAllStringSubmatch(string(text), -1) {
			if !tests[m[1]] {
				t.Errorf("%s names the test %s, which is not there", path, m[1])
			}
		}
	})
}

// TestWarmPathIsTrue: gateway/doc.go names functions and types that exist.
func TestWarmPathIsTrue(t *testing.T) {
	root := Root(t)
	text, err := os.ReadFile(filepath.Join(root, "gateway", "doc.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`\[(\w+)\.(?:(\w+)\.)?(\w+)\]`).FindAllStringSubmatch(string(text), -1) {
		receiver := ""
		if m[2] != "" {
			receiver = `\(\w+ \*?` + m[2] + `\) `
		}
		declared, found := regexp.MustCompile(`(?m)^(?:func `+receiver+m[3]+`\(|type `+m[3]+` )`), false
		for _, top := range []string{"gateway", "infra"} {
			files, _ := filepath.Glob(filepath.Join(root, top, m[1], "*.go"))
			for _, file := range files {
				source, err := os.ReadFile(file)
				found = found || err == nil && declared.Match(source)
			}
		}
		if !found {
			t.Errorf("gateway/doc.go names %s, which is not there", m[0])
		}
	}
}

// eachFile visits the files below a folder whose names end so, but for dot folders, testdata, and what is built or lent.
func eachFile(t *testing.T, folder, ending string, visit func(path string)) {
	t.Helper()
	err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && path != folder {
			switch name := d.Name(); {
			case strings.HasPrefix(name, "."), name == "testdata", name == "bin", name == "dist", name == "shared", name == "node_modules":
				return filepath.SkipDir
			}
		}
		if err == nil && strings.HasSuffix(path, ending) {
			visit(path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
