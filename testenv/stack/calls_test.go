package stack

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"reveille/testenv"
)

// TestCalls holds three lists together, each way: the API calls of AWS that are in the programs' code and in user data, the
// table of calls in the README, and the statements of the roles' policies.
func TestCalls(t *testing.T) {
	text := read(t, "terraform", "README.md")
	listed, granted, called := callTable(t, text)
	for _, m := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\| ([a-z, ]+) \\| [^|]+ \\|$").FindAllStringSubmatch(section(t, text, "### Statements for AWS's own agents"), -1) {
		for program := range strings.SplitSeq(m[2], ", ") {
			granted[program+" "+m[1]] = true // whatever its actions
		}
	}

	// The code. A program may link a call that it never makes, such as a driver's: then its line leaves it out.
	made := map[string]bool{}
	for _, program := range []string{"gateway", "runner", "warmer"} {
		linked := callsOf(t, program)
		for call := range linked {
			made[call] = true
		}
		for line := range listed {
			if who, call, _ := strings.Cut(line, " "); who == program && !linked[call] && !inUserData(t, program)[call] {
				t.Errorf("README: %s is said to call %s, but has no such call", program, call)
			}
		}
		for call := range inUserData(t, program) {
			made[call] = true
			if !listed[program+" "+call] {
				t.Errorf("README: user data of the %s calls %s, which its line does not say", program, call)
			}
		}
	}
	for call := range made {
		if !called[call] {
			t.Errorf("README: %s is called and not in the table", call)
		}
	}

	// The policies.
	has := statements(t)
	for role, grants := range has {
		for grant := range grants {
			sid, _, _ := strings.Cut(grant, " ")
			if !granted[role+" "+grant] && !granted[role+" "+sid] {
				t.Errorf("iam.tf: the role %s has %s, for which the README has no call", role, grant)
			}
		}
	}
	for line := range granted {
		role, grant, _ := strings.Cut(line, " ")
		same := func(s string) bool { return s == grant || strings.HasPrefix(s, grant+" ") }
		if !slices.ContainsFunc(slices.Collect(maps.Keys(has[role])), same) {
			t.Errorf("iam.tf: the role %s has no statement %s, which the README names", role, grant)
		}
	}
}

// callTable reads the README's table of calls: "program call", "program statement action" and "service:Call".
func callTable(t *testing.T, text string) (listed, granted, called map[string]bool) {
	t.Helper()
	listed = map[string]bool{}
	granted = map[string]bool{}
	called = map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(\\w+:\\w+)` \\| ([a-z, ]+) \\| `(\\w+)`: ((?:`\\w+:\\w+`(?:, )?)+) \\|$").FindAllStringSubmatch(text, -1) {
		called[m[1]] = true
		for program := range strings.SplitSeq(m[2], ", ") {
			listed[program+" "+m[1]] = true
			for action := range strings.SplitSeq(m[4], ", ") {
				granted[program+" "+m[3]+" "+strings.Trim(action, "`")] = true
			}
		}
	}
	if len(called) == 0 {
		t.Fatal("the README has no table of calls")
	}
	return listed, granted, called
}

// section is the part of a Markdown text from a heading to the next one.
func section(t *testing.T, text, heading string) string {
	t.Helper()
	_, rest, ok := strings.Cut(text, heading+"\n")
	if !ok {
		t.Fatalf("the README has no %q", heading)
	}
	body, _, _ := strings.Cut(rest, "\n#")
	return body
}

const sdkServices = "github.com/aws/aws-sdk-go-v2/service/"

