package models

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"reveille/infra/state"
)

// A record's last use may be too late by the time that its report took. It must not overtake a later use of another
// model.
func TestLastUseKeepsTheOrderOfUses(t *testing.T) {
	var u Uses
	u.Note("h", "first")
	u.Note("h", "second")
	now := time.Now()
	record := func(model string, late time.Duration) *state.ModelRecord {
		return &state.ModelRecord{ID: model, UsedMS: now.Add(late).UnixMilli()}
	}
	first, own := u.LastOn(record("first", usageLate/2), "h")
	if !own {
		t.Error("a use of this gateway's own that was told late counts as another's")
	}
	second, _ := u.LastOn(record("second", 0), "h")
	if first > second {
		t.Errorf("the first use (%d) stands after the second (%d)", first, second)
	}
	if at, own := u.LastOn(record("first", 2*usageLate), "h"); own || at != record("first", 2*usageLate).UsedMS*1000 {
		t.Errorf("a later use through another gateway: %d, own: %v", at, own)
	}
	if at, own := u.LastOn(record("third", 0), "h"); own || at != now.UnixMilli()*1000 {
		t.Errorf("a use through another gateway: %d, own: %v", at, own)
	}
}

// What the pool's state has had for long is forgotten, so that models that come and go do not add up.
func TestUsesForget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var u Uses
		for i := range 10_000 {
			u.Note("h", fmt.Sprint("user.", i))
			time.Sleep(time.Second)
		}
		if n := len(u.last); n > 200 {
			t.Errorf("%d uses are kept, of a minute and twice that at most", n)
		}
	})
}
