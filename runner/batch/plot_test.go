package batch

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
)

const (
	panelWidth, panelHeight = 250.0, 130.0
	panelGap, panelTop      = 70.0, 60.0
)

var colours = [len(variants)]string{"#888888", "#d08000", "#0060c0", "#60a060"}

// A measure is the quantity that a column of panels shows.
type measure struct {
	name  string
	value func(c *cell) [len(variants)]float64
}

var measures = []measure{
	{"texts/s", func(c *cell) [len(variants)]float64 { return c.rate }},
	{"p50, ms", func(c *cell) [len(variants)]float64 { return c.p50 }},
	{"p99, ms", func(c *cell) [len(variants)]float64 { return c.p99 }},
}

// draw returns an SVG with a row of panels for each text length and number of clients, and a column for each measure.
// The x axis is n_batch on a logarithmic scale; the y axis starts at 0.
func draw(cells []cell) []byte {
	type key struct {
		kind    string
		clients int
	}
	rows := map[key][]cell{}
	var order []key
	for _, c := range cells {
		k := key{c.kind, c.clients}
		if rows[k] == nil {
			order = append(order, k)
		}
		rows[k] = append(rows[k], c)
	}
	var b bytes.Buffer
	width := float64(len(measures))*(panelWidth+panelGap) + panelGap
	height := float64(len(order))*(panelHeight+panelGap) + panelTop
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" font-family="sans-serif" font-size="11">`+"\n", width, height)
	fmt.Fprintf(&b, `<rect width="%.0f" height="%.0f" fill="white"/>`+"\n", width, height)
	for i, name := range []string{"llama-server, its defaults", "llama-server, the plan's flags", "behind the queue", "one client, arrays"} {
		x := panelGap + float64(i)*220
		fmt.Fprintf(&b, `<line x1="%.0f" x2="%.0f" y1="20" y2="20" stroke="%s" stroke-width="2"/><text x="%.0f" y="24">%s</text>`+"\n", x, x+20, colours[i], x+26, name)
	}
	for r, k := range order {
		for m := range measures {
			x, y := panelGap+float64(m)*(panelWidth+panelGap), panelTop+float64(r)*(panelHeight+panelGap)
			fmt.Fprintf(&b, `<text x="%.0f" y="%.0f">%s texts, %d clients: %s by n_batch</text>`+"\n", x, y-6, k.kind, k.clients, measures[m].name)
			panel(&b, x, y, rows[k], measures[m].value)
		}
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

// panel draws three lines in a frame whose upper left corner is at x, y.
func panel(b *bytes.Buffer, x, y float64, cells []cell, value func(*cell) [len(variants)]float64) {
	top := 1.0
	for i := range cells {
		v := value(&cells[i])
		top = max(top, slices.Max(v[:])*1.1)
	}
	fmt.Fprintf(b, `<rect x="%.1f" y="%.1f" width="%.0f" height="%.0f" fill="none" stroke="#cccccc"/>`, x, y, panelWidth, panelHeight)
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="end">%.0f</text><text x="%.1f" y="%.1f" text-anchor="end">0</text>`+"\n", x-4, y+8, top, x-4, y+panelHeight)
	const least, most = 7.5, 13.5 // log2 of n_batch
	var lines [len(variants)][]string
	for i := range cells {
		px := x + (math.Log2(float64(cells[i].n))-least)/(most-least)*panelWidth
		fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="middle">%d</text>`, px, y+panelHeight+13, cells[i].n)
		for v, n := range value(&cells[i]) {
			py := y + panelHeight*(1-n/top)
			lines[v] = append(lines[v], fmt.Sprintf("%.1f,%.1f", px, py))
			fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="2.5" fill="%s"/>`, px, py, colours[v])
		}
	}
	for v, points := range lines {
		fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="1.5"/>`, strings.Join(points, " "), colours[v])
	}
	b.WriteByte('\n')
}

// table formats the same values as text: plain, flags, queue and arrays in each column.
func table(cells []cell) string {
	var b strings.Builder
	const line = "%-6s %7v %7v  %-24s %-28s %-28s %-20s %-20s\n"
	fmt.Fprintf(&b, line, "texts", "clients", "n_batch", "texts/s", "p50 ms", "p99 ms", "decodes/ktext", "queue's share of each")
	for _, c := range cells {
		each := func(v [len(variants)]float64, format string) string {
			parts := make([]string, len(v))
			for i, x := range v {
				parts[i] = fmt.Sprintf(format, x)
			}
			return strings.Join(parts, " ")
		}
		fmt.Fprintf(&b, line, c.kind, c.clients, c.n, each(c.rate, "%5.0f"), each(c.p50, "%6.1f"), each(c.p99, "%6.1f"), each(c.calls, "%4.0f"), each(c.of, "%4.2f"))
	}
	return b.String()
}

// The drawing shows every value of every variant once, inside its panel, and the table has a line for each cell.
func TestDraw(t *testing.T) {
	var cells []cell
	for _, n := range []int{256, 2048, 8192} {
		for _, clients := range []int{1, 64} {
			f := float64(n * clients)
			cells = append(cells, cell{n: n, clients: clients, kind: "short", rate: [len(variants)]float64{f, 2 * f, 3 * f, f}, p50: [len(variants)]float64{1, 2, 3, 4}, p99: [len(variants)]float64{0, 5, 9, 9}})
		}
	}
	svg := string(draw(cells))
	if n := strings.Count(svg, "<circle"); n != len(cells)*len(variants)*len(measures) {
		t.Errorf("%d points", n)
	}
	if strings.Contains(svg, "NaN") || strings.Contains(svg, "Inf") || strings.Contains(svg, `cy="-`) {
		t.Error("a point is outside")
	}
	if n := strings.Count(table(cells), "\n"); n != len(cells)+1 {
		t.Errorf("%d lines", n)
	}
}
