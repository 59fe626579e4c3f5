package weights_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"reveille/infra/catalog"
	"reveille/runner/weights"
	"reveille/runner/weights/hf"
	"reveille/testenv/hub"
)

// BenchmarkPull fetches 256 MiB from a hub on loopback, SHA-256, sync and rename included, by one range at a time and by
// eight.
func BenchmarkPull(b *testing.B) {
	h := hub.Start(b)
	content := noise(1, 256<<20)
	h.Put("o/r", "m.gguf", content)
	src, err := hf.New(h.URL, "")
	if err != nil {
		b.Fatal(err)
	}
	defer src.Close()
	for _, ranges := range []int{1, 8} {
		b.Run(fmt.Sprintf("ranges=%d", ranges), func(b *testing.B) {
			b.SetBytes(int64(len(content)))
			for b.Loop() {
				dir, err := os.MkdirTemp(b.TempDir(), "")
				if err != nil {
					b.Fatal(err)
				}
				c, err := weights.Open(weights.Config{Dir: dir, Ranges: ranges, Pause: time.Millisecond, Sources: map[catalog.Scheme]weights.Source{catalog.SchemeHF: src}})
				if err != nil {
					b.Fatal(err)
				}
				if err := c.Pull(b.Context(), place("hf://o/r/m.gguf")); err != nil {
					b.Fatal(err)
				}
				c.Close()
				if err := os.RemoveAll(dir); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
