package fleet

import (
	"bytes"
	"fmt"
	"math"
)

// panel is one chart: a value over the number of hosts, and what it is to stay below, 0 for nothing.
type panel struct {
	title string
	aim   float64
	value func(row) float64
}

var panels = []panel{
	{"Redis commands of a cold load and its unload", 0, func(r row) float64 { return r.loadCalls }},
	{"ms of Redis for both", 0, func(r row) float64 { return r.loadCPU }},
	{"ms from a request to its route", 10, func(r row) float64 { return 1000 * r.latency.Seconds() }},
	{"Redis commands a second at rest", 5000, func(r row) float64 { return r.restCalls }},
	{"% of a core at rest", 5, func(r row) float64 { return 100 * r.restCPU }},
	{"p99 in ms at 100 loads and unloads a second", 50, func(r row) float64 { return 1000 * r.steadyP99.Seconds() }},
}

const panelWidth, panelHeight, across = 300, 190, 3

// plot draws the table, hosts on a logarithmic axis; a dashed line is the aim.
func plot(rows []row) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="11" fill="#555">`+"\n",
		across*panelWidth, (len(panels)+across-1)/across*panelHeight)
	for i, p := range panels {
		p.draw(&b, rows, i%across*panelWidth, i/across*panelHeight)
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

func (p panel) draw(b *bytes.Buffer, rows []row, left, top int) {
	const margin, width, height = 20, panelWidth - 60, panelHeight - 70
	most, last := p.aim, math.Log(float64(max(2, rows[len(rows)-1].hosts)))
	for _, r := range rows {
		most = max(most, p.value(r))
	}
	x := func(r row) float64 { return float64(left+margin) + width*math.Log(float64(r.hosts))/last }
	y := func(v float64) float64 { return float64(top+35) + height*(1-v/max(most, 1e-9)) }
	fmt.Fprintf(b, `<text x="%d" y="%d">%s</text>`+"\n", left+margin, top+15, p.title)
	fmt.Fprintf(b, `<path d="M%d %.0fH%d" stroke="#999"/>`+"\n", left+margin, y(0), left+margin+width)
	if p.aim > 0 {
		fmt.Fprintf(b, `<path d="M%d %.1fH%d" stroke="#999" stroke-dasharray="4"/>`+"\n", left+margin, y(p.aim), left+margin+width)
	}
	path := "M"
	for _, r := range rows {
		v := p.value(r)
		fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="3" fill="#2a6fb0"/><text x="%.1f" y="%.1f" text-anchor="middle">%.3g</text>`+"\n", x(r), y(v), x(r), y(v)-6, v)
		fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="middle">%d</text>`+"\n", x(r), y(0)+14, r.hosts)
		path += fmt.Sprintf("%.1f %.1f ", x(r), y(v))
	}
	fmt.Fprintf(b, `<path d="%s" fill="none" stroke="#2a6fb0"/>`+"\n", path)
}
