package meter

import (
	"bytes"
	"fmt"
	"io"
	"strings"
)

// Expose writes an exposition, as metrics.Set writes it, with the lines HELP and TYPE in front of each family. The series
// of a family must stand together, which they do in the library's order.
//
// The library's own metadata does not serve here: it knows no help, and takes a [Histogram] for three families of gauges.
func Expose(w io.Writer, exposition []byte) error {
	kinds := kindsOf(exposition)
	var b bytes.Buffer
	last := ""
	for line := range bytes.Lines(exposition) {
		if len(bytes.TrimSpace(line)) == 0 || line[0] == '#' {
			continue
		}
		family, kind := kinds.of(seriesName(line))
		if family != last {
			fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n", family, Help(family), family, kind)
			last = family
		}
		b.Write(line)
	}
	_, err := b.WriteTo(w)
	return err
}

// seriesName is the name of a line's series, without labels.
func seriesName(line []byte) string {
	end := bytes.IndexAny(line, "{ ")
	return string(line[:max(end, 0)])
}

// kinds are the families of an exposition that have several names, each with its kind.
type kinds map[string]string

func kindsOf(exposition []byte) kinds {
	k := kinds{}
	for line := range bytes.Lines(exposition) {
		name := seriesName(line)
		if family, is := strings.CutSuffix(name, "_bucket"); is && bytes.Contains(line, []byte(`le="`)) {
			k[family] = "histogram"
		} else if bytes.Contains(line, []byte(`{quantile="`)) {
			k[name] = "summary"
		}
	}
	return k
}

// of is the family and the kind of a series. Counters end in _total or _count.
func (k kinds) of(name string) (family, kind string) {
	for _, suffix := range []string{"", "_bucket", "_sum", "_count"} {
		if family, is := strings.CutSuffix(name, suffix); is && k[family] != "" {
			return family, k[family]
		}
	}
	if strings.HasSuffix(name, "_total") || strings.HasSuffix(name, "_count") {
		return name, "counter"
	}
	return name, "gauge"
}
