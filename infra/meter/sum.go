package meter

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Sum adds up the series of several expositions. The zero value is empty. It is not safe for concurrent use.
type Sum struct {
	series map[string]float64
	kinds  map[string]string // by family: counter, gauge, …
}

// Add reads the series of an exposition whose names start with prefix, as `name{labels} value` of the text format
// 0.0.4, and the types of their families; other comments, other series and lines that cannot be read are passed over.
func (s *Sum) Add(exposition []byte, prefix string) {
	if s.series == nil {
		s.series, s.kinds = map[string]float64{}, map[string]string{}
	}
	for line := range bytes.Lines(exposition) {
		line = bytes.TrimSpace(line)
		if f := bytes.Fields(line); len(f) == 4 && string(f[1]) == "TYPE" && bytes.HasPrefix(f[2], []byte(prefix)) {
			s.kinds[string(f[2])] = string(f[3])
		}
		if !bytes.HasPrefix(line, []byte(prefix)) {
			continue
		}
		// A label's value may hold spaces: the series ends with its brace, if it has one.
		end := bytes.LastIndexByte(line, '}') + 1
		if end == 0 {
			end = bytes.IndexByte(line, ' ')
		}
		if end <= 0 || end >= len(line) {
			continue
		}
		parts := bytes.Fields(line[end:]) // a value and perhaps a time
		if len(parts) == 0 {
			continue
		}
		v, err := strconv.ParseFloat(string(parts[0]), 64)
		if err != nil || math.IsNaN(v) {
			continue
		}
		s.series[string(line[:end])] += v
	}
}

// WriteTo writes the sums, sorted by series, each family after its type.
func (s *Sum) WriteTo(w io.Writer) (int64, error) {
	var b bytes.Buffer
	last := ""
	for _, name := range slices.Sorted(maps.Keys(s.series)) {
		if family := s.familyOf(name); family != last {
			if kind := s.kinds[family]; kind != "" {
				fmt.Fprintf(&b, "# TYPE %s %s\n", family, kind)
			}
			last = family
		}
		fmt.Fprintf(&b, "%s %s\n", name, strconv.FormatFloat(s.series[name], 'g', -1, 64))
	}
	return b.WriteTo(w)
}

// familyOf returns the name of a series without its labels and, of a histogram, without its suffix.
func (s *Sum) familyOf(series string) string {
	name, _, _ := strings.Cut(series, "{")
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		if base, ok := strings.CutSuffix(name, suffix); ok && s.kinds[base] == "histogram" {
			return base
		}
	}
	return name
}
