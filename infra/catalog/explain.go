package catalog

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"reveille/infra/policy"
	"reveille/infra/term"
)

// Explain describes the catalog for people: a table of its models with inherited values filled in, one of its hosts,
// the defaults, the warm-ups and the given warnings. The error is w's.
func (c *Catalog) Explain(w io.Writer, warnings Problems) error {
	t := term.Table(w)
	fmt.Fprintf(t, "catalog %s\n", c.Version)
	if len(c.Models) > 0 {
		fmt.Fprintln(t, "\nMODEL\tTYPE\tRECIPE\tDEVICE\tHOSTS\tIDLE\tALIASES\tOPTIONS\tCHECKPOINT")
	}
	for _, m := range c.Models {
		hosts := []string(m.Hosts)
		if len(c.Hosts) > 0 {
			hosts = nil
			for _, h := range c.HostsFor(m) {
				hosts = append(hosts, h.Name)
			}
		} else if len(hosts) == 0 {
			hosts = []string{"any"}
		}
		idle := "default"
		if d, ok := c.Idle(m); ok {
			idle = d.String()
		}
		var options []string
		for _, name := range slices.Sorted(maps.Keys(m.Options)) {
			options = append(options, fmt.Sprintf("%s=%#v", name, m.Options[name]))
		}
		row(t, m.ID, string(m.Type), m.Recipe, m.DeviceText(), strings.Join(hosts, " "), idle, strings.Join(m.Aliases, " "),
			strings.Join(options, " "), m.Checkpoint)
	}
	if len(c.Hosts) > 0 {
		fmt.Fprintln(t, "\nHOST\tDRIVER\tDEVICES\tLABELS\tADDRESS\tMODELS")
	}
	for _, h := range c.Hosts {
		var models []string
		for _, m := range c.Models {
			if slices.Contains(c.HostsFor(m), h) {
				models = append(models, m.ID)
			}
		}
		row(t, h.Name, string(h.Driver), h.Devices.String(), strings.Join(h.Labels, " "), h.Address, strings.Join(models, " "))
	}
	fmt.Fprintln(t)
	for _, kind := range policy.Types() {
		if id, ok := c.Default(kind); ok {
			fmt.Fprintf(t, "default %s: %s\n", kind, id)
		}
	}
	for _, x := range c.Warm {
		fmt.Fprintf(t, "warm %s: %s for %s\n", x.Model, x.Schedule, x.For)
	}
	for _, x := range warnings {
		fmt.Fprintf(t, "warning: %s\n", x)
	}
	return t.Flush()
}

// row writes a row of a table, with a hyphen for what is empty.
func row(w io.Writer, cells ...string) {
	for i, cell := range cells {
		if cell == "" {
			cells[i] = "-"
		}
	}
	fmt.Fprintln(w, strings.Join(cells, "\t"))
}
