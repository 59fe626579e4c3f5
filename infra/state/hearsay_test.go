package state_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"reveille/infra/state"
	"reveille/testenv"
)

// TestMirrorByHearsay plays random histories to a mirror whose events are lost, duplicated and reordered. Whatever the
// mirror receives, a host that it has with Redis' revision equals the one in Redis, and its hosts only go forward.
// Every change is published, and a look finds changes whose events were lost.
func TestMirrorByHearsay(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint("miniredis/", seed), func(t *testing.T) { hearsay(newBench(t, testenv.MiniRedis(t).Addr()), seed, 150) })
	}
	t.Run("redis", func(t *testing.T) { hearsay(newBench(t, testenv.Redis(t)), 9, 300) })
}

func hearsay(b *bench, seed uint64, steps int) {
	h := newHistory(b, seed)
	m := state.NewMirror(h.s, nil)
	events := make(chan state.Event, 1000)
	live, cancel := context.WithCancel(ctx)
	var listening sync.WaitGroup
	defer listening.Wait()
	defer cancel()
	listening.Go(func() { b.patient().Listen(live, "", func(e state.Event) { events <- e }) })
	m.Hear(<-events)
	m.CatchUp(ctx)

	var late []state.Event
	carried, read := 0, 0
	for step := range steps {
		before := m.Snapshot()
		h.step()
		must(h.t, h.rdb.Publish(ctx, prefix+"events", `{"kind":"mark","host":"none"}`).Err())
		for e := range events {
			if e.Kind == "mark" {
				break
			}
			switch {
			case len(e.Carries) > 0:
				carried++
			case e.Host != "" && !e.More:
				read++
			}
			switch n := h.rng.IntN(100); {
			case n < 15: // lost
				continue
			case n < 35:
				late = append(late, e)
				continue
			case n < 45:
				late = append(late, e)
			}
			m.Hear(e)
		}
		for len(late) > 0 && h.chance(50) {
			i := h.rng.IntN(len(late))
			m.Hear(late[i])
			late = slices.Delete(late, i, i+1)
		}
		if h.chance(80) {
			m.CatchUp(ctx)
		}
		whole := h.chance(5)
		if whole || step == steps-1 {
			late = nil
			m.Look(ctx)
			m.CatchUp(ctx)
		}
		compare(h, before, m.Snapshot(), step == steps-1)
	}
	if carried < 10*read {
		h.t.Errorf("%d events carried their host, %d did not", carried, read)
	}
}

// compare checks a mirror. If it has looked, it must have everything that Redis has.
func compare(h *history, before, mirror *state.Snapshot, looked bool) {
	h.t.Helper()
	now, err := h.s.Snapshot(ctx)
	must(h.t, err)
	for name, host := range mirror.Hosts {
		is := now.Hosts[name]
		if is != nil && is.OwnRevision() == host.OwnRevision() && mirror.Epoch == now.Epoch && known(host) != known(is) {
			h.fail("under revision %d the mirror has\n%s\nand Redis\n%s", host.OwnRevision(), known(host), known(is))
		}
		if was := before.Hosts[name]; was != nil && before.Epoch == mirror.Epoch && host.OwnRevision() < was.OwnRevision() {
			h.fail("the mirror's %s went back from revision %d to %d", name, was.OwnRevision(), host.OwnRevision())
		}
		if looked && is == nil {
			h.fail("%s is gone", name)
		}
	}
	if !looked {
		return
	}
	for name, is := range now.Hosts {
		if host := mirror.Hosts[name]; host == nil || known(host) != known(is) {
			h.fail("after a look %s is not as Redis has it", name)
		}
	}
}

// known returns what decisions about a host depend on.
func known(h *state.HostRecord) string {
	var out strings.Builder
	fmt.Fprintln(&out, h.Fields["state"], h.Addr, h.Generation, h.Loading)
	for _, id := range slices.Sorted(maps.Keys(h.Models)) {
		fmt.Fprintln(&out, id, h.Models[id].State, h.Models[id].Type)
	}
	for _, ticket := range h.Queue {
		fmt.Fprintln(&out, ticket.ID, ticket.Kind, ticket.Model, ticket.State)
	}
	return out.String()
}
