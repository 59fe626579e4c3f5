package httpapi

import (
	"testing"
	"time"

	"reveille/infra/state"
)

// A record's last use may be too late by the time that its report took. It must not overtake a later use of another
// model.
func TestLastUseKeepsTheOrderOfUses(t *testing.T) {
	var u uses
	u.note("h", "first")
	u.note("h", "second")
	now := time.Now()
	snap := &state.Snapshot{Taken: now, NowMS: now.UnixMilli()}
	record := func(model string, late time.Duration) *state.ModelRecord {
		return &state.ModelRecord{ID: model, UsedMS: now.Add(late).UnixMilli()}
	}
	first, own := u.lastOn(snap, record("first", usageLate/2), "h")
	if !own {
		t.Error("a use of this gateway's own that was told late counts as another's")
	}
	second, _ := u.lastOn(snap, record("second", 0), "h")
	if first > second {
		t.Errorf("the first use (%d) stands after the second (%d)", first, second)
	}
	if at, own := u.lastOn(snap, record("first", 2*usageLate), "h"); own || at != record("first", 2*usageLate).UsedMS*1000 {
		t.Errorf("a later use through another gateway: %d, own: %v", at, own)
	}
	if at, own := u.lastOn(snap, record("third", 0), "h"); own || at != snap.NowMS*1000 {
		t.Errorf("a use through another gateway: %d, own: %v", at, own)
	}
}

// Between uses a model's last use does not change, however often the pool is read.
func TestLastUseStandsStill(t *testing.T) {
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
