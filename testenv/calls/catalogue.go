package calls

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Catalog is a models file of stand-ins in short: name → type and further fields in YAML's flow form,
// "llm, device: npu". Device and recipe default to cpu and standin.
type Catalogue map[string]string

// YAML is the models file. tail is what follows the models: hosts, recipes.
func (c Catalogue) YAML(tail string) string {
	var b strings.Builder
	b.WriteString("models:\n")
	for _, name := range slices.Sorted(maps.Keys(c)) {
		fields := c[name]
		if !strings.Contains(fields, "device:") {
			fields += ", device: cpu"
		}
		if !strings.Contains(fields, "recipe:") {
			fields += ", recipe: standin"
		}
		fmt.Fprintf(&b, "  %s: {type: %s}\n", name, fields)
	}
	return b.String() + tail
}

// LocalHost is a tail for Catalog.YAML: one host of `gateway run` with a CPU and an NPU.
const LocalHost = "hosts:\n  local: {driver: local, devices: [cpu, npu]}\n"

// Type is a model's type.
func (c Catalogue) Type(model string) string {
	typ, _, _ := strings.Cut(c[model], ",")
	return typ
}

// NPU reports whether a model uses the NPU.
func (c Catalogue) NPU(model string) bool { return strings.Contains(c[model], "device: npu") }

// Options is the field of a model that passes flags to its stand-in.
func Options(args string) string { return fmt.Sprintf("options: {args: %q}", args) }
