package stack

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"reveille/testenv"
)

func read(t *testing.T, elements ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(append([]string{testenv.Root(t)}, elements...)...))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

var (
	block        = regexp.MustCompile(`(?ms)^(variable|output) "(\w+)" \{\n(.*?)^\}`)
	description  = regexp.MustCompile(`(?m)^  description = "((?:[^"\\]|\\.)*)"$`)
	defaultValue = regexp.MustCompile(`(?m)^  default     = (.*)$`)
)

// table is what the README must say of the variables or the outputs of a file, one row each, in the file's order.
func table(t *testing.T, kind, file string) []string {
	t.Helper()
	var rows, names []string
	for _, m := range block.FindAllStringSubmatch(read(t, "terraform", file), -1) {
		about := description.FindStringSubmatch(m[3])
		if m[1] != kind || about == nil {
			t.Fatalf("%s: %s %s has no description", file, m[1], m[2])
		}
		text := strings.NewReplacer(`\"`, `"`, "$${", "${", "|", `\|`).Replace(about[1])
		row := fmt.Sprintf("| `%s` | %s |", m[2], text)
		if kind == "variable" {
			value := "needed"
			if d := defaultValue.FindStringSubmatch(m[3]); d != nil {
				value = "`" + d[1] + "`"
			}
			if value == "`{`" {
				value = "one g6.xlarge"
			}
			row = fmt.Sprintf("| `%s` | %s | %s |", m[2], value, text)
		}
		rows, names = append(rows, row), append(names, m[2])
	}
	if !slices.IsSorted(names) {
		t.Errorf("%s is not in the order of the alphabet", file)
	}
	return rows
}

// TestReadmeTables keeps the tables of inputs and outputs those of the code.
func TestReadmeTables(t *testing.T) {
	readme := read(t, "terraform", "README.md")
	for kind, file := range map[string]string{"variable": "variables.tf", "output": "outputs.tf"} {
		if want := strings.Join(table(t, kind, file), "\n"); !strings.Contains(readme, want+"\n\n") && !strings.HasSuffix(readme, want+"\n") {
			t.Errorf("terraform/README.md: its table must be that of %s:\n%s", file, want)
		}
	}
}

var setting = regexp.MustCompile(`\bREVEILLE_[A-Z_]+\b`)

// TestSettingsAreFlags holds the settings that user data and Lambda functions get against the programs' own help.
func TestSettingsAreFlags(t *testing.T) {
	known := map[string]bool{}
	for _, program := range [][]string{{"gateway", "serve"}, {"runner"}, {"warmer"}} {
		help, err := exec.CommandContext(t.Context(), testenv.Build(t, program[0]), append(program[1:], "--help")...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v\n%s", program, err, help)
		}
		for _, name := range setting.FindAllString(string(help), -1) {
			known[name] = true
		}
	}
	files, err := filepath.Glob(filepath.Join(testenv.Root(t), "terraform", "*.tf"))
	more, err2 := filepath.Glob(filepath.Join(testenv.Root(t), "terraform", "modules", "*", "*.tf"))
	templates, err3 := filepath.Glob(filepath.Join(testenv.Root(t), "terraform", "modules", "*", "templates", "*"))
	if err != nil || err2 != nil || err3 != nil || len(files) == 0 || len(more) == 0 || len(templates) == 0 {
		t.Fatal("no files of the stack", err, err2, err3)
	}
	for _, file := range slices.Concat(files, more, templates) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range setting.FindAllString(string(text), -1) {
			if !known[name] {
				t.Errorf("%s: %s is no setting of any program", filepath.Base(file), name)
			}
		}
	}
}
