package config

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caarlos0/env/v11"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// EnvPrefix starts the name of every environment variable that is read.
const EnvPrefix = "REVEILLE_"

// Runner is a command.
type Runner interface {
	// Run runs the command, which prints to out.
	Run(ctx context.Context, out io.Writer) error
}

// Command is the selected command of a command line.
type Command struct {
	Flags    *pflag.FlagSet
	settings any
	enums    map[string][]string // the allowed values of a flag
	envErr   error               // mistakes in the environment
}

// Run runs the command, whose settings must be a [Runner].
func (c *Command) Run(ctx context.Context, out io.Writer) error {
	return c.settings.(Runner).Run(ctx, out)
}

// Parse fills settings, a pointer to a program's settings or to a struct of its commands, from the command line args
// (without the program's name), the environment, and the defaults, in this order of precedence. A setting's variable is
// EnvPrefix and its flag's name in upper snake case; an empty one counts as not set. Parse calls the settings' method
// Validate if they have one. With --help or --version, Parse prints the text and exits the program.
//
// A field's default is its value, or else its tag default. These tags describe it: help; enum, the allowed values;
// short; env, its variable where that is not its name, and plain, a variable without the prefix; arg for an argument,
// which may be optional; cmd for a command or a group of commands, where the one with a default runs if none is named.
func Parse(settings any, name, description string, args []string) (*Command, error) {
	var selected *Command
	cobra.EnableCommandSorting = false // the order of the struct
	root := newCommand(reflect.ValueOf(settings).Elem(), name, description, &selected)
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetUsageFunc(usage)
	root.PersistentFlags().BoolFunc("version", "Print the version and exit.", func(string) error {
		_, err := fmt.Println(Version())
		return exit(err)
	})
	root.SetArgs(joinLimits(args))
	if err := root.Execute(); err != nil {
		return nil, err
	}
	if selected == nil { // the help or a completion was printed
		return nil, exit(nil)
	}
	return selected, selected.check()
}

// MustParse is Parse of the program's command line; on an error it exits the program with status 2.
func MustParse(settings any, name, description string) *Command {
	c, err := Parse(settings, name, description, os.Args[1:])
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: error: %v\n", name, err)
		os.Exit(2)
	}
	return c
}

// usage prints a command's usage. The library's templates would prevent the linker from dropping unused methods.
func usage(c *cobra.Command) error {
	var b strings.Builder
	fmt.Fprintf(&b, "Usage: %s\n", c.UseLine())
	if c.HasAvailableSubCommands() {
		b.WriteString("\nCommands:\n")
	}
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() {
			fmt.Fprintf(&b, "  %-*s %s\n", sub.NamePadding(), sub.Name(), sub.Short)
		}
	}
	fmt.Fprintf(&b, "\nFlags:\n%s%s", c.NonInheritedFlags().FlagUsagesWrapped(100), c.InheritedFlags().FlagUsagesWrapped(100))
	_, err := io.WriteString(c.OutOrStdout(), b.String())
	return err
}

// exit exits the program, unless there is an error.
func exit(err error) error {
	if err == nil {
		os.Exit(0)
	}
	return err
}

// check reports all mistakes in values.
func (c *Command) check() error {
	errs := []error{c.envErr}
	c.Flags.VisitAll(func(f *pflag.Flag) {
		if values := c.enums[f.Name]; values != nil && !slices.Contains(values, f.Value.String()) {
			errs = append(errs, fmt.Errorf("--%s (%s): %q is none of %s", f.Name, variable(f.Name), f.Value, strings.Join(values, ", ")))
		}
	})
	if v, ok := c.settings.(interface{ Validate() error }); ok {
		errs = append(errs, v.Validate())
	}
	return errors.Join(errs...)
}

// newCommand returns the command that a struct of settings describes, with its subcommands. The command sets selected
// when it runs.
func newCommand(settings reflect.Value, name, help string, selected **Command) *cobra.Command {
	c := &cobra.Command{Use: name, Short: help, Long: help, DisableFlagsInUseLine: true}
	group := false
	for i := range settings.NumField() {
		field := settings.Type().Field(i)
		if _, ok := field.Tag.Lookup("cmd"); !ok {
			continue
		}
		group = true
		c.AddCommand(newCommand(settings.Field(i), strings.ToLower(field.Name), field.Tag.Get("help"), selected))
		if field.Tag.Get("default") != "" { // runs if no other is selected
			makeRunnable(c, settings.Field(i), selected)
		}
	}
	switch {
	case !group:
		makeRunnable(c, settings, selected)
	case c.RunE == nil:
		c.RunE = func(c *cobra.Command, _ []string) error {
			return fmt.Errorf("a command is missing; %s --help lists them", c.CommandPath())
		}
	}
	return c
}

