package config

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/caarlos0/env/v11"
	"github.com/spf13/cobra"
)

// EnvPrefix begins the name of every environment variable that is read.
const EnvPrefix = "REVEILLE_"

// unprefixed are variables that other tools read too; they count where the same name with EnvPrefix is not set.
var unprefixed = []string{"HF_ENDPOINT", "HF_TOKEN"}

// Vars are defaults that differ by program: a tag default:"${name}" takes the value of name.
type Vars map[string]string

// Runner is a command.
type Runner interface {
	// Run runs the command, which prints to out.
	Run(ctx context.Context, out io.Writer) error
}

// Command is what a command line asks for.
type Command struct {
	Flags    []*Flag // of the command, in the order of its struct; not those of every program
	settings reflect.Value
}

// Run runs the command, whose settings must be a [Runner].
func (c *Command) Run(ctx context.Context, out io.Writer) error {
	return c.settings.Addr().Interface().(Runner).Run(ctx, out)
}

// Parse fills settings, a pointer to a program's settings or to a struct of its commands, from the command line args
// (without the program's name), the environment, and the defaults, in this order of precedence. A setting's variable is
// EnvPrefix and its flag's name in upper snake case; an empty one counts as not set. Parse calls the settings' method
// Validate if they have one. With --help, --version or --man, Parse prints what is asked for and ends the program. Errors name
// the flag or the variable.
//
// These tags describe a field: help; default; enum, the values that it may have, and placeholder, the word for its value in
// the help; name, if the flag's is not the field's in kebab case; short; arg for an argument, which may be optional; cmd for
// a command or a group of commands, where the one with a default runs if none is named; required.
func Parse(settings any, name, description string, args []string, vars ...Vars) (*Command, error) {
	p := parser{vars: vars}
	cobra.EnableCommandSorting = false // the order of the struct
	root := p.command(reflect.ValueOf(settings).Elem(), name, description)
	root.PersistentFlags().BoolFunc("version", "Print the version and exit.", func(string) error {
		_, err := fmt.Println(Version())
		return exit(err)
	})
	root.PersistentFlags().BoolFunc("man", "Print the manual page and exit.", func(string) error { return exit(writeMan(os.Stdout, root)) })
	_ = root.PersistentFlags().MarkHidden("man") // it is defined in the line above
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetArgs(joinLimits(args))
	if err := root.Execute(); err != nil {
		return nil, err
	}
	if p.selected == nil { // the help was printed, or a completion
		return nil, exit(nil)
	}
	return p.selected, p.selected.fill()
}

// MustParse is Parse of the program's own command line; an error ends the program with status 2.
func MustParse(settings any, name, description string, vars ...Vars) *Command {
	c, err := Parse(settings, name, description, os.Args[1:], vars...)
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: error: %v\n", name, err)
		os.Exit(2)
	}
	return c
}

// exit ends the program, unless there is an error.
func exit(err error) error {
	if err == nil {
		os.Exit(0)
	}
	return err
}

// fill sets the command's flags.
func (c *Command) fill() error {
	settings := c.settings.Addr().Interface()
	values := map[string]string{}
	for _, f := range c.Flags {
		f.target.SetZero()
		values[f.Variable()] = f.value()
	}
	if set(settings, values) != nil {
		for _, f := range c.Flags { // one at a time, so that the error names what is wrong
			if err := set(settings, map[string]string{f.Variable(): f.value()}); err != nil {
				return fmt.Errorf("%s: %w", f.source(), err)
			}
		}
	}
	for _, f := range c.Flags {
		if err := f.check(); err != nil {
			return fmt.Errorf("%s: %w", f.source(), err)
		}
	}
	if v, ok := settings.(interface{ Validate() error }); ok {
		return v.Validate()
	}
	return nil
}

