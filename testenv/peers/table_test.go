package peers

import (
	"bytes"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
)

var (
	nan   = math.NaN()
	cores = float64(runtime.NumCPU())
)

// key says what was measured.
type key struct {
	contender, work string
	conns           int
}

// report is what a run has measured. What is missing is NaN.
type report struct {
	order   []string // contenders
	works   []work
	samples map[key][]sample
	idle    map[string]float64 // MB
	after   map[string]float64 // MB after the windows
	stream  map[string]float64 // KB for each idle stream
	fewest  float64            // answers of the client that got fewest, by those of the one that got most: see starved
	help    float64            // ms of gateway --help
	cold    coldTimes
	missing map[string]string // contenders that cannot be had: why
	notes   []string
}

// of is the median of a figure over the windows, without disturbed ones if any is left.
func (r *report) of(k key, figure func(sample) float64) float64 {
	all := r.samples[k]
	if clean := slices.DeleteFunc(slices.Clone(all), func(s sample) bool { return s.disturbed }); len(clean) > 0 {
		all = clean
	}
	var values []float64
	for _, s := range all {
		values = append(values, figure(s))
	}
	return median(values)
}

// median is the middle one, or the mean of the two; NaN of none.
func median(values []float64) float64 {
	if len(values) == 0 {
		return nan
	}
	v := slices.Sorted(slices.Values(values))
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

func rate(s sample) float64     { return s.rate }
func p50(s sample) float64      { return s.p50 }
func p99(s sample) float64      { return s.p99 }
func first(s sample) float64    { return s.first }
func cpu(s sample) float64      { return s.cpu }
func late(s sample) float64     { return s.late }
func commands(s sample) float64 { return s.commands }

// ratio compares a figure of two contenders.
func (r *report) ratio(work string, conns int, figure func(sample) float64, a, b string) float64 {
	return r.of(key{a, work, conns}, figure) / r.of(key{b, work, conns}, figure)
}

// added compares what two contenders add to a time of the engine asked directly.
func (r *report) added(work string, conns int, figure func(sample) float64, a, b string) float64 {
	base := r.of(key{direct, work, conns}, figure)
	return (r.of(key{a, work, conns}, figure) - base) / (r.of(key{b, work, conns}, figure) - base)
}

// ratio compares gateway run with another way.
func (coldTimes) ratio(ms map[string][]float64, way string) float64 {
	return median(ms[byGateway]) / median(ms[way])
}

// value is a figure of a map, NaN where it is missing.
func value(m map[string]float64, name string) float64 {
	if v, ok := m[name]; ok {
		return v
	}
	return nan
}

// aim is a figure that is to stay on one side of a limit.
type aim struct {
	name  string
	least bool // the limit is the least; otherwise it is the most
	limit float64
	value func(*report) float64
	needs string // a contender that the value compares with
}

var aims = []aim{
	{"`gateway run`, 1 KB, 128 connections: requests a second / nginx", true, 0.75, func(r *report) float64 { return r.ratio(kb, 128, rate, one, nginx) }, ""},
	{"the same / llama-swap", true, 9, func(r *report) float64 { return r.ratio(kb, 128, rate, one, llamaSwap) }, llamaSwap},
	{"the same: CPU / nginx", false, 1.6, func(r *report) float64 { return r.ratio(kb, 128, cpu, one, nginx) }, ""},
	{"gateway and runner, 1 KB, 128 connections: CPU / bare relay", false, 3, func(r *report) float64 { return r.ratio(kb, 128, cpu, both, relay) }, ""},
	{"the same: requests a second / llama-swap", true, 6, func(r *report) float64 { return r.ratio(kb, 128, rate, both, llamaSwap) }, llamaSwap},
	{"gateway and runner, 1 MB, 1 connection: CPU / bare fasthttp", false, 2.5, func(r *report) float64 { return r.ratio(mb, 1, cpu, both, fast) }, ""},
	{"the same: added p50 / bare fasthttp", false, 2, func(r *report) float64 { return r.added(mb, 1, p50, both, fast) }, ""},
	{"gateway and runner, stream, 128 connections: CPU / nginx", false, 2.2, func(r *report) float64 { return r.ratio(streams, 128, cpu, both, nginx) }, ""},
	{"gateway and runner, paced streams: added first byte / two bare relays", false, 1.25, func(r *report) float64 { return r.added(paced, pacedConns, first, both, relays) }, ""},
	{"the same: share of held back events, over that of two bare relays", false, 0.001, func(r *report) float64 {
		return max(0, r.of(key{both, paced, pacedConns}, late)-r.of(key{relays, paced, pacedConns}, late))
	}, ""},
	{"`gateway run`, 1 KB, 1 connection: added p50 / bare fasthttp", false, 1.3, func(r *report) float64 { return r.added(kb, 1, p50, one, fast) }, ""},
	{"embeddings, 1 client: answers a second / plain llama-server", true, 0.97, func(r *report) float64 { return r.ratio(embeddings, 1, rate, one, plain) }, ""},
	{"the same, 8 clients", true, 0.97, func(r *report) float64 { return r.ratio(embeddings, 8, rate, one, plain) }, ""},
	{"the same, 64 clients", true, 1.05, func(r *report) float64 { return r.ratio(embeddings, 64, rate, one, plain) }, ""},
	{"64 clients through the gateway: fewest / most answers of one", true, 0.75, func(r *report) float64 { return r.fewest }, ""},
	{"gateway and runner: KB for each idle stream", false, 18, func(r *report) float64 { return value(r.stream, both) }, ""},
	{"gateway and runner, 1 KB, 128 connections: Redis commands a second", false, 100, func(r *report) float64 { return r.of(key{both, kb, 128}, commands) }, ""},
	{"`gateway run`: MB at the start", false, 45, func(r *report) float64 { return value(r.idle, one) }, ""},
	{"`gateway run`: MB after the load", false, 80, func(r *report) float64 { return value(r.after, one) }, ""},
	{"`gateway --help`: ms", false, 30, func(r *report) float64 { return r.help }, ""},
	{"cold start / spawn and answer " + byDefaults, false, 0.65, func(r *report) float64 { return r.cold.ratio(r.cold.start, byDefaults) }, ""},
	{"the same / " + bySame, false, 1.02, func(r *report) float64 { return r.cold.ratio(r.cold.start, bySame) }, ""},
	{"swap / stop, spawn and answer " + byDefaults, false, 0.65, func(r *report) float64 { return r.cold.ratio(r.cold.swap, byDefaults) }, ""},
	{"the same / " + bySame, false, 1.02, func(r *report) float64 { return r.cold.ratio(r.cold.swap, bySame) }, ""},
}

// outcome says whether a value reaches the aim.
func (a aim) outcome(v float64) string {
	switch {
	case math.IsNaN(v):
		return "not measured"
	case a.least && v >= a.limit, !a.least && v <= a.limit:
		return "held"
	}
	return "missed"
}

// markdown writes the tables.
func (r *report) markdown() []byte {
	var b bytes.Buffer
	b.WriteString("| aim | limit | measured | |\n|---|---|---|---|\n")
	for _, a := range aims {
		sign := "≤"
		if a.least {
			sign = "≥"
		}
		v := a.value(r)
		outcome := a.outcome(v)
		if why := r.missing[a.needs]; why != "" {
			outcome += ": " + why
		}
		fmt.Fprintf(&b, "| %s | %s %g | %s | %s |\n", a.name, sign, a.limit, number(v), outcome)
	}
	for _, w := range r.works {
		var conns []string
		for _, c := range w.conns {
			conns = append(conns, fmt.Sprint(c))
		}
		fmt.Fprintf(&b, "\n| %s, connections %s | requests a second | p50 µs | p99 µs | first byte µs | CPU µs | held back %% |\n|---|---|---|---|---|---|---|\n", w.name, strings.Join(conns, " / "))
		for _, name := range r.order {
			cell := func(figure func(sample) float64) string {
				var values []string
				for _, c := range w.conns {
					values = append(values, number(r.of(key{name, w.name, c}, figure)))
				}
				return strings.Join(values, " / ")
			}
			if !r.measured(name, w) {
				continue
			}
			held := ""
			if w.pause > 0 {
				held = cell(func(s sample) float64 { return 100 * s.late })
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s |\n", name, cell(rate), cell(p50), cell(p99), cell(first), cell(cpu), held)
		}
	}
	b.WriteString("\n| memory | MB idle | MB after the load | KB for each idle stream |\n|---|---|---|---|\n")
	for _, name := range r.order {
		if name != direct && name != plain {
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", name, number(value(r.idle, name)), number(value(r.after, name)), number(value(r.stream, name)))
		}
	}
	if len(r.cold.start) > 0 {
		b.WriteString("\n| real llama-server, gemma 270M, one token: ms | cold start | swap |\n|---|---|---|\n")
		for _, way := range coldWays {
			fmt.Fprintf(&b, "| %s | %s | %s |\n", way, number(median(r.cold.start[way])), number(median(r.cold.swap[way])))
		}
	}
	fmt.Fprintf(&b, "\nThe load generator itself takes %s µs of CPU for each request of 1 KB and %s µs for each stream, at 128 connections.\n",
		number(r.of(key{direct, kb, 128}, func(s sample) float64 { return s.client })),
		number(r.of(key{direct, streams, 128}, func(s sample) float64 { return s.client })))
	for _, n := range r.notes {
		fmt.Fprintf(&b, "\n%s\n", n)
	}
	return b.Bytes()
}

// measured reports whether a contender did any of this work.
func (r *report) measured(name string, w work) bool {
	return slices.ContainsFunc(w.conns, func(c int) bool { return len(r.samples[key{name, w.name, c}]) > 0 })
}

// number writes a figure with three digits, - where it is missing.
func number(v float64) string {
	switch {
	case math.IsNaN(v), math.IsInf(v, 0):
		return "-"
	case math.Abs(v) >= 100:
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}

// panel is one chart, a bar for each contender.
type panel struct {
	title string
	value func(r *report, contender string) float64
}

var panels = []panel{
	{"requests a second, 1 KB, 128 connections", func(r *report, c string) float64 { return r.of(key{c, kb, 128}, rate) }},
	{"CPU µs a request, 1 KB, 128 connections", func(r *report, c string) float64 { return r.of(key{c, kb, 128}, cpu) }},
	{"p50 µs, 1 KB, 1 connection", func(r *report, c string) float64 { return r.of(key{c, kb, 1}, p50) }},
	{"CPU µs a request, 1 MB, 1 connection", func(r *report, c string) float64 { return r.of(key{c, mb, 1}, cpu) }},
	{"CPU µs a stream of 64 chunks, 128 connections", func(r *report, c string) float64 { return r.of(key{c, streams, 128}, cpu) }},
	{"KB for each idle stream", func(r *report, c string) float64 { return value(r.stream, c) }},
}

// svg draws the panels.
func (r *report) svg() []byte {
	const width, bar, across = 330, 16, 2
	height := 40 + bar*len(r.order)
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="11" fill="#555">`+"\n", across*width, (len(panels)+across-1)/across*height)
	for i, p := range panels {
		left, top, most := i%across*width+10, i/across*height+15, 0.0
		for _, c := range r.order {
			if v := p.value(r, c); v > most {
				most = v
			}
		}
		fmt.Fprintf(&b, `<text x="%d" y="%d" font-weight="bold">%s</text>`+"\n", left, top, p.title)
		for _, c := range r.order {
			v := p.value(r, c)
			if math.IsNaN(v) || v <= 0 || most == 0 {
				continue
			}
			top += bar
			colour := "#aaa"
			if c == one || c == both {
				colour = "#2a6fb0"
			}
			fmt.Fprintf(&b, `<text x="%d" y="%d">%s</text><rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/><text x="%.1f" y="%d">%s</text>`+"\n",
				left, top, c, left+115, top-9, 140*v/most, bar-5, colour, float64(left+119)+140*v/most, top, number(v))
		}
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}
