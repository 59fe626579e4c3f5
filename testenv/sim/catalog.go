package sim

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"reveille/infra/catalog"
	"reveille/infra/policy"
	"reveille/infra/recipe"
	"reveille/runner/devices"
	"reveille/testenv/check"
)

// modelNames are the models of every scenario: three that share the slots of llm, two embeddings, two types on the NPU,
// and a pinned one with a neighbour. What a and e need is in the models file, what b needs only runners find out; the
// others need nothing.
var modelNames = slices.Concat([]string{"a", "b", "c", "e", "f", "n", "o", "p", "q"}, sized)

// sized are the models of scenarios with GPUs: twenty of 4 to 60 GiB, half of whose needs only runners find out.
var sized = func() (names []string) {
	for i := range 20 {
		names = append(names, fmt.Sprint("g", i+1))
	}
	return names
}()

// sizeOf is what one of sized needs.
func sizeOf(i int) int64 { return (4 + int64(i)*56/19) << 30 }

// sizedYAML is the models file of scenarios with GPUs.
func sizedYAML() string {
	var b strings.Builder
	b.WriteString("models:\n")
	for i, name := range sized {
		memory := ""
		if i%2 == 0 {
			memory = fmt.Sprintf(", memory: %d", sizeOf(i))
		}
		fmt.Fprintf(&b, "  %s: {type: llm, recipe: standin, device: gpu%s}\n", name, memory)
	}
	b.WriteString("hosts:\n")
	return b.String()
}

const modelsYAML = `
models:
  a: {type: llm, recipe: standin, device: cpu, memory: 4MiB}
  b: {type: llm, recipe: standin, device: cpu}
  c: {type: llm, recipe: standin, device: cpu}
  e: {type: embedding, recipe: standin, device: cpu, memory: 3MiB}
  f: {type: embedding, recipe: standin, device: cpu}
  n: {type: llm, recipe: standin, device: npu}
  o: {type: audio, recipe: standin, device: npu}
  p: {type: reranking, recipe: standin, device: cpu, pin: true}
  q: {type: reranking, recipe: standin, device: cpu}
hosts:
`

// found is what runners find out that models need.
var found = func() map[string]int64 {
	out := map[string]int64{"b": 4 << 20}
	for i, name := range sized {
		out[name] = sizeOf(i)
	}
	return out
}()

// onGPUs reports whether a scenario's hosts have GPUs.
func onGPUs(hosts []HostSpec) bool {
	return slices.ContainsFunc(hosts, func(h HostSpec) bool { return h.GPUs != "" })
}

// cardsOf are the GPUs of a host in bytes, and what found them; nil for none.
func cardsOf(h HostSpec) (cards policy.GPUMemory, detected []devices.Device) {
	for i, text := range strings.FieldsFunc(h.GPUs, func(r rune) bool { return r == ',' }) {
		n, err := strconv.ParseInt(text, 10, 16)
		if err != nil {
			panic(err) // Parse has read it
		}
		if cards == nil {
			cards = policy.GPUMemory{}
		}
		cards[i] = n << 30
		detected = append(detected, devices.Device{Kind: "gpu", Index: i, Total: n << 30, API: devices.CUDA, Visible: strconv.Itoa(i)})
	}
	return cards, detected
}

// modelIndex is the position of a model from 1, 0 for none.
func modelIndex(name string) int { return slices.Index(modelNames, name) + 1 }

// hostName is the name of a host, counted from 1.
func (s Scenario) hostName(i int) string {
	if s.Group {
		return catalog.SlotName(groupName, i)
	}
	return fmt.Sprint("h", i)
}

// makeCatalog is the models file of a scenario, after so many edits of the entries of models.
func makeCatalog(s Scenario, edits map[string]int) (*catalog.Catalog, error) {
	models, kinds, hosts := modelsYAML, "cpu, npu", s.Hosts
	if s.Copies.Max > 0 {
		several := fmt.Sprintf("recipe: standin, replicas: {max: %d}, device: cpu", s.Copies.Max)
		models = strings.ReplaceAll(models, "recipe: standin, device: cpu", several)
	}
	if onGPUs(hosts) {
		models, kinds = sizedYAML(), "cpu, gpu"
	}
	if s.MinLoaded > 0 {
		models = fmt.Sprintf("defaults: {min_loaded: %v}\n%s", s.MinLoaded, models)
	}
	for name, n := range edits {
		entry := "  " + name + ": {"
		models = strings.Replace(models, entry, entry+fmt.Sprintf("options: {args: --tokens %d}, ", n), 1)
	}
	var b strings.Builder
	b.WriteString(models)
	for i, h := range hosts {
		if h.Strange {
			continue
		}
		fmt.Fprintf(&b, "  %s: {driver: exec, devices: [%s], commands: {wake: [\"true\"], sleep: [\"true\"]}}\n", s.hostName(i+1), kinds)
	}
	if s.Group {
		b.Reset()
		fmt.Fprintf(&b, "%s  %s: {driver: asg, group: %s, devices: [%s], max: %d}\n", models, groupName, groupName, kinds, len(hosts))
	}
	text := b.String()
	if c, known := catalogs.Load(text); known {
		return c.(*catalog.Catalog), nil
	}
	c, _, err := catalog.Parse("models.yaml", []byte(text))
	if err == nil {
		catalogs.Store(text, c)
	}
	return c, err
}

// catalogs are the parsed ones by text: worlds share them.
var catalogs sync.Map

// shipped are the recipes of every runner, read once.
var shipped = sync.OnceValue(recipe.Shipped)

// checked is the catalog as the checker wants it.
func checked(c *catalog.Catalog) map[string]check.Model {
	out := map[string]check.Model{}
	for _, m := range c.Models {
		out[m.ID] = check.Model{
			Type: m.Type, NPU: m.Devices.Has(policy.NPU), Pinned: m.Pin, Copies: m.Replicas.Max, Memory: max(int64(m.Memory), found[m.ID]),
		}
	}
	return out
}
