package policy

import (
	"fmt"
	"strconv"
	"strings"
)

// Limits is how many models of each type may be loaded on a host at once; -1 means no limit. The zero value allows
// none: use ParseLimits or Uniform.
type Limits [len(types)]int

// Uniform returns the same limit for every type.
func Uniform(n int) Limits {
	var l Limits
	for i := range l {
		l[i] = n
	}
	return l
}

// ParseLimits reads the value of --max-loaded-models: one number for all types, or up to six in the order of Types; a
// shorter list is filled with 1. -1 means no limit. It returns an error for 0, other negative numbers and anything
// else.
func ParseLimits(s string) (Limits, error) {
	fields := strings.FieldsFunc(s, func(r rune) bool { return r == ' ' || r == ',' || r == '\t' })
	if len(fields) == 0 || len(fields) > len(types) {
		return Limits{}, fmt.Errorf("max loaded models %q: want one number, or up to %d in the order llm embedding reranking audio image tts", s, len(types))
	}
	l := Uniform(1)
	for i, f := range fields {
		n, err := strconv.Atoi(f)
		if err != nil || n == 0 || n < -1 {
			return Limits{}, fmt.Errorf("max loaded models %q: %q is neither a positive number nor -1 (no limit)", s, f)
		}
		if len(fields) == 1 {
			return Uniform(n), nil
		}
		l[i] = n
	}
	return l, nil
}

// Of returns the limit of t: -1 for no limit, 0 for an unknown type.
func (l Limits) Of(t Type) int {
	if i := t.index(); i >= 0 {
		return l[i]
	}
	return 0
}

// String returns the form that ParseLimits reads.
func (l Limits) String() string {
	if l == Uniform(l[0]) {
		return strconv.Itoa(l[0])
	}
	out := make([]string, len(l))
	for i, n := range l {
		out[i] = strconv.Itoa(n)
	}
	return strings.Join(out, " ")
}
