package config

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
)

// field is a field of a struct of settings.
type field struct {
	reflect.StructField
	value reflect.Value
}

// fields returns the exported fields of a struct, with those of the structs that it embeds, in their order.
func fields(settings reflect.Value) (out []field) {
	for i := range settings.NumField() {
		f := field{settings.Type().Field(i), settings.Field(i)}
		if f.Anonymous {
			out = append(out, fields(f.value)...)
		} else if f.IsExported() {
			out = append(out, f)
		}
	}
	return out
}

// name is the field's name as a flag, a command or an argument.
func (f field) name() string {
	if name := f.Tag.Get("name"); name != "" {
		return name
	}
	var b strings.Builder
	letters := []rune(f.Name)
	for i, r := range letters {
		if i > 0 && unicode.IsUpper(r) && (!unicode.IsUpper(letters[i-1]) || i+1 < len(letters) && unicode.IsLower(letters[i+1])) {
			b.WriteByte('-')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// argument is the field as an argument in the line that shows the usage.
func (f field) argument() string {
	text := "<" + f.name() + ">"
	if f.value.Kind() == reflect.Slice {
		text += " ..."
	}
	if _, optional := f.Tag.Lookup("optional"); optional {
		text = "[" + text + "]"
	}
	return text
}

// Flag is a flag of a command.
type Flag struct {
	Name, Help, Default string
	Enum                []string // the values that it may have; none: any

	short, placeholder string
	required           bool
	target             reflect.Value
	given              []string // its values on the command line
}

func newFlag(f field, vars []Vars) *Flag {
	_, required := f.Tag.Lookup("required")
	flag := &Flag{
		Name: f.name(), Help: f.Tag.Get("help"), target: f.value, required: required,
		short: f.Tag.Get("short"), placeholder: f.Tag.Get("placeholder"),
		Default: os.Expand(f.Tag.Get("default"), func(name string) string {
			for _, v := range vars {
				if value, ok := v[name]; ok {
					return value
				}
			}
			return ""
		}),
	}
	if enum := f.Tag.Get("enum"); enum != "" {
		flag.Enum = strings.Split(enum, ",")
	}
	return flag
}

// add adds the flag to a command.
func (f *Flag) add(c *cobra.Command) {
	added := c.Flags().VarPF(f, f.Name, f.short, strings.TrimSuffix(f.Help, ".")+" ($"+f.Variable()+").")
	if f.isBool() {
		added.NoOptDefVal = "true"
	}
	if f.Enum != nil {
		_ = c.RegisterFlagCompletionFunc(f.Name, cobra.FixedCompletions(f.Enum, cobra.ShellCompDirectiveNoFileComp)) // once a flag
	}
}

func (f *Flag) isBool() bool { return f.target.Kind() == reflect.Bool }

// Variable is the flag's environment variable.
func (f *Flag) Variable() string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
}

// Value is the setting's value after Parse.
func (f *Flag) Value() any { return f.target.Interface() }

// Set implements [pflag.Value].
func (f *Flag) Set(value string) error {
	f.given = append(f.given, value)
	return nil
}

// String implements [pflag.Value].
func (f *Flag) String() string { return f.Default }

// Type implements [pflag.Value]: it is the word for the value in the help.
func (f *Flag) Type() string {
	if f.isBool() {
		return "bool"
	}
	return cmp.Or(f.placeholder, "VALUE")
}

// fromEnvironment is the value of the flag's variable and the variable's name, both empty where it is not set.
func (f *Flag) fromEnvironment() (value, name string) {
	name = f.Variable()
	if value = os.Getenv(name); value != "" {
		return value, name
	}
	if plain := strings.TrimPrefix(name, EnvPrefix); slices.Contains(unprefixed, plain) && os.Getenv(plain) != "" {
		return os.Getenv(plain), plain
	}
	return "", ""
}

// value is the text of the setting's value.
func (f *Flag) value() string {
	if len(f.given) > 0 && f.target.Kind() == reflect.Slice {
		return strings.Join(f.given, ",")
	}
	if len(f.given) > 0 {
		return f.given[len(f.given)-1]
	}
	value, _ := f.fromEnvironment()
	return cmp.Or(value, f.Default)
}

// source is where the value comes from, for errors.
func (f *Flag) source() string {
	if _, name := f.fromEnvironment(); name != "" && len(f.given) == 0 {
		return name
	}
	return "--" + f.Name
}

// check checks the value by the rules that the tags state.
func (f *Flag) check() error {
	value := f.value()
	switch {
	case f.required && value == "":
		return fmt.Errorf("is missing; it may also come from %s", f.Variable())
	case value == "" && len(f.given) > 0 && f.target.Kind() != reflect.String && f.target.Kind() != reflect.Slice:
		return errors.New("needs a value")
	case f.Enum != nil && value != "" && !slices.Contains(f.Enum, value):
		return fmt.Errorf("%q is none of %s", value, strings.Join(f.Enum, ", "))
	}
	return nil
}

func isNumber(text string) bool {
	_, err := strconv.Atoi(text)
	return err == nil
}

// usage prints how a command is used, in lines as wide as the terminal, at most 120 columns.
func usage(c *cobra.Command) error {
	width := 80
	if columns, _, err := term.GetSize(int(os.Stdout.Fd())); err == nil && columns > 40 {
		width = min(columns, 120)
	}
	line := c.UseLine()
	if c.HasAvailableSubCommands() {
		line = c.CommandPath() + " <command>"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Usage: %s\n", line)
	if c.HasAvailableSubCommands() {
		b.WriteString("\nCommands:\n")
		for _, below := range c.Commands() {
			if below.IsAvailableCommand() {
				fmt.Fprintf(&b, "  %-*s %s\n", below.NamePadding(), below.Name(), below.Short)
			}
		}
	}
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	flags.SortFlags = false
	flags.AddFlagSet(c.LocalFlags())
	flags.AddFlagSet(c.InheritedFlags())
	fmt.Fprintf(&b, "\nFlags:\n%s", flags.FlagUsagesWrapped(width))
	_, err := c.OutOrStdout().Write([]byte(b.String()))
	return err
}
