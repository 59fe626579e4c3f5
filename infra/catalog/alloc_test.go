//go:build !race

package catalog

import "testing"

func TestResolveDoesNotAllocate(t *testing.T) {
	c := mustParse(t, named)
	for _, name := range []string{"org/name", "g", "gemma:latest"} {
		if n := testing.AllocsPerRun(1000, func() {
			if _, err := c.Resolve(name); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