// callsOf are the API calls in the packages of this project that a program is built of. Each takes an input of its name, or is one
// of awsquery, by the driver of EC2 or for a group of Auto Scaling.
func callsOf(t *testing.T, program string) map[string]bool {
	t.Helper()
	list := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", `{{if and .Module .Module.Main}}{{$d := .Dir}}{{range .GoFiles}}{{$d}}/{{.}}{{"\n"}}{{end}}{{end}}`, "./"+program)
	list.Dir = testenv.Root(t)
	out, err := list.Output()
	if err != nil {
		t.Fatal("go list:", err)
	}
	found := map[string]bool{}
	for _, file := range strings.Fields(string(out)) {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		local := map[string]string{} // by the name that the file gives the package
		for _, i := range f.Imports {
			if service, ok := strings.CutPrefix(strings.Trim(i.Path.Value, `"`), sdkServices); ok && !strings.Contains(service, "/") {
				name := path.Base(service)
				if i.Name != nil {
					name = i.Name.Name
				}
				local[name] = service
			}
		}
		query := ""
		if slices.ContainsFunc(f.Imports, func(i *ast.ImportSpec) bool { return i.Path.Value == `"reveille/infra/awsquery"` }) {
			query = map[bool]string{true: "ec2", false: "autoscaling"}[path.Base(path.Dir(file)) == "ec2"]
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok && query != "" && len(call.Args) == 4 {
				if action, ok := call.Args[1].(*ast.BasicLit); ok {
					found[query+":"+strings.Trim(action.Value, `"`)] = true
				}
			}
			literal, ok := n.(*ast.CompositeLit) // an input as it is made; its type alone is in interfaces too
			if !ok {
				return true
			}
			if s, ok := literal.Type.(*ast.SelectorExpr); ok {
				x, _ := s.X.(*ast.Ident)
				if call, ok := strings.CutSuffix(s.Sel.Name, "Input"); ok && x != nil && local[x.Name] != "" {
					found[local[x.Name]+":"+call] = true
				}
			}
			return true
		})
	}
	return found
}

// inUserData are the API calls that a program's user data makes by the AWS CLI.
func inUserData(t *testing.T, program string) map[string]bool {
	t.Helper()
	file, ok := map[string]string{"gateway": "templates/gateway_user_data.sh.tftpl", "runner": "modules/runner-pool/templates/user_data.sh.tftpl"}[program]
	if !ok {
		return nil
	}
	found := map[string]bool{}
	for _, m := range regexp.MustCompile(`\baws (s3|secretsmanager|autoscaling|ec2|ssm) ([a-z0-9-]+)`).FindAllStringSubmatch(read(t, "terraform", file), -1) {
		switch m[1] + " " + m[2] {
		case "s3 sync":
			found["s3:ListObjectsV2"] = true
			found["s3:GetObject"] = true
		case "s3 cp":
			found["s3:GetObject"] = true // to a pipe or a file; to a file it asks for the size first
			found["s3:HeadObject"] = true
		default:
			var call strings.Builder
			for word := range strings.SplitSeq(m[2], "-") {
				call.WriteString(strings.ToUpper(word[:1]) + word[1:])
			}
			found[m[1]+":"+call.String()] = true
		}
	}
	return found
}

var (
	document  = regexp.MustCompile(`(?ms)^data "aws_iam_policy_document" "(\w+)" \{\n(.*?)^\}`)
	statement = regexp.MustCompile(`(?ms)^  statement \{\n(.*?)^  \}`)
	sid       = regexp.MustCompile(`sid +=\s+"(\w+)"`)
	actions   = regexp.MustCompile(`(?s)actions +=\s+\[(.*?)\]`)
	quoted    = regexp.MustCompile(`"([^"]+)"`)
	source    = regexp.MustCompile(`data\.aws_iam_policy_document\.(\w+)`)
)

// statements are those of each role's policy, as "SID service:Action".
func statements(t *testing.T) map[string]map[string]bool {
	t.Helper()
	documents := map[string]string{}
	for _, m := range document.FindAllStringSubmatch(read(t, "terraform", "iam.tf"), -1) {
		documents[m[1]] = m[2]
	}
	roles := map[string]map[string]bool{}
	for _, role := range []string{"gateway", "runner", "warmer"} {
		roles[role] = map[string]bool{}
		bodies := []string{documents[role]}
		for _, m := range source.FindAllStringSubmatch(documents[role], -1) {
			bodies = append(bodies, documents[m[1]])
		}
		for _, body := range bodies {
			for _, s := range statement.FindAllStringSubmatch(body, -1) {
				name, list := sid.FindStringSubmatch(s[1]), actions.FindStringSubmatch(s[1])
				if name == nil || list == nil {
					t.Fatalf("iam.tf: a statement of %s without sid or actions:%s", role, s[1])
				}
				for _, a := range quoted.FindAllStringSubmatch(list[1], -1) {
					if strings.Contains(a[1], "*") {
						t.Errorf("iam.tf: %s names %s, not its actions one by one", name[1], a[1])
					}
					roles[role][fmt.Sprintf("%s %s", name[1], a[1])] = true
				}
			}
		}
		if len(roles[role]) == 0 {
			t.Fatalf("iam.tf: no statements of the role %s", role)
		}
	}
	return roles
}
