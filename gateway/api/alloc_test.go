//go:build !race

package api

import (
	"testing"

	"reveille/infra/jsonscan"
)

func TestMatchDoesNotAllocate(t *testing.T) {
	body := []byte(`{"model":"qwen3-4b","messages":[{"role":"user","content":"hi"}],"stream":true}`)
	for _, path := range hotPaths {
		if n := testing.AllocsPerRun(100, func() {
			if Match("POST", path).Route == nil {
				t.Fatal(path)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", path, n)
		}
	}
	if n := testing.AllocsPerRun(100, func() {
		r := Match("POST", hotPaths[0]).Route
		var values [MaxKeys]jsonscan.Value
		if jsonscan.Scan(body, r.Keys(), values[:]) != nil || r.Check(values[:]) != nil || !r.Stream(values[:]) {
			t.Fatal("refused")
		}
	}); n != 0 {
		t.Errorf("match, scan and check: %v allocations", n)
	}
}
