package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Devices is a set of the kinds of device a model uses or a host has.
type Devices uint8

// The kinds of device.
const (
	CPU Devices = 1 << iota
	GPU
	NPU
)

type deviceName struct {
	bit  Devices
	name string
}

var deviceNames = [...]deviceName{{CPU, "cpu"}, {GPU, "gpu"}, {NPU, "npu"}}

// ParseDevices reads names separated by spaces, commas or "|" ("cpu gpu"). It returns an error for unknown names. An
// empty string is the empty set.
func ParseDevices(s string) (Devices, error) {
	var d Devices
	for _, f := range strings.FieldsFunc(s, func(r rune) bool { return r == ' ' || r == ',' || r == '|' }) {
		bit := Devices(0)
		for _, n := range deviceNames {
			if n.name == strings.ToLower(f) {
				bit = n.bit
			}
		}
		if bit == 0 {
			return 0, fmt.Errorf("unknown device %q: want cpu, gpu or npu", f)
		}
		d |= bit
	}
	return d, nil
}

// String lists the names in the order cpu, gpu, npu, separated by one space; the empty set is "".
func (d Devices) String() string {
	var out []string
	for _, n := range deviceNames {
		if d&n.bit != 0 {
			out = append(out, n.name)
		}
	}
	return strings.Join(out, " ")
}

// MarshalText writes what String returns.
func (d Devices) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads what [ParseDevices] reads.
func (d *Devices) UnmarshalText(text []byte) (err error) {
	*d, err = ParseDevices(string(text))
	return err
}

// UnmarshalYAML reads one name or a list of them.
func (d *Devices) UnmarshalYAML(unmarshal func(any) error) error {
	var names []string
	if err := unmarshal(&names); err != nil {
		names = make([]string, 1)
		if err := unmarshal(&names[0]); err != nil {
			return err
		}
	}
	return d.UnmarshalText([]byte(strings.Join(names, " ")))
}

// Has reports whether d contains every device of want.
func (d Devices) Has(want Devices) bool { return d&want == want }

// Overlaps reports whether the two sets share a device.
func (d Devices) Overlaps(o Devices) bool { return d&o != 0 }

// A Type is the class of work that a model does. Each type has its own slot limit on a host.
type Type string

// The types, in the order in which slot limits are listed (`--max-loaded-models "5 2 4"`).
const (
	LLM       Type = "llm"
	Embedding Type = "embedding"
	Reranking Type = "reranking"
	Audio     Type = "audio"
	Image     Type = "image"
	TTS       Type = "tts"
)

var types = [...]Type{LLM, Embedding, Reranking, Audio, Image, TTS}

// Types returns all types in the order of slot limit lists. The caller may change the slice.
func Types() []Type { return slices.Clone(types[:]) }

// Valid reports whether t is one of the known types.
func (t Type) Valid() bool { return slices.Contains(types[:], t) }

// index is the position of t in a limit list, -1 for an unknown type.
func (t Type) index() int { return slices.Index(types[:], t) }

// Limits is the maximum number of loaded models of each type on a host; -1 means no limit. The zero value allows none:
// use ParseLimits or Uniform.
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
		return Limits{}, fmt.Errorf("%q: want one number, or up to %d in the order llm embedding reranking audio image tts", s, len(types))
	}
	l := Uniform(1)
	for i, f := range fields {
		n, err := strconv.Atoi(f)
		if err != nil || n == 0 || n < -1 {
			return Limits{}, fmt.Errorf("%q is neither a positive number nor -1 (no limit)", f)
		}
		if len(fields) == 1 {
			return Uniform(n), nil
		}
		l[i] = n
	}
	return l, nil
}

// Override returns the limits as the pool's run-time setting max_loaded_models changes them: a JSON number for all types,
// or an object of numbers by type. If the setting is invalid, it returns l and why.
func (l Limits) Override(setting []byte) (Limits, error) {
	out, by := l, map[Type]int{}
	var all int
	if json.Unmarshal(setting, &all) == nil {
		for _, t := range types {
			by[t] = all
		}
	} else if json.Unmarshal(setting, &by) != nil {
		return l, errors.New("want a whole number, or an object of them by type")
	}
	for t, n := range by {
		switch {
		case !t.Valid():
			return l, errors.New("want the types llm, embedding, reranking, audio, image and tts only")
		case (n < 1 || n > 1_000_000) && n != -1:
			return l, errors.New("want 1 to 1000000, or -1 for no limit")
		}
		out[t.index()] = n
	}
	return out, nil
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
