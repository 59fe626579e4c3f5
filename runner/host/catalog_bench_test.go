package host

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"reveille/infra/catalog"
	"reveille/infra/policy"
	"reveille/infra/recipe"
)

// BenchmarkCatalogEdit measures what an edit of a catalogue of 200 models costs a host with 20 of them loaded, and the
// longest time (wait-ns) that a request waits for admission during it.
func BenchmarkCatalogEdit(b *testing.B) {
	const models, loaded = 200, 20
	text := func(edit int) []byte {
		var t strings.Builder
		t.WriteString("models:\n")
		for i := range models {
			fmt.Fprintf(&t, "  m%03d: {type: embedding, recipe: llamacpp, device: cpu, checkpoint: \"hf://o/r/m%d.gguf\", description: edit %d}\n", i, i, edit)
		}
		return []byte(t.String())
	}
	var catalogs [2]*catalog.Catalog
	for i := range catalogs {
		c, _, err := catalog.Parse("models.yaml", text(i))
		if err != nil {
			b.Fatal(err)
		}
		c.Recipes = recipe.Shipped() // as a host reads them with each new catalogue
		catalogs[i] = c
	}
	h := New(Config{})
	h.catalog = catalogs[0]
	for i := range loaded {
		id := fmt.Sprintf("m%03d", i)
		m, _ := h.catalog.Model(id)
		r := h.catalog.Recipes[m.Recipe]
		e := loadSpec{model: m, catalog: h.catalog, recipe: &r}
		h.residents[id] = e.newResident("")
		h.residents[id].state = policy.ModelLoaded
	}
	stop, waits := make(chan struct{}), make(chan []time.Duration)
	go func() {
		var worst []time.Duration
		for {
			select {
			case <-stop:
				waits <- worst
				return
			default:
			}
			began := time.Now()
			h.mu.Lock()
			h.mu.Unlock() //lint:ignore SA2001 what admission waits for
			worst = append(worst, time.Since(began))
			time.Sleep(50 * time.Microsecond)
		}
	}()
	edit := 0
	for b.Loop() {
		edit++
		h.mu.Lock()
		h.catalog = catalogs[edit%2]
		h.mu.Unlock()
		h.retireOutdated(context.Background())
	}
	close(stop)
	b.ReportMetric(float64(slices.Max(<-waits)), "wait-ns")
}
