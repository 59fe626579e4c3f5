package policy

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"
)

var update = flag.Bool("update", false, "rewrite the plan sections of testdata/*.txtar")

// TestScenarios plays each file's events on its state and compares the decisions with its plan section.
// testdata/README.md describes the language.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			a, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			sections := map[string]*txtar.File{}
			for i := range a.Files {
				sections[a.Files[i].Name] = &a.Files[i]
			}
			for _, name := range []string{"state", "event", "plan"} {
				if sections[name] == nil {
					t.Fatalf("no section %q", name)
				}
			}
			got := play(t, string(sections["state"].Data), string(sections["event"].Data))
			if *update {
				sections["plan"].Data = []byte(got)
				if err := os.WriteFile(file, txtar.Format(a), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if want := string(sections["plan"].Data); got != want {
				t.Errorf("plan differs\ngot:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

// stage is the world of one scenario.
type stage struct {
	t    testing.TB
	now  time.Time
	s    Snapshot
	fair time.Duration
	d    Defaults
	out  strings.Builder
}

func play(t testing.TB, state, events string) string {
	g := &stage{
		t: t, now: time.Date(2024, 5, 1, 12, 0, 0, 0, time.UTC), fair: 2 * time.Second,
		d: Defaults{Idle: 10 * time.Minute, HostIdle: 15 * time.Minute, HostMinUp: 5 * time.Minute},
	}
	for line := range strings.Lines(state) {
		if l := parseLine(line); l.verb != "" {
			g.declare(l)
		}
	}
	for line := range strings.Lines(events) {
		if l := parseLine(line); l.verb != "" {
			fmt.Fprintf(&g.out, "> %s\n", strings.TrimSpace(line))
			g.event(l)
		}
	}
	return g.out.String()
}

// line is "verb arg arg key=value flag"; words without "=" are arguments.
type line struct {
	verb string
	args []string
	opts map[string]string
}

func parseLine(s string) line {
	s, _, _ = strings.Cut(s, "#")
	l := line{opts: map[string]string{}}
	for i, f := range strings.Fields(s) {
		k, v, ok := strings.Cut(f, "=")
		switch {
		case i == 0:
			l.verb = f
		case ok:
			l.opts[k] = v
		default:
			l.args = append(l.args, f)
		}
	}
	return l
}

func (l line) has(word string) bool { return slices.Contains(l.args, word) }

func (g *stage) list(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' })
}

func (g *stage) int(s string) int {
	if s == "" {
		return 0
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		g.t.Fatal(err)
	}
	return n
}

func (g *stage) dur(s string) time.Duration {
	if s == "" {
		return 0
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		g.t.Fatal(err)
	}
	return d
}

// ago returns the moment s before now, zero for "".
func (g *stage) ago(s string) time.Time {
	if s == "" {
		return time.Time{}
	}
	return g.now.Add(-g.dur(s))
}

func (g *stage) devices(s string) Devices {
	d, err := ParseDevices(s)
	if err != nil {
		g.t.Fatal(err)
	}
	return d
}

func (g *stage) declare(l line) {
	switch l.verb {
	case "host":
		h := Host{
			Name: l.args[0], State: Ready, Devices: CPU | GPU | NPU, Limits: Uniform(1), Labels: g.list(l.opts["labels"]),
			UpSince: g.ago(l.opts["up"]), Active: g.ago(l.opts["active"]), Leases: g.int(l.opts["leases"]),
			InFlight: g.int(l.opts["inflight"]),
		}
		if v := l.opts["state"]; v != "" {
			h.State = HostState(v)
		}
		if v := l.opts["devices"]; v != "" {
			h.Devices = g.devices(v)
		}
		if v := l.opts["limits"]; v != "" {
			limits, err := ParseLimits(v)
			if err != nil {
				g.t.Fatal(err)
			}
			h.Limits = limits
		}
		for _, b := range g.list(l.opts["budget"]) {
			dev, n, _ := strings.Cut(b, ":")
			if h.Budget == nil {
				h.Budget = map[Devices]int64{}
			}
			h.Budget[g.devices(dev)] = int64(g.int(n))
		}
		for _, b := range g.list(l.opts["seats"]) {
			typ, n, _ := strings.Cut(b, ":")
			if h.NPUSeats == nil {
				h.NPUSeats = map[Type]int{}
			}
			h.NPUSeats[Type(typ)] = g.int(n)
		}
		g.s.Hosts = append(g.s.Hosts, h)
	case "model":
		m := g.model(l)
		h := &g.s.Hosts[len(g.s.Hosts)-1]
		r := Resident{
			ID: m.ID, Type: m.Type, Devices: m.Devices, State: ModelLoaded, Pinned: m.Pinned, Memory: m.Memory, Idle: m.Idle,
			InFlight: g.int(l.opts["inflight"]), Reserved: l.has("reserved"), Closed: l.has("closed"), Used: g.ago(l.opts["used"]),
		}
		for _, s := range []ModelState{ModelLoading, ModelDraining} {
			if l.has(string(s)) {
				r.State = s
			}
		}
		h.Residents = append(h.Residents, r)
	case "ticket":
		g.queue(&g.s.Hosts[len(g.s.Hosts)-1], l)
	default:
		g.t.Fatalf("unknown declaration %q", l.verb)
	}
}

// model reads "NAME TYPE DEVICES" and the options of a model.
func (g *stage) model(l line) Model {
	m := Model{
		ID: l.args[0], Type: Type(l.args[1]), Devices: g.devices(l.args[2]), Pinned: l.has("pinned"),
		Memory: int64(g.int(l.opts["mem"])), Hosts: g.list(l.opts["hosts"]), Max: g.int(l.opts["max"]), Idle: g.dur(l.opts["idle"]),
		On: map[string]Need{}, Refused: map[string]*Refusal{}, Saved: map[string]int64{},
	}
	for _, n := range g.list(l.opts["saved"]) {
		f := strings.Split(n, ":")
		m.Saved[f[0]] = int64(g.int(f[1]))
	}
	for _, n := range g.list(l.opts["need"]) {
		f := strings.Split(n, ":")
		m.On[f[0]] = Need{Devices: g.devices(f[1]), Memory: int64(g.int(f[2]))}
	}
	for _, n := range g.list(l.opts["refused"]) {
		f := strings.Split(n, ":")
		m.Refused[f[0]] = &Refusal{Code: TooLarge, Model: m.ID, Type: m.Type, Device: g.devices(f[1]), Need: int64(g.int(f[2])), Budget: int64(g.int(f[3]))}
	}
	return m
}

// queue reads "TICKET NAME TYPE DEVICES" and appends it to h.
func (g *stage) queue(h *Host, l line) {
	t := Ticket{ID: l.args[0], Since: g.ago(l.opts["since"]), Overtaken: g.int(l.opts["overtaken"])}
	l.args = l.args[1:]
	t.Model = g.model(l)
	h.Queue = append(h.Queue, t)
}
