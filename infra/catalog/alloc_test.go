//go:build !race

package catalog

import "testing"

func TestResolveBytesDoesNotAllocate(t *testing.T) {
	c := mustParse(t, named)
	for _, name := range []string{"org/name", "g", "gemma:latest"} {
		b := []byte(name)
		if n := testing.AllocsPerRun(1000, func() {
			if _, err := c.ResolveBytes(b); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
