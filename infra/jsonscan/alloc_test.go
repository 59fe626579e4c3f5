//go:build !race

package jsonscan

import "testing"

func TestScanDoesNotAllocate(t *testing.T) {
	for name, body := range map[string][]byte{"string": longString(1 << 16), "dialogue": dialogue(1 << 16), "prose": prose(1 << 16)} {
		var out [3]Value
		if n := testing.AllocsPerRun(20, func() {
			if err := Scan(body, chatKeys, out[:]); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
