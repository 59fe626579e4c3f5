package config

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"unicode"

	"github.com/alecthomas/kong"
)

// manFlag is a flag of every program.
type manFlag struct {
	Man manPage `hidden:"" help:"Print the manual page and exit."`
}

type manPage bool

// BeforeReset implements kong's hook: it prints the page and ends the program.
func (manPage) BeforeReset(app *kong.Kong) error {
	if err := writeMan(app.Stdout, app.Model); err != nil {
		return err
	}
	app.Exit(0)
	return nil
}

// writeMan writes a program's manual page, in the macros of man(7).
func writeMan(out io.Writer, app *kong.Application) error {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH %s 1 \"\" \"Reveille %s\" Reveille\n.ad l\n.SH NAME\n%s \\- %s\n", roff(strings.ToUpper(app.Name)), roff(Version()), roff(app.Name), roff(app.Help))
	commands := app.Leaves(true)
	b.WriteString(".SH SYNOPSIS\n")
	if len(app.Children) > 0 {
		fmt.Fprintf(&b, ".B %s\n.I command\n[flags]\n.SH COMMANDS\n", roff(app.Name))
		for _, c := range commands {
			fmt.Fprintf(&b, ".SS %s\n%s\n", roff(app.Name+" "+c.Summary()), roff(c.Help))
			for _, a := range c.Positional {
				if a.Help != "" {
					fmt.Fprintf(&b, ".TP\n.I %s\n%s\n", roff(a.Summary()), roff(a.Help))
				}
			}
			manFlags(&b, c.AllFlags(true)[1:]) // without the program's own
		}
	} else {
		fmt.Fprintf(&b, ".B %s\n[flags]\n", roff(app.Name))
	}
	b.WriteString(".SH OPTIONS\n")
	manFlags(&b, [][]*kong.Flag{app.Flags})
	fmt.Fprintf(&b, ".SH ENVIRONMENT\nEvery flag is also an environment variable: %s and the flag's name in upper snake case. Flags take precedence. An empty variable counts as not set.\n", roff(EnvPrefix))
	b.WriteString(".SH EXIT STATUS\n0 on success, 1 if the command failed, 2 if the command line is wrong.\n")
	_, err := io.WriteString(out, b.String())
	return err
}

// manFlags writes flags, in groups of a command and its parents.
func manFlags(b *strings.Builder, groups [][]*kong.Flag) {
	for _, flags := range groups {
		for _, f := range flags {
			if f.Hidden {
				continue
			}
			name := "--" + f.Name
			if !f.IsBool() {
				name += "=" + cmp.Or(f.PlaceHolder, "VALUE")
			}
			if f.Short != 0 {
				name = "-" + string(f.Short) + ", " + name
			}
			fmt.Fprintf(b, ".TP\n.B %s\n%s", roff(name), roff(f.Help))
			if f.HasDefault && f.Default != "" && f.Default != "false" {
				fmt.Fprintf(b, " Default: %s.", strings.ReplaceAll(roff(f.Default), ",", `,\:`))
			}
			b.WriteByte('\n')
		}
	}
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
