package cli

import (
	"bytes"
	"strings"
	"testing"

	"reveille/infra/catalog"
	"reveille/infra/config"
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
	cat, _, err := catalog.Parse("models.yaml", []byte("models:\n  eye: {type: llm, recipe: llamacpp, checkpoint: a.gguf, mmproj: b.gguf, device: cpu}\n"))
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
	if err := rdb.HSet(t.Context(), "mm:"+sig+":00000000000000aa", "digest", strings.Repeat("x", 2048)).Err(); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	c := MM{Redis: config.Redis{RedisURL: url, Pool: "main"}}
	if err := c.Run(t.Context(), &out); err != nil {
		t.Fatal(err)
	}
	if s := out.String(); !strings.Contains(s, sig) || !strings.Contains(s, "eye") || !strings.Contains(s, "2KiB") && !strings.Contains(s, "2 KiB") {
		t.Errorf("gateway mm printed\n%s", s)
	}
}
