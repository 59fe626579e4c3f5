package policy

import (
	"fmt"
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
// empty text is the empty set.
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
