package catalog

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"

	"reveille/infra/term"
)

// unmarshalText passes the text of a scalar of a file to set. Its errors have a line.
func unmarshalText(n ast.Node, set func(text []byte) error) error {
	var text string
	err := yaml.NodeToValue(n, &text)
	if err == nil {
		err = set([]byte(text))
	}
	if err != nil {
		return &yaml.SyntaxError{Message: err.Error(), Token: n.GetToken()}
	}
	return nil
}

// A Duration is 0 or more, written as "90s" or "2h30m".
type Duration time.Duration

func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText is the inverse of UnmarshalText.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText refuses a bare number other than 0, because its unit is unclear.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil || v < 0 {
		return fmt.Errorf(`bad duration %q: want a number with a unit, such as "90s", "10m" or "2h"`, clip(string(text)))
	}
	*d = Duration(v)
	return nil
}

// UnmarshalYAML reads a duration.
func (d *Duration) UnmarshalYAML(n ast.Node) error { return unmarshalText(n, d.UnmarshalText) }

// A Size is a number of bytes, see [ParseSize].
type Size int64

// UnmarshalYAML reads a size.
func (s *Size) UnmarshalYAML(n ast.Node) error {
	return unmarshalText(n, func(text []byte) error {
		size, err := ParseSize(string(text))
		*s = Size(size)
		return err
	})
}

var sizeUnits = []struct {
	suffix string
	bytes  float64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	{"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"B", 1},
}

// ParseSize reads a number of bytes, with or without a unit: "1073741824", "1GiB", "1.5 gb". It refuses negative sizes
// and those of 2^62 bytes and more. It also refuses "4G": some programs take it for 4 GB, others for 4 GiB.
func ParseSize(s string) (int64, error) {
	num, scale := strings.ToLower(strings.TrimSpace(s)), 1.0
	for _, u := range sizeUnits {
		if rest, ok := strings.CutSuffix(num, strings.ToLower(u.suffix)); ok {
			num, scale = strings.TrimSpace(rest), u.bytes
			break
		}
	}
	if n, err := strconv.ParseInt(num, 10, 64); err == nil && scale == 1 {
		if n < 0 || n >= 1<<62 {
			return 0, errors.New("size is out of range")
		}
		return n, nil
	}
	f, err := strconv.ParseFloat(num, 64)
	if err != nil {
		return 0, fmt.Errorf("bad size %q: want a number of bytes, or one with a unit such as 4GiB", clip(s))
	}
	if f *= scale; math.IsNaN(f) || f < 0 || f >= 1<<62 {
		return 0, errors.New("size is out of range")
	}
	return int64(f), nil
}

// FormatSize writes a number of bytes for people: "4 GiB", "253.1 MB" becomes "241.4 MiB".
func FormatSize(n int64) string {
	for i := 3; i >= 0; i-- {
		if u := sizeUnits[i]; float64(n) >= u.bytes {
			return strings.TrimSuffix(strconv.FormatFloat(float64(n)/u.bytes, 'f', 1, 64), ".0") + " " + u.suffix
		}
	}
	return strconv.FormatInt(n, 10) + " B"
}

// clip bounds a text that goes into a message.
func clip(s string) string { return term.Clip(s, 120) }
