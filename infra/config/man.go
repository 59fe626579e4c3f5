package config

import (
	"fmt"
	"io"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// writeMan writes a program's manual page, in the macros of man(7).
func writeMan(out io.Writer, program *cobra.Command) error {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH %s 1 \"\" \"Reveille %s\" Reveille\n.ad l\n.SH NAME\n%s \\- %s\n", roff(strings.ToUpper(program.Name())), roff(Version()), roff(program.Name()), roff(program.Short))
	b.WriteString(".SH SYNOPSIS\n")
	if program.HasAvailableSubCommands() {
		fmt.Fprintf(&b, ".B %s\n.I command\n[flags]\n.SH COMMANDS\n", roff(program.Name()))
		manCommands(&b, program)
	} else {
		fmt.Fprintf(&b, ".B %s\n[flags]\n", roff(program.Name()))
	}
	b.WriteString(".SH OPTIONS\n")
	manFlags(&b, program)
	fmt.Fprintf(&b, ".SH ENVIRONMENT\nEvery flag is also an environment variable: %s and the flag's name in upper snake case. Flags take precedence. An empty variable counts as not set.\n", roff(EnvPrefix))
	b.WriteString(".SH EXIT STATUS\n0 on success, 1 if the command failed, 2 if the command line is wrong.\n")
	_, err := io.WriteString(out, b.String())
	return err
}

// manCommands writes the commands below one.
func manCommands(b *strings.Builder, c *cobra.Command) {
	for _, below := range c.Commands() {
		if !below.IsAvailableCommand() || below.Name() == "completion" {
			continue
		}
		if below.Runnable() {
			fmt.Fprintf(b, ".SS %s\n%s\n", roff(below.UseLine()), roff(below.Short))
			manFlags(b, below)
		}
		manCommands(b, below)
	}
}

// manFlags writes a command's flags.
func manFlags(b *strings.Builder, c *cobra.Command) {
	c.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" && c.HasParent() {
			return
		}
		name := "--" + f.Name
		if f.NoOptDefVal == "" {
			name += "=" + f.Value.Type()
		}
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		fmt.Fprintf(b, ".TP\n.B %s\n%s", roff(name), roff(f.Usage))
		if f.DefValue != "" && f.DefValue != "false" {
			fmt.Fprintf(b, " Default: %s.", strings.ReplaceAll(roff(f.DefValue), ",", `,\:`))
		}
		b.WriteByte('\n')
	})
}

// roffEscapes keep text from being read as requests and escapes; a hyphen is one that can be copied.
var roffEscapes = strings.NewReplacer(`\`, `\e`, "-", `\-`, "\n", " ")

// roff returns text for a line of a manual page.
func roff(text string) string {
	var b strings.Builder
	for _, r := range roffEscapes.Replace(strings.TrimSpace(text)) {
		if r > unicode.MaxASCII {
			fmt.Fprintf(&b, `\[u%04X]`, r)
		} else {
			b.WriteRune(r)
		}
	}
	text = b.String()
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		text = `\&` + text
	}
	return text
}
