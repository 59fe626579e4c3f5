package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"reveille/infra/recipe"
	"reveille/infra/term"
	"reveille/runner/engine"
)

// askEngine bounds one question to an engine's program: those that import PyTorch take half a minute to print their
// help.
const askEngine = 2 * time.Minute

// versions match a version in what a program prints about itself: after that word, or as its last one on a line.
var versions = []*regexp.Regexp{
	regexp.MustCompile(`(?i)\bversion:? v?(\d[-+.\w]*)`),
	regexp.MustCompile(`(?m)^(?:[-.\w]+ )?v?(\d+(?:\.\d+)+[-+.\w]*)$`),
}

// imported matches the package whose function a script of a Python environment calls.
var imported = regexp.MustCompile(`(?m)^from (\w+)\S* import \w+$`)

// versionOf returns an engine's version, "unknown" if it does not tell. Many Python engines have no flag for that.
func versionOf(ctx context.Context, program string) string {
	script, err := os.ReadFile(program)
	if m := imported.FindSubmatch(script[:min(len(script), 4<<10)]); err == nil && m != nil {
		target, _ := filepath.EvalSymlinks(program)
		infos, _ := filepath.Glob(filepath.Join(filepath.Dir(target), "..", "lib", "python3*", "site-packages", string(m[1])+"-*.dist-info"))
		if len(infos) == 1 {
			return strings.TrimPrefix(strings.TrimSuffix(filepath.Base(infos[0]), ".dist-info"), string(m[1])+"-")
		}
	}
	text := ask(ctx, program, "--version")
	for _, v := range versions {
		if m := v.FindStringSubmatch(text); m != nil {
			return m[1]
		}
	}
	return "unknown"
}

// printEngines prints for each recipe the program that is found, its version, and which of the recipe's flags its help
// does not name. It runs the programs.
func printEngines(ctx context.Context, out io.Writer, recipes []recipe.Recipe, find engine.Finder) error {
	t := term.Table(out)
	fmt.Fprintln(t, "RECIPE\tPROGRAM\tVERSION\tFLAGS")
	for _, r := range recipes {
		program, err := find.Find(&r, "")
		if err != nil {
			fmt.Fprintf(t, "%s\t%s not found\t-\t-\n", r.Name, r.Program())
			continue
		}
		help := ""
		for _, words := range helps(&r) {
			text := ask(ctx, program, append(words, "--help")...)
			if strings.Contains(text, "--help=all") { // vLLM's help alone names groups of flags
				text += ask(ctx, program, append(words, "--help=all")...)
			}
			help += text
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", r.Name, program, versionOf(ctx, program), knownFlags(r.Flags(), help))
	}
	return t.Flush()
}

// helps returns the subcommands of a recipe's command that have a help of their own: none, and those before its flags.
func helps(r *recipe.Recipe) [][]string {
	all := [][]string{nil}
	for _, group := range r.Command[1:] {
		if len(group) != 1 || strings.ContainsAny(group[0][:1], "-{") {
			continue
		}
		all = append(all, []string{group[0]})
	}
	return all
}

// ask returns what a program prints, whatever its exit status.
func ask(ctx context.Context, program string, args ...string) string {
	ctx, cancel := context.WithTimeout(ctx, askEngine)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(engine.QueryEnviron(program, os.Environ()), "COLUMNS=400", "NO_COLOR=1", "TERM=dumb") // no line is cut
	cmd.WaitDelay = time.Second
	text, err := cmd.CombinedOutput()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		return ""
	}
	return string(text)
}

// knownFlags says how many flags a help names, and which it does not.
func knownFlags(flags []string, help string) string {
	words := regexp.MustCompile(`-[-\w]+`).FindAllString(help, -1)
	missing := slices.DeleteFunc(slices.Clone(flags), func(f string) bool { return slices.Contains(words, f) })
	switch {
	case len(flags) == 0:
		return "none needed"
	case len(missing) == len(flags):
		return "its help names none"
	case len(missing) > 0:
		return fmt.Sprintf("%d of %d known, not %s", len(flags)-len(missing), len(flags), strings.Join(missing, " "))
	}
	return fmt.Sprintf("all %d known", len(flags))
}
