package catalog

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"reveille/infra/jsonscan"
	"reveille/infra/policy"
)

// Marshal writes the catalogue as JSON, in its published form. Equal catalogues give equal bytes.
func (c *Catalog) Marshal() ([]byte, error) {
	text, err := jsonscan.Marshal(c) // recipes hold < > & in their patterns
	if err != nil {
		return nil, fmt.Errorf("catalog: marshal: %w", err)
	}
	return text, nil
}

// Unmarshal reads Marshal's output and checks it as Parse checks a file, so that a damaged or foreign text is refused
// and never partly used. It ignores unknown members, because a newer program may have written them.
func Unmarshal(data []byte) (*Catalog, error) {
	var d draft
	if err := json.Unmarshal(data, &d.Catalog); err != nil {
		return nil, fmt.Errorf("catalog: unmarshal: %w", err)
	}
	for name, r := range d.Recipes {
		if r.Name != name {
			return nil, fmt.Errorf("catalog: unmarshal: recipe %q is filed under %q", r.Name, name)
		}
		if err := r.Validate(); err != nil { // which also restores the kinds of number that JSON does not know
			return nil, fmt.Errorf("catalog: unmarshal: %w", err)
		}
	}
	for _, m := range d.Models {
		if m == nil {
			return nil, fmt.Errorf("catalog: unmarshal: a model is null")
		}
	}
	for _, h := range d.Hosts {
		if h == nil {
			return nil, fmt.Errorf("catalog: unmarshal: a host is null")
		}
	}
	rep := &report{at: map[yamlPath]position{}}
	if check(&d, rep); len(rep.problems) > 0 {
		return nil, rep.problems
	}
	c, version := d.Catalog, d.Version
	const member = `{"version":"`
	content, found := bytes.CutPrefix(data, []byte(member+version))
	if !found || version != versionOf([]byte(member), content) {
		return nil, fmt.Errorf("catalog: unmarshal: content is not that of version %q", clip(version))
	}
	c.seal()
	c.Version = version
	return &c, nil
}

// hash returns the version: the hash of the whole content without the version itself.
func (c *Catalog) hash() string {
	bare := *c
	bare.Version = ""
	data, err := bare.Marshal()
	if err != nil {
		panic("catalog: a checked catalogue cannot be written: " + err.Error())
	}
	return versionOf(data)
}

// versionOf returns the version of the content that the parts make up.
func versionOf(parts ...[]byte) string {
	h := sha256.New()
	for _, p := range parts {
		_, _ = h.Write(p)
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// The types below are the written forms: devices and durations as people read them, so that redis-cli explains them.

type (
	plainModel    Model
	plainHost     Host
	plainDefaults Defaults
	plainWarmup   Warmup
)

type modelJSON struct {
	*plainModel
	Devices deviceText    `json:"devices,omitempty"`
	Idle    *durationText `json:"idle,omitempty"`
}

type hostJSON struct {
	*plainHost
	Devices deviceText `json:"devices,omitempty"`
}

type defaultsJSON struct {
	*plainDefaults
	Idle *durationText `json:"idle,omitempty"`
}

type warmupJSON struct {
	*plainWarmup
	For durationText `json:"for"`
}

// MarshalJSON writes devices as "cpu gpu" and idle as a duration text.
func (m Model) MarshalJSON() ([]byte, error) {
	return json.Marshal(modelJSON{(*plainModel)(&m), deviceText(m.Devices), (*durationText)(m.Idle)})
}

// UnmarshalJSON is the inverse of MarshalJSON.
func (m *Model) UnmarshalJSON(b []byte) error {
	j := modelJSON{plainModel: (*plainModel)(m)}
	err := json.Unmarshal(b, &j)
	m.Devices, m.Idle = policy.Devices(j.Devices), (*time.Duration)(j.Idle)
	return err
}

// MarshalJSON writes devices as "cpu gpu".
func (h Host) MarshalJSON() ([]byte, error) {
	return json.Marshal(hostJSON{(*plainHost)(&h), deviceText(h.Devices)})
}

// UnmarshalJSON is the inverse of MarshalJSON.
func (h *Host) UnmarshalJSON(b []byte) error {
	j := hostJSON{plainHost: (*plainHost)(h)}
	err := json.Unmarshal(b, &j)
	h.Devices = policy.Devices(j.Devices)
	return err
}

// MarshalJSON writes idle as a duration text.
func (d Defaults) MarshalJSON() ([]byte, error) {
	return json.Marshal(defaultsJSON{(*plainDefaults)(&d), (*durationText)(d.Idle)})
}

// UnmarshalJSON is the inverse of MarshalJSON.
func (d *Defaults) UnmarshalJSON(b []byte) error {
	j := defaultsJSON{plainDefaults: (*plainDefaults)(d)}
	err := json.Unmarshal(b, &j)
	d.Idle = (*time.Duration)(j.Idle)
	return err
}

// MarshalJSON writes For as a duration text.
func (w Warmup) MarshalJSON() ([]byte, error) {
	return json.Marshal(warmupJSON{(*plainWarmup)(&w), durationText(w.For)})
}

// UnmarshalJSON is the inverse of MarshalJSON.
func (w *Warmup) UnmarshalJSON(b []byte) error {
	j := warmupJSON{plainWarmup: (*plainWarmup)(w)}
	err := json.Unmarshal(b, &j)
	w.For = time.Duration(j.For)
	return err
}

type durationText time.Duration

func (d durationText) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

func (d *durationText) UnmarshalText(b []byte) error {
	v, err := parseDuration(string(b))
	*d = durationText(v)
	return err
}

type deviceText policy.Devices

func (d deviceText) MarshalText() ([]byte, error) { return []byte(policy.Devices(d).String()), nil }

func (d *deviceText) UnmarshalText(b []byte) error {
	v, err := policy.ParseDevices(string(b))
	*d = deviceText(v)
	return err
}
