package sim

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"reveille/infra/catalog"
	"reveille/infra/policy"
	"reveille/infra/recipe"
	"reveille/testenv/check"
)

// modelNames are the models of every scenario: three that share the slots of llm, two embeddings, two types on the NPU,
// and a pinned one with a neighbour. What a and e need is in the models file, what b needs only runners find out; the
// others need nothing.
var modelNames = []string{"a", "b", "c", "e", "f", "n", "o", "p", "q"}

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
var found = map[string]int64{"b": 4 << 20}

// modelIndex is the position of a model from 1, 0 for none.
func modelIndex(name string) int { return slices.Index(modelNames, name) + 1 }

func hostName(i int) string { return fmt.Sprint("h", i) }

// makeCatalog is the models file of a pool with these hosts, after so many edits of the entries of models.
func makeCatalog(hosts []HostSpec, edits map[string]int) (*catalog.Catalog, error) {
	models := modelsYAML
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
		fmt.Fprintf(&b, "  %s: {driver: exec, devices: [cpu, npu], commands: {wake: [\"true\"], sleep: [\"true\"]}}\n", hostName(i+1))
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

// checked is the catalogue as the checker wants it.
func checked(c *catalog.Catalog) map[string]check.Model {
	out := map[string]check.Model{}
	for _, m := range c.Models {
		out[m.ID] = check.Model{Type: m.Type, NPU: m.Devices.Has(policy.NPU), Pinned: m.Pin, Memory: max(m.Memory, found[m.ID])}
	}
	return out
}
