package config

import (
	"fmt"
	"io"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
)

// writeMan writes a program's manual page, in the macros of man(7): the help of each command.
func writeMan(out io.Writer, program *cobra.Command) error {
	var b strings.Builder
	name := roff(program.Name())
	fmt.Fprintf(&b, ".TH %s 1 \"\" \"Reveille %s\" Reveille\n.ad l\n", strings.ToUpper(name), roff(Version()))
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n.SH COMMANDS\n", name, roff(program.Short))
	manCommands(&b, program)
	fmt.Fprintf(&b, ".SH ENVIRONMENT\nEvery flag is also an environment variable: %s and the flag's name in upper snake case. "+
		"Flags take precedence. An empty variable counts as not set.\n", roff(EnvPrefix))
	b.WriteString(".SH EXIT STATUS\n0 on success, 1 if the command failed, 2 if the command line is wrong.\n")
	_, err := io.WriteString(out, b.String())
	return err
}

// manCommands writes a command and those below it.
func manCommands(b *strings.Builder, c *cobra.Command) {
	if c.Runnable() {
		fmt.Fprintf(b, ".SS %s\n%s\n.nf\n", roff(c.UseLine()), roff(c.Short))
		for line := range strings.Lines(c.NonInheritedFlags().FlagUsagesWrapped(80)) {
			fmt.Fprintf(b, "\\&%s\n", roff(strings.TrimRight(line, "\n")))
		}
		b.WriteString(".fi\n")
	}
	for _, below := range c.Commands() {
		if below.IsAvailableCommand() && below.Name() != "completion" {
			manCommands(b, below)
		}
	}
}

// roff returns text for a line of a manual page. A hyphen is one that can be copied.
func roff(text string) string {
	var b strings.Builder
	for _, r := range strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text) {
		if r > unicode.MaxASCII {
			fmt.Fprintf(&b, `\[u%04X]`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}
