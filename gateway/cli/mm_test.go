package cli

import (
	"bytes"
	"regexp"
	"strings"
	"testing"

	"reveille/infra/catalog"
	"reveille/infra/config"
	"reveille/infra/mmstats"
	"reveille/infra/state"
	"reveille/testenv"
)

func TestMM(t *testing.T) {
	url := "redis://" + testenv.Redis(t) + "/0"
	store, err := state.Open(state.Options{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	cat, _, err := catalog.Parse("models.yaml", []byte("models:\n  eye: {type: llm, recipe: llamacpp, checkpoint: a.gguf, mmproj: b.gguf, device: cpu}\n"+
		"  ear: {type: llm, recipe: llamacpp, checkpoint: a.gguf, mmproj: c.gguf, device: cpu}\n  blind: {type: llm, recipe: llamacpp, checkpoint: a.gguf, device: cpu}\n"))
	if err != nil {
		t.Fatal(err)
	}
	data, err := cat.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.PutCatalog(t.Context(), cat.Version, data, nil); err != nil {
		t.Fatal(err)
	}
	m, _ := cat.Model("eye")
	rdb, err := state.Client(state.Options{URL: url})
	if err != nil {
		t.Fatal(err)
	}
	defer rdb.Close()
	sig := hex16(m.Signature())
	if err := rdb.Set(t.Context(), "mm:main:"+sig+":"+strings.Repeat("a", 64), strings.Repeat("x", 2048), 0).Err(); err != nil {
		t.Fatal(err)
	}
	counts := state.NewUsageReporter(store)
	for counter, n := range map[string]float64{mmstats.CountHitsL1: 40, mmstats.CountHitsL2: 2, mmstats.CountMisses: 7} {
		counts.Count(mmstats.CounterOf(counter, "eye"), n)
		counts.Count(mmstats.CounterOf(counter, "ear"), 3)
	}
	if err := counts.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	c := MM{RedisFinder: config.RedisFinder{RedisURL: url, Pool: "main"}}
	if err := c.Run(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	ear, _ := cat.Model("ear")
	got := regexp.MustCompile(`1 2\.?\d* KiB`).ReplaceAllString(strings.Join(strings.Fields(out.String()), " "), "1 2 KiB")
	want := "SIGNATURE MEDIA SIZE HITS MISSES MODELS " + sig + " 1 2 KiB 42 7 eye " + hex16(ear.Signature()) + " 0 0 B 6 3 ear"
	if got != want {
		t.Errorf("gateway mm printed\n%s\nwant\n%s", got, want)
	}
}
