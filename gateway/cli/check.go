// Package cli holds the commands that look at a models file or at a running gateway.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"reveille/gateway/setup"
	"reveille/infra/catalog"
	"reveille/infra/recipe"
	"reveille/infra/term"
	"reveille/runner/engine"
)

// Check is `gateway check FILE`.
type Check struct {
	File string `arg:"" optional:"" help:"The models file."`

	EnginesDir []string `help:"Folders to look for engine programs in, besides this program's own and PATH."`
	Fit        bool     `help:"Say which models fit into this machine's memory, each alone, by the headers of their files."`
	Engines    bool     `help:"Say which engine programs this machine has, in which versions, and which of the recipes' flags they know. Runs them with --version and --help. Without a models file, for all shipped recipes."`
}

// Run validates the file and explains it. All mistakes are reported in one go.
func (c *Check) Run(ctx context.Context, out io.Writer) error {
	if c.File == "" && c.Engines {
		return printEngines(ctx, out, byName(recipe.Shipped(), nil), engine.Finder{Dirs: c.EnginesDir})
	}
	if c.File == "" {
		return errors.New("name a models file")
	}
	cat, warnings, err := catalog.Load(c.File)
	if err != nil {
		return err
	}
	for _, missing := range MissingPrograms(cat, c.EnginesDir) {
		warnings = append(warnings, catalog.Problem{Text: missing})
	}
	if err := cat.Explain(out, warnings); err != nil {
		return err
	}
	if c.Fit {
		if err := fit(out, cat, setup.Look(ctx, c.EnginesDir)); err != nil {
			return err
		}
	}
	if c.Engines {
		used := func(r *recipe.Recipe) bool {
			return slices.ContainsFunc(cat.Models, func(m *catalog.Model) bool { return m.Recipe == r.Name })
		}
		fmt.Fprintln(out)
		if err := printEngines(ctx, out, byName(cat.Recipes, used), engine.Finder{Dirs: c.EnginesDir}); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(out, "\n%s is valid: %s, %s, %s\n", c.File, Count(len(cat.Models), "model"), Count(len(cat.Hosts), "host"), Count(len(warnings), "warning"))
	return err
}

// byName returns the recipes with a program that keep accepts, all without one, in the order of their names.
func byName(set recipe.Set, keep func(*recipe.Recipe) bool) (list []recipe.Recipe) {
	for _, name := range slices.Sorted(maps.Keys(set)) {
		if r := set[name]; r.Program() != "" && (keep == nil || keep(&r)) {
			list = append(list, r)
		}
	}
	return list
}

// fit prints what each model needs of this machine.
func fit(out io.Writer, c *catalog.Catalog, m setup.Machine) error {
	fmt.Fprintf(term.Writer(out), "\nthis machine: %s\n\n", m.Devices)
	t := term.Table(out)
	fmt.Fprintln(t, "MODEL\tDEVICE\tNEEDS\tOF\tCONTEXT\tFITS")
	for _, model := range c.Models {
		r := c.Recipes[model.Recipe]
		f, err := m.Fit(model, &r)
		if err != nil {
			fmt.Fprintf(t, "%s\t%s\t-\t-\t-\t%v\n", model.ID, model.DeviceText(), err)
			continue
		}
		fits, needs, context := "unknown: its file cannot be read here", "-", "-"
		if f.Plan.Need > 0 {
			needs = catalog.FormatSize(f.Plan.Need)
		}
		if n := f.Context(); n > 0 {
			context = fmt.Sprint(n)
		}
		switch {
		case !m.Kinds.Has(f.Devices):
			fits = "no: this machine has no " + f.Devices.String()
		case !f.Known() && f.Plan.Need > 0:
			fits = "unknown: the device does not report its memory"
		case f.Known() && f.Fits():
			fits = "yes"
		case f.Known():
			fits = "no"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", model.ID, f.Devices, needs, catalog.FormatSize(f.Budget), context, fits)
	}
	return t.Flush()
}

// MissingPrograms reports each engine program that the models need and that is not on this machine, where one of the
// catalog's hosts is this machine.
func MissingPrograms(c *catalog.Catalog, dirs []string) (missing []string) {
	if len(c.Hosts) > 0 && !slices.ContainsFunc(c.Hosts, func(h *catalog.Host) bool { return h.Driver == catalog.DriverLocal }) {
		return nil
	}
	find := engine.Finder{Dirs: dirs}
	for _, m := range c.Models {
		r := c.Recipes[m.Recipe]
		if r.Program() == "" {
			continue
		}
		if _, err := find.Find(&r, ""); err != nil && !slices.Contains(missing, err.Error()) {
			missing = append(missing, err.Error())
		}
	}
	return missing
}
