package catalog

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"reveille/infra/policy"
)

// Explain describes the catalogue for people: a table of its models with inherited values filled in, one of its hosts,
// the defaults, the warm-ups and the given warnings. The error is w's.
func (c *Catalog) Explain(w io.Writer, warnings Warnings) error {
	out := &printer{w: w}
	out.printf("catalogue %s\n", c.Version)
	if len(c.Models) > 0 {
		rows := [][]string{{"MODEL", "TYPE", "RECIPE", "DEVICE", "HOSTS", "IDLE", "CHECKPOINT", "ALIASES", "OPTIONS", "NOTES"}}
		for _, m := range c.Models {
			rows = append(rows, []string{
				m.ID, string(m.Type), m.Recipe, m.DeviceText(), c.hostNames(m), c.idleText(m), m.Checkpoint,
				strings.Join(m.Aliases, ", "), optionsText(m), notes(m),
			})
		}
		out.table(rows)
	}
	if len(c.Hosts) > 0 {
		rows := [][]string{{"HOST", "DRIVER", "DEVICES", "LABELS", "ADDRESS", "MODELS"}}
		for _, h := range c.Hosts {
			devices := h.Devices.String()
			if devices == "" {
				devices = "as detected"
			}
			rows = append(rows, []string{h.Name, driverText(h), devices, strings.Join(h.Labels, ", "), h.Address, c.modelNames(h)})
		}
		out.table(rows)
	}
	out.printf("\n")
	for _, t := range policy.Types() {
		if id, ok := c.Default(t); ok {
			out.printf("default %s: %s\n", t, id)
		}
	}
	for _, x := range c.Warm {
		out.printf("warm %s: %s for %s\n", x.Model, x.Schedule, x.For)
	}
	for _, x := range warnings {
		out.printf("warning: %s\n", x)
	}
	return out.err
}

func (c *Catalog) hostNames(m *Model) string {
	if len(c.Hosts) == 0 {
		if len(m.Hosts) == 0 {
			return "any that registers"
		}
		return strings.Join(m.Hosts, ", ")
	}
	var names []string
	for _, h := range c.HostsFor(m) {
		names = append(names, h.Name)
	}
	return strings.Join(names, ", ")
}

func (c *Catalog) modelNames(h *Host) string {
	var ids []string
	for _, m := range c.Models {
		if slices.Contains(c.HostsFor(m), h) {
			ids = append(ids, m.ID)
		}
	}
	return strings.Join(ids, ", ")
}

func (c *Catalog) idleText(m *Model) string {
	if d, ok := c.Idle(m); ok {
		return d.String()
	}
	return "default"
}

func optionsText(m *Model) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(m.Options)) {
		v := fmt.Sprint(m.Options[name])
		if strings.ContainsAny(v, " \t\r\n,=") || v == "" {
			v = fmt.Sprintf("%q", v)
		}
		out = append(out, name+"="+v)
	}
	return strings.Join(out, " ")
}

// notes returns the settings that few models have.
func notes(m *Model) string {
	var out []string
	note := func(on bool, format string, args ...any) {
		if on {
			out = append(out, fmt.Sprintf(format, args...))
		}
	}
	note(m.Pin, "pinned")
	note(m.MMProj != "", "mmproj %s", m.MMProj)
	note(m.SHA256 != "", "sha256 %.12s…", m.SHA256)
	note(m.Replicas.Max > 1, "up to %d copies", m.Replicas.Max)
	note(m.Memory > 0, "memory %s", FormatSize(m.Memory))
	note(m.MMCache == ShareNone, "no encoder cache")
	note(m.MMCache == ShareAll && m.MMProj != "", "encoder cache shared by all keys")
	note(m.Conversations == SharePerKey, "conversations kept apart by key")
	note(m.Conversations == ShareNone, "conversations not saved")
	note(len(m.Fallback) > 0, "fallback %s", strings.Join(m.Fallback, " "))
	note(m.Dimensions, "dimensions")
	note(m.NormalizeScores, "normalised scores")
	return strings.Join(out, ", ")
}

func driverText(h *Host) string {
	switch h.Driver {
	case DriverWoL:
		return "wol " + h.MAC
	case DriverEC2:
		return "ec2 " + h.Instance
	case DriverASG:
		return fmt.Sprintf("asg %s, at most %d", h.Group, h.Max)
	case DriverKubernetes:
		return "kubernetes " + h.Workload
	}
	return string(h.Driver)
}

// printer keeps the first error of its writer.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) printf(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, args...)
	}
}

// table writes rows in aligned columns, without empty columns, after an empty line.
func (p *printer) table(rows [][]string) {
	var keep []int
	for i := range rows[0] {
		if slices.ContainsFunc(rows[1:], func(r []string) bool { return r[i] != "" }) {
			keep = append(keep, i)
		}
	}
	p.printf("\n")
	tw := tabwriter.NewWriter(p.w, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		var cells []string
		for _, i := range keep {
			cells = append(cells, strings.ReplaceAll(cmp.Or(row[i], "-"), "\t", " "))
		}
		fmt.Fprintln(tw, strings.Join(cells, "\t"))
	}
	if p.err == nil {
		p.err = tw.Flush()
	}
}