// set sets the fields of settings whose variables have values.
func set(settings any, values map[string]string) error {
	err := env.ParseWithOptions(settings, env.Options{Prefix: EnvPrefix, UseFieldNameByDefault: true, Environment: values})
	var all env.AggregateError
	var parse env.ParseError
	if errors.As(err, &all) && len(all.Errors) > 0 && errors.As(all.Errors[0], &parse) {
		return parse.Err // without the library's words about Go's fields and types
	}
	return err
}

// parser makes the commands of a program.
type parser struct {
	vars     []Vars
	selected *Command // the command that the command line names
}

// command returns the command that a struct of settings describes, with the commands below it.
func (p *parser) command(settings reflect.Value, name, help string) *cobra.Command {
	c := &cobra.Command{Use: name, Short: help, Long: help, DisableFlagsInUseLine: true}
	c.Flags().SortFlags = false
	c.PersistentFlags().SortFlags = false
	c.Flags().BoolP("help", "h", false, "Show this help.")
	c.SetUsageFunc(usage)
	c.SetHelpFunc(func(c *cobra.Command, _ []string) {
		if c.Long != "" {
			fmt.Fprintf(c.OutOrStdout(), "%s\n\n", c.Long)
		}
		_ = usage(c) // to standard output, as the line before
	})
	group := false
	for _, f := range fields(settings) {
		if _, ok := f.Tag.Lookup("cmd"); !ok {
			continue
		}
		group = true
		below := p.command(f.value, f.name(), f.Tag.Get("help"))
		c.AddCommand(below)
		if f.Tag.Get("default") != "" { // runs if no other is named
			p.runs(c, f.value)
		}
	}
	switch {
	case !group:
		p.runs(c, settings)
	case c.RunE == nil:
		c.RunE = func(c *cobra.Command, _ []string) error {
			return fmt.Errorf("a command is missing; %s --help lists them", c.CommandPath())
		}
	}
	return c
}

// runs makes a command one that fills settings and runs.
func (p *parser) runs(c *cobra.Command, settings reflect.Value) {
	command := &Command{settings: settings}
	var positional []field
	for _, f := range fields(settings) {
		if _, ok := f.Tag.Lookup("arg"); ok {
			positional = append(positional, f)
			c.Use += " " + f.argument()
			continue
		}
		flag := newFlag(f, p.vars)
		command.Flags = append(command.Flags, flag)
		flag.add(c)
	}
	if len(command.Flags) > 0 {
		c.Use += " [flags]"
	}
	c.Args = func(_ *cobra.Command, args []string) error { return fillArguments(positional, args) }
	c.RunE = func(*cobra.Command, []string) error {
		p.selected = command
		return nil
	}
}

// fillArguments sets the fields of a command's arguments.
func fillArguments(positional []field, args []string) error {
	for _, f := range positional {
		_, optional := f.Tag.Lookup("optional")
		f.value.SetZero()
		switch {
		case len(args) == 0 && !optional:
			return fmt.Errorf("%s is missing", f.argument())
		case len(args) == 0:
		case f.value.Kind() == reflect.Slice:
			f.value.Set(reflect.ValueOf(slices.Clone(args)))
			args = nil
		default:
			f.value.SetString(args[0])
			args = args[1:]
		}
	}
	if len(args) > 0 {
		return fmt.Errorf("unexpected argument %q", args[0])
	}
	return nil
}

// joinLimits joins the numbers that follow --max-loaded-models as words of their own to its value, so that a list needs no
// quotes.
func joinLimits(args []string) []string {
	const flag = "--max-loaded-models"
	out := []string{} // cobra takes nil for the program's own arguments
	for i := 0; i < len(args); i++ {
		out = append(out, args[i])
		if args[i] != flag {
			continue
		}
		end := i + 1
		for end < len(args) && isNumber(args[end]) {
			end++
		}
		if end > i+1 {
			out[len(out)-1] = flag + "=" + strings.Join(args[i+1:end], " ")
			i = end - 1
		}
	}
	return out
}
