package peers

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"time"
)

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{{[]float64{3}, 3}, {[]float64{3, 1, 2}, 2}, {[]float64{4, 1, 3, 2}, 2.5}} {
		if got := median(c.values); got != c.want {
			t.Errorf("%v: %v, want %v", c.values, got, c.want)
		}
	}
	if !math.IsNaN(median(nil)) || !math.IsNaN(quantile(nil, 0.5)) {
		t.Error("nothing has a median")
	}
	if got := quantile([]float64{5, 1, 4, 2, 3}, 0.99); got != 5 {
		t.Errorf("p99 %v, want 5", got)
	}
}

func TestReadingProc(t *testing.T) {
	if got := onCPU("1234567 89 10\n"); got != 1234567*time.Nanosecond {
		t.Error("schedstat:", got)
	}
	if got := processTime("cpu  100 20 30 4000 50 60 70 8 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n"); got != 158*tick {
		t.Error("stat:", got)
	}
	if got := proportional("00400000-7fff ---p 00000000 00:00 0  [rollup]\nRss:  900 kB\nPss:  512 kB\nPss_Dirty:  3 kB\n"); got != 512 {
		t.Error("smaps_rollup:", got)
	}
	if isEngine("/bin/gateway run --models /tmp/x") || !isEngine("/x/testbin/bare engine --port 1") || !isEngine("/x/llama-server --model m") {
		t.Error("engines are not told from contenders")
	}
}

// twoContenders has figures of which the ratios are easy to see.
func twoContenders() *report {
	disturbedRun := sample{rate: 1, cpu: 1000, p50: 1e6, disturbed: true}
	return &report{
		order: []string{direct, nginx, one},
		works: []work{{name: kb, conns: []int{1, 128}}},
		samples: map[key][]sample{
			{direct, kb, 128}: {{rate: 1000, p50: 50, client: 7}},
			{nginx, kb, 128}:  {{rate: 500, cpu: 10, p50: 100}},
			{one, kb, 128}:    {{rate: 390, cpu: 19, p50: 150}, {rate: 400, cpu: 20, p50: 150}, {rate: 410, cpu: 21, p50: 150}, disturbedRun},
		},
		idle: map[string]float64{one: 44}, after: map[string]float64{one: 81}, stream: map[string]float64{}, fewest: nan, help: nan,
	}
}

func TestAims(t *testing.T) {
	r := twoContenders()
	want := map[string]string{
		aims[0].name: "held",         // 400 of 500 requests a second
		aims[1].name: "not measured", // no llama-swap
		aims[2].name: "missed",       // 20 µs to 10
	}
	for _, a := range aims {
		switch {
		case strings.Contains(a.name, "MB at the start"):
			want[a.name] = "held"
		case strings.Contains(a.name, "MB after the load"):
			want[a.name] = "missed"
		}
		w := want[a.name]
		if w == "" {
			w = "not measured"
		}
		if got := a.outcome(a.value(r)); got != w {
			t.Errorf("%s: %s, want %s", a.name, got, w)
		}
	}
	if got := r.added(kb, 128, p50, one, nginx); got != 2 {
		t.Errorf("100 µs added to 50: %v", got)
	}
}

func TestTables(t *testing.T) {
	text := string(twoContenders().markdown())
	for _, line := range []string{
		"| `gateway run`, 1 KB, 128 connections: requests a second / nginx | ≥ 0.75 | 0.8 | held |",
		"| 1 KB, connections 1 / 128 | requests a second | p50 µs | p99 µs | first byte µs | CPU µs | held back % |",
		"| gateway run | - / 400 | - / 150 | - / 0 | - / 0 | - / 20 |  |",
		"| gateway run | 44 | 81 | - |",
		"itself takes 7 µs of CPU for each request of 1 KB",
	} {
		if !strings.Contains(text, line) {
			t.Errorf("no %q in\n%s", line, text)
		}
	}
	drawing := string(twoContenders().svg())
	for d := xml.NewDecoder(strings.NewReader(drawing)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if strings.Count(drawing, "<rect") != 5 { // rates of three and CPU of two: the other panels have no figure
		t.Errorf("%d bars in\n%s", strings.Count(drawing, "<rect"), drawing)
	}
}

func TestLateEvents(t *testing.T) {
	sent := time.Unix(1_700_000_000, 0)
	c := &client{pause: 5 * time.Millisecond}
	c.look([]byte(`data: {"id":"c-1700000000000000000",…}`+"\n\n"+`data: {"id":"c-1",…}`), sent.Add(time.Millisecond))
	c.look([]byte(`data: {"id":"c-1700000000000000000",…}`), sent.Add(5*time.Millisecond))
	if c.events != 2 || c.behind != 1 {
		t.Errorf("%d events, %d of them late; want 2 and 1", c.events, c.behind)
	}
}

func TestGoodAnswers(t *testing.T) {
	const events = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
	for text, want := range map[string]bool{
		"HTTP/1.1 200 OK\r\n\r\n{}":                 true,
		"HTTP/1.1 503 No\r\n\r\n{}":                 false,
		events + "data: {}\n\n":                     false,
		events + "data: {}\n\ndata: [DONE]\n\n\r\n": true,
	} {
		if got := good([]byte(text), strings.Index(text, "\r\n\r\n")+4); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}
