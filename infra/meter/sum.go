package meter

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
)

// Sum adds up the series of several expositions. The zero value is empty. It is not safe for concurrent use.
type Sum struct{ series map[string]float64 }

// Add takes in the series of an exposition whose names begin with prefix, as `name{labels} value` of the text format
// 0.0.4; comments, other series and lines that cannot be read are passed over.
func (s *Sum) Add(exposition []byte, prefix string) {
	for line := range bytes.Lines(exposition) {
		line = bytes.TrimSpace(line)
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
		if s.series == nil {
			s.series = map[string]float64{}
		}
		s.series[string(line[:end])] += v
	}
}

// WriteTo writes the sums, sorted by series.
func (s *Sum) WriteTo(w io.Writer) (int64, error) {
	var b bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(s.series)) {
		fmt.Fprintf(&b, "%s %s\n", name, strconv.FormatFloat(s.series[name], 'g', -1, 64))
	}
	return b.WriteTo(w)
}
