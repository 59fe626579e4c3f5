package httpapi

import (
	"testing"
)

// Between uses a model's last use does not change, however often the pool is read.
func TestReadsDoNotChangeTheLastUse(t *testing.T) {
	p := newPool(t, "1")
	p.want(200, p.chat("one"))
	seen := map[any]bool{}
	for range 8 {
		seen[p.want(200, p.get("/v1/health")).list("all_models_loaded")[0]["last_use"]] = true
		p.want(200, p.post("/v1/internal/pin", `{"model_name":"vec","pinned":true}`)) // changes the pool
	}
	if len(seen) != 1 {
		t.Errorf("one use has %d times: %v", len(seen), seen)
	}
}