// makeRunnable makes a command fill settings and select them.
func makeRunnable(c *cobra.Command, settings reflect.Value, selected **Command) {
	target := settings.Addr().Interface()
	command := &Command{Flags: c.Flags(), settings: target, enums: map[string][]string{}}
	options := env.Options{Prefix: EnvPrefix, UseFieldNameByDefault: true, DefaultValueTagName: "default"}
	params, err := env.GetFieldParamsWithOptions(target, options)
	if err != nil {
		panic(err)
	}
	defaults := options
	defaults.Environment, defaults.SetDefaultsForZeroValuesOnly = map[string]string{}, true
	if err := env.ParseWithOptions(target, defaults); err != nil {
		panic(err)
	}
	c.Flags().SortFlags = false
	var positional []reflect.StructField
	names := map[string]string{} // of flags, by field
	for i, field := range exported(settings.Type()) {
		name := strings.ToLower(strings.ReplaceAll(params[i].OwnKey, "_", "-"))
		switch _, isArg := field.Tag.Lookup("arg"); {
		case field.Anonymous:
		case isArg:
			positional = append(positional, field)
			c.Use += " " + argument(field)
		default:
			names[field.Name] = name
			addFlag(c.Flags(), field, settings.FieldByIndex(field.Index), name)
			if enum := field.Tag.Get("enum"); enum != "" {
				command.enums[name] = strings.Split(enum, ",")
				complete := cobra.FixedCompletions(command.enums[name], cobra.ShellCompDirectiveNoFileComp)
				_ = c.RegisterFlagCompletionFunc(name, complete) // once a flag
			}
		}
	}
	if len(names) > 0 {
		c.Use += " [flags]"
	}
	// Flags are parsed later, and take precedence.
	options.DefaultValueTagName = "-"
	plain := env.Options{TagName: "plain", DefaultValueTagName: "-"}
	command.envErr = errors.Join(env.ParseWithOptions(target, plain), env.ParseWithOptions(target, options))
	command.envErr = explain(command.envErr, names)
	c.Args = func(_ *cobra.Command, args []string) error { return fillArguments(settings, positional, args) }
	c.RunE = func(*cobra.Command, []string) error {
		*selected = command
		return nil
	}
}

// exported returns the exported fields of a struct, with those of the structs that it embeds, in the order of package
// env.
func exported(t reflect.Type) []reflect.StructField {
	return slices.DeleteFunc(reflect.VisibleFields(t), func(f reflect.StructField) bool { return !f.IsExported() })
}

// variable returns a flag's environment variable.
func variable(flag string) string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// addFlag adds a field's flag. Its default is the field's value.
func addFlag(flags *pflag.FlagSet, field reflect.StructField, value reflect.Value, name string) {
	short := field.Tag.Get("short")
	help := strings.TrimSuffix(field.Tag.Get("help"), ".") + " ($" + variable(name) + ")."
	switch p := value.Addr().Interface().(type) {
	case *string:
		flags.StringVarP(p, name, short, *p, help)
	case *bool:
		flags.BoolVarP(p, name, short, *p, help)
	case *int:
		flags.IntVarP(p, name, short, *p, help)
	case *int64:
		flags.Int64VarP(p, name, short, *p, help)
	case *float64:
		flags.Float64VarP(p, name, short, *p, help)
	case *time.Duration:
		flags.DurationVarP(p, name, short, *p, help)
	case *[]string:
		flags.StringSliceVarP(p, name, short, *p, help)
	default:
		panic(fmt.Sprintf("%s: no flag has a %T", field.Name, p))
	}
}

// explain replaces the names of Go's fields in package env's errors by the variables.
func explain(err error, names map[string]string) error {
	switch e := err.(type) {
	case nil:
		return nil
	case env.ParseError:
		return fmt.Errorf("%s: %w", variable(names[e.Name]), e.Err)
	case interface{ Unwrap() []error }:
		var errs []error
		for _, one := range e.Unwrap() {
			errs = append(errs, explain(one, names))
		}
		return errors.Join(errs...)
	}
	return err
}

// argument returns a field as an argument in the usage line.
func argument(field reflect.StructField) string {
	text := "<" + strings.ToLower(field.Name) + ">"
	if field.Type.Kind() == reflect.Slice {
		text += " ..."
	}
	if _, optional := field.Tag.Lookup("optional"); optional {
		text = "[" + text + "]"
	}
	return text
}

// fillArguments sets the fields of a command's arguments.
func fillArguments(settings reflect.Value, positional []reflect.StructField, args []string) error {
	for _, field := range positional {
		value := settings.FieldByIndex(field.Index)
		value.SetZero() // set by a variable with its name
		_, optional := field.Tag.Lookup("optional")
		switch {
		case len(args) == 0 && !optional:
			return fmt.Errorf("%s is missing", argument(field))
		case len(args) == 0:
		case value.Kind() == reflect.Slice:
			value.Set(reflect.ValueOf(slices.Clone(args)))
			args = nil
		default:
			value.SetString(args[0])
			args = args[1:]
		}
	}
	if len(args) > 0 {
		return fmt.Errorf("unexpected argument %q", args[0])
	}
	return nil
}

// joinLimits joins separate numbers after --max-loaded-models to its value, so that a list needs no quotes.
func joinLimits(args []string) []string {
	const flag = "--max-loaded-models"
	out := []string{} // cobra takes nil for the program's own arguments
	for _, arg := range args {
		_, err := strconv.Atoi(arg)
		last := len(out) - 1
		switch {
		case err != nil || last < 0:
			out = append(out, arg)
		case out[last] == flag:
			out[last] += "=" + arg
		case strings.HasPrefix(out[last], flag+"="):
			out[last] += " " + arg
		default:
			out = append(out, arg)
		}
	}
	return out
}
