package recipe

import (
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"

	"github.com/goccy/go-yaml"
)

//go:embed recipes.yaml
var shippedYAML []byte

// A Set holds complete recipes by name.
type Set map[string]Recipe

// Shipped returns the recipes embedded in the program. The caller owns the set.
func Shipped() Set {
	s, err := (Set{}).With(parsed())
	if err != nil {
		panic("recipe: shipped recipes: " + err.Error())
	}
	return s
}

var parsed = sync.OnceValue(func() map[string]Recipe {
	over, err := Parse(shippedYAML)
	if err != nil {
		panic("recipe: shipped recipes: " + err.Error())
	}
	return over
})

// Parse reads a mapping of recipe names to recipes, or to the fields that differ from the recipe of that name. The
// recipes that it returns are not complete yet: see [Set.With]. It is for the shipped recipes and for tests; package
// catalog reads those of a models file.
func Parse(data []byte) (out map[string]Recipe, err error) {
	if err := yaml.UnmarshalWithOptions(data, &out, yaml.Strict()); err != nil {
		return nil, fmt.Errorf("recipes: %w", err)
	}
	for name, r := range out {
		r.Name = name
		out[name] = r
	}
	return out, nil
}

// With returns a copy of s in which each recipe of over overrides the one of its name or the one it inherits from, or
// is added. All mistakes of all recipes are reported at once, by name.
func (s Set) With(over map[string]Recipe) (Set, error) {
	out := maps.Clone(s)
	var errs []error
	done := map[string]bool{}
	var build func(name string, path []string) bool
	build = func(name string, path []string) bool {
		if done[name] {
			return true
		}
		if slices.Contains(path, name) {
			errs = append(errs, fmt.Errorf("recipe %s: inherits from itself", name))
			return false
		}
		o, overridden := over[name]
		if !overridden {
			_, known := out[name]
			return known
		}
		base := out[name]
		if o.Inherit != "" && o.Inherit != name {
			if !build(o.Inherit, append(path, name)) {
				errs = append(errs, fmt.Errorf("recipe %s: inherits from unknown recipe %q", name, o.Inherit))
				return false
			}
			base = out[o.Inherit]
			base.Root = base.Family()
		}
		r := Merge(base, o)
		r.Name = name
		out[name], done[name] = r, true
		return true
	}
	for _, name := range slices.Sorted(maps.Keys(over)) {
		if build(name, nil) {
			r := out[name]
			if err := r.Validate(); err != nil {
				errs = append(errs, err)
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return out, nil
}

// Merge applies override to base. A field that override sets replaces the base's; in the maps Env, Backends, TypeFlags
// and Options it replaces single entries. Neither argument is changed.
func Merge(base, override Recipe) Recipe {
	r := base
	mergeInto(reflect.ValueOf(&r).Elem(), reflect.ValueOf(override))
	if override.Command != nil { // the base's registration was granted for another command
		r.Registration = override.Registration
	}
	r.Env = overlay(base.Env, override.Env)
	r.Backends = overlay(base.Backends, override.Backends)
	r.TypeFlags = overlay(base.TypeFlags, override.TypeFlags)
	r.Options = overlay(base.Options, override.Options)
	return r
}

// mergeInto copies the fields that src sets to dst, a struct; for fields that are structs, single fields.
func mergeInto(dst, src reflect.Value) {
	for i := range dst.NumField() {
		switch to, from := dst.Field(i), src.Field(i); {
		case from.IsZero():
		case from.Kind() == reflect.Struct:
			mergeInto(to, from)
		default:
			to.Set(from)
		}
	}
}

func overlay[K comparable, V any](base, over map[K]V) map[K]V {
	if len(base)+len(over) == 0 {
		return nil
	}
	out := make(map[K]V, len(base)+len(over))
	maps.Copy(out, base)
	maps.Copy(out, over)
	return out
}

// A List is a list that YAML may also write as its only element.
type List[T any] []T

// UnmarshalYAML accepts an element or a list of them.
func (l *List[T]) UnmarshalYAML(unmarshal func(any) error) error {
	var many []T
	err := unmarshal(&many)
	if _, single := errors.AsType[*yaml.UnexpectedNodeTypeError](err); single {
		many = make([]T, 1)
		if one := reflect.ValueOf(many).Index(0); one.Kind() == reflect.Pointer { // the decoder leaves a nil pointer as it is
			one.Set(reflect.New(one.Type().Elem()))
		}
		err = unmarshal(&many[0])
	}
	*l = many
	return err
}
