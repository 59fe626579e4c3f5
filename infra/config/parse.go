package config

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"github.com/caarlos0/env/v11"
)

// EnvPrefix begins the name of every environment variable that is read.
const EnvPrefix = "REVEILLE_"

// unprefixed are variables that other tools read too; they count where the same name with EnvPrefix is not set.
var unprefixed = []string{"HF_ENDPOINT", "HF_TOKEN"}

// Parse fills settings, a pointer to a program's settings or to a struct of its commands, from the command line args
// (without the program's name), the environment, and the defaults, in this order of precedence. A setting's variable is
// EnvPrefix and its flag's name in upper snake case; an empty one counts as not set. The result runs the command.
// With --help or --version, Parse prints the help or the version and ends the program. Errors name the flag or the variable.
func Parse(settings any, name, description string, args []string, options ...kong.Option) (*kong.Context, error) {
	parser, err := kong.New(settings, append([]kong.Option{
		kong.Name(name), kong.Description(description), kong.PostBuild(withoutEnvironment), kong.ValueFormatter(describe),
		kong.ConfigureHelp(kong.HelpOptions{WrapUpperBound: 120}), kong.Embed(&versionFlag{}), kong.Embed(&manFlag{}), kong.Vars{"version": Version()},
	}, options...)...)
	if err != nil {
		return nil, err
	}
	c, err := parser.Parse(joinValues(joinLimits(args)))
	if err != nil {
		return nil, err
	}
	if err := fromEnvironment(settings, c); err != nil {
		return nil, err
	}
	return c, c.Validate()
}

// MustParse is Parse of the program's own command line; an error ends the program with status 2.
func MustParse(settings any, name, description string, options ...kong.Option) *kong.Context {
	c, err := Parse(settings, name, description, os.Args[1:], options...)
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: error: %v\n", name, err)
		os.Exit(2)
	}
	return c
}

// negative is a number or a duration below zero.
var negative = regexp.MustCompile(`^-[0-9.]+[a-z0-9.]*$`)

// joinValues joins a value that begins with a hyphen to its flag, so that neither it nor arguments for an engine need "=".
func joinValues(args []string) []string {
	var out []string
	for i := 0; i < len(args); i++ {
		a := args[i]
		if a == "--" {
			return append(out, args[i:]...)
		}
		if next := i + 1; next < len(args) && strings.HasPrefix(a, "--") && !strings.Contains(a, "=") &&
			(negative.MatchString(args[next]) || strings.HasSuffix(a, "-args") && strings.HasPrefix(args[next], "-")) {
			a += "=" + args[next]
			i++
		}
		out = append(out, a)
	}
	return out
}

// fromEnvironment sets the command's flags that are not on its command line.
func fromEnvironment(settings any, c *kong.Context) error {
	given := map[*kong.Flag]bool{}
	for _, p := range c.Path {
		given[p.Flag] = true
	}
	command := c.Selected()
	if command != nil {
		settings = command.Target.Addr().Interface()
	}
	for _, f := range c.Flags() {
		name := variable(f.Value)
		value := os.Getenv(name)
		if plain := strings.TrimPrefix(name, EnvPrefix); value == "" && slices.Contains(unprefixed, plain) {
			value = os.Getenv(plain)
		}
		if value == "" || given[f] || isCommand(f.Name) {
			continue
		}
		// One at a time, so that an error names its variable.
		err := env.ParseWithOptions(settings, env.Options{Prefix: EnvPrefix, UseFieldNameByDefault: true, Environment: map[string]string{name: value}})
		if err != nil {
			return fmt.Errorf("%s: %w", name, cause(err))
		}
	}
	return nil
}

// isCommand reports whether a flag asks for something to print and sets nothing.
func isCommand(flag string) bool { return flag == "help" || flag == "version" || flag == "man" }

// cause is the parser's own error, without the library's words about Go's fields and types.
func cause(err error) error {
	var all env.AggregateError
	var parse env.ParseError
	if errors.As(err, &all) && len(all.Errors) > 0 && errors.As(all.Errors[0], &parse) {
		return parse.Err
	}
	return err
}

// variable is the environment variable of a flag.
func variable(v *kong.Value) string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(v.Name, "-", "_"))
}

// describe is a setting's help text.
func describe(v *kong.Value) string {
	if v.Flag == nil || isCommand(v.Name) {
		return v.Help
	}
	return strings.TrimSuffix(v.Help, ".") + " ($" + variable(v) + ")."
}

// withoutEnvironment keeps kong from reading the variables of `env` tags itself.
func withoutEnvironment(k *kong.Kong) error {
	return kong.Visit(k.Model, func(node kong.Visitable, next kong.Next) error {
		if f, ok := node.(*kong.Flag); ok {
			f.Envs, f.Tag.Envs = nil, nil
		}
		return next(nil)
	})
}
