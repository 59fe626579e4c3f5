package engineslots

import (
	"context"
	"crypto/sha256"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"
)

// llama is an engine: it puts a request without a slot anywhere, and what a slot computed stays in it.
type llama struct {
	mu    sync.Mutex
	holds []Tenant
	fail  bool
}

func (l *llama) erase(_ context.Context, slot int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fail {
		return errors.New("it does not answer")
	}
	l.holds[slot] = Tenant{}
	return nil
}

// promptOf returns a prompt with a start for each byte of a text.
func promptOf(text string) (p Prompt) {
	for i := range text {
		p.Starts = append(p.Starts, sha256.Sum256([]byte(text[:i+1])))
	}
	return p
}

// In any order of requests that are told a slot, that are not, that leave while they wait, and of erasures that fail,
// no request meets the conversation of another tenant.
func TestSlotsNeverMixKeys(t *testing.T) {
	const n = 3
	l := &llama{holds: make([]Tenant, n)}
	table := New(n, l.erase)
	tenants := [...]Tenant{TenantOf("ann"), TenantOf("ben"), TenantOf("")}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 200 {
				tenant, free := tenants[rand.IntN(len(tenants))], rand.IntN(4) == 0
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				if rand.IntN(8) == 0 {
					cancel()
				}
				l.mu.Lock()
				l.fail = rand.IntN(8) == 0
				l.mu.Unlock()
				slot, err := table.Acquire(ctx, tenant, promptOf(strings.Repeat("a", rand.IntN(40))), free)
				cancel()
				if err != nil {
					continue
				}
				at := slot
				if free != (slot == Any) {
					t.Errorf("slot %d", slot)
				}
				l.mu.Lock()
				if slot == Any {
					if at = rand.IntN(n); l.holds[at] != tenant && l.holds[at] != (Tenant{}) {
						t.Error("a request without a slot meets another tenant's conversation")
					}
				} else if l.holds[at] != tenant && l.holds[at] != (Tenant{}) {
					t.Error("a request meets another tenant's conversation")
				}
				l.holds[at] = tenant
				l.mu.Unlock()
				table.Release(slot)
			}
		})
	}
	all.Wait()
	for i := range n {
		if slot, err := table.Acquire(t.Context(), tenants[0], Prompt{}, false); err != nil && !l.fail || err == nil && slot < 0 {
			t.Errorf("request %d at the end: slot %d, %v", i, slot, err)
		}
	}
}

// A conversation goes on in its own slot; a new one takes an empty slot, then the one that was used longest ago.
func TestSlotWithTheLongestCommonStartIsChosen(t *testing.T) {
	table := New(3, func(context.Context, int) error { return nil })
	body := func(who string, turns int) Prompt {
		p := promptOf("the same system prompt" + strings.Repeat(who, turns))
		p.Own = len("the same system prompt")
		return p
	}
	ask := func(tenant string, p Prompt) int {
		t.Helper()
		slot, err := table.Acquire(t.Context(), TenantOf(tenant), p, false)
		if err != nil {
			t.Fatal(err)
		}
		table.Release(slot)
		return slot
	}
	short := promptOf("short")
	first, second := ask("ann", short), ask("ben", body("ben", 1))
	third := ask("ann", body("one", 1))
	if first == second || second == third || first == third {
		t.Fatalf("slots %d, %d, %d", first, second, third)
	}
	if got := ask("ann", body("one", 2)); got != third {
		t.Errorf("the next turn got slot %d, not %d", got, third)
	}
	if got := ask("ben", body("ben", 2)); got != second {
		t.Errorf("ben's next turn got slot %d, not %d", got, second)
	}
	if got := ask("eve", body("one", 3)); got != first {
		t.Errorf("a new tenant got slot %d, not the one used longest ago, %d", got, first)
	}
	if got := ask("ben", body("ben", 3)); got != second {
		t.Errorf("ben's last turn got slot %d, not %d", got, second)
	}
}
