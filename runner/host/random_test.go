package host_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"reveille/infra/policy"
	"reveille/infra/state"
	"reveille/runner/engine"
	"reveille/runner/host"
	"reveille/testenv"
)

// Random tickets, requests, deaths, failing loads, unloads and outages of Redis. After each step no limit is broken.
// The fake engines check that one loads at a time and none is stopped with an open request. In the end every ticket has
// its outcome and Redis holds exactly what the host holds.
func TestRandomHistories(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			random(t, rand.New(rand.NewPCG(seed, 1)))
		})
	}
}

func random(t *testing.T, r *rand.Rand) {
	redis := testenv.Redis(t)
	flaky := testenv.NewFlaky(t, redis)
	limits, _ := policy.ParseLimits([]string{"1", "2", "1 2", "-1 1 1 1 1 1"}[r.IntN(4)])
	loads := rand.New(rand.NewPCG(r.Uint64(), 2))
	b := startOn(t, redis, func(c *host.Config) {
		s, err := state.Open(state.Options{URL: "redis://" + flaky.Addr})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		c.Store, c.Limits, c.Reserve, c.DrainTimeout, c.ClearTimeout = s, limits, 50*time.Millisecond, 50*time.Millisecond, 300*time.Millisecond
	})
	b.engines.slow = func() time.Duration { return time.Duration(loads.IntN(15)) * time.Millisecond } // called under the fakes' lock
	names := []string{"a", "b", "c", "e", "f", "i", "n", "o", "p", "q", "huge", "unknown"}
	pick := func() string { return names[r.IntN(len(names))] }
	var tickets []string
	var leaves []func()
	away := 0
	for step := range 250 {
		switch n := r.IntN(100); {
		case n < 30:
			w := state.Want{Model: pick(), Background: r.IntN(4) == 0}
			if r.IntN(4) == 0 {
				w.Explicit, w.Fields = true, map[string]string{"options": fmt.Sprintf(`{"ctx_size":%d}`, 1+r.IntN(2))}
			}
			tickets = append(tickets, b.ask(w))
		case n < 35:
			fields := [][]string{nil, {"force", "1"}, {"only_idle_ms", "1"}}[r.IntN(3)]
			tickets = append(tickets, b.unload(pick(), fields...))
		case n < 60:
			ticket := ""
			if len(tickets) > 0 {
				ticket = tickets[r.IntN(len(tickets))]
			}
			if leave, refused := b.enter(pick(), ticket); refused == "" {
				leaves = append(leaves, leave)
			}
		case n < 80 && len(leaves) > 0:
			i := r.IntN(len(leaves))
			leaves[i]()
			leaves = append(leaves[:i], leaves[i+1:]...)
		case n < 83 && len(tickets) > 0:
			_ = b.store.ReleaseTicket(t.Context(), "g", tickets[r.IntN(len(tickets))], r.IntN(2) == 0)
		case n < 86:
			if f := b.engines.of(pick()); f != nil {
				f.mayCut.Store(true)
				f.die()
			}
		case n < 89:
			b.engines.mu.Lock()
			m := pick()
			b.engines.fails[m] = append(b.engines.fails[m], []error{errLoad, &engine.LoadError{Kind: engine.ErrFileNotFound}}[r.IntN(2)])
			b.engines.mu.Unlock()
		case n < 91:
			flaky.Refuse(true)
			flaky.Cut()
			away = step + r.IntN(10)
		case n < 92:
			b.must(b.rdb.FlushAll(t.Context()).Err())
			b.publish(models)
		default:
			time.Sleep(time.Duration(r.IntN(30)) * time.Millisecond)
		}
		if away != 0 && step >= away {
			flaky.Refuse(false)
			away = 0
		}
		limitsHold(b, limits)
	}
	flaky.Refuse(false)
	b.engines.mu.Lock()
	clear(b.engines.fails)
	b.engines.mu.Unlock()
	for _, leave := range leaves {
		leave()
	}
	for _, ticket := range tickets {
		b.until("end of ticket "+ticket, func() bool {
			limitsHold(b, limits)
			st := b.peek(ticket)
			return st.Ticket != "" && (!st.Found || st.Record.Done())
		})
	}
	t.Logf("%+v", b.host.Stats())
	b.until("Redis holds what the host holds", func() bool { return agree(b) })
	for _, m := range []string{"a", "n", "e"} {
		b.ready(b.load(m)) // and it works as before
	}
}

// limitsHold checks rules 1 and 3 on the host's view and on the live engines.
func limitsHold(b *bench, limits policy.Limits) {
	b.Helper()
	count, npu := map[string]int{}, 0
	for _, m := range b.host.View().Models {
		count[m.Type]++
		if m.ID == "n" || m.ID == "o" {
			npu++
		}
	}
	for typ, n := range count {
		if limit := limits.Of(policy.Type(typ)); limit >= 0 && n > limit {
			b.Fatalf("%d models of type %s, limit %d", n, typ, limit)
		}
	}
	if npu > 1 {
		b.Fatal("two models on the NPU")
	}
	b.engines.mu.Lock()
	defer b.engines.mu.Unlock()
	if b.engines.live["n"] != nil && b.engines.live["o"] != nil {
		b.Fatal("two engines on the NPU")
	}
}

// agree reports whether Redis has exactly the host's models, loaded, with their processes.
func agree(b *bench) bool {
	s, err := b.store.Snapshot(b.Context())
	if err != nil || s.Hosts["h"] == nil {
		return false
	}
	h, v := s.Hosts["h"], b.host.View()
	if len(h.Models) != len(v.Models) || len(h.Queue) > 0 {
		return false
	}
	for _, m := range v.Models {
		if r := h.Models[m.ID]; r == nil || r.State != m.State || m.State != "loaded" || r.PID != m.PID || b.engines.of(m.ID) == nil {
			return false
		}
	}
	return true
}
