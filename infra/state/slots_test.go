package state_test

import (
	"errors"
	"testing"
	"time"

	"reveille/infra/state"
)

// A machine has one slot and a slot one machine, from its claim until it is turned off or known to be gone.
func TestSlots(t *testing.T) {
	onBoth(t, func(b *bench) {
		t, s := b.t, b.store()
		slots := []string{"gpu-1", "gpu-2", "gpu-3"}
		claims := func(machine, want string) {
			t.Helper()
			host, err := s.ClaimSlot(ctx, machine, slots)
			if want == "" && errors.Is(err, state.ErrNoSlot) {
				return
			}
			must(t, err)
			equal(t, "slot of "+machine, host, want)
		}
		registers := func(host, machine, boot string, want error) {
			t.Helper()
			_, _, err := s.Register(ctx, state.HostInfo{Name: host, Machine: machine, Boot: boot, Addr: machine + ":1"})
			if !errors.Is(err, want) {
				t.Fatalf("%s registers as %s: %v, want %v", machine, host, err, want)
			}
		}
		wakes := func(host string) {
			t.Helper()
			if a := acquire(t, s, want(t, s, "gw", "model-of-"+host, host)); a.WakeToken == "" {
				t.Fatalf("%s is not to be woken: %+v", host, a)
			}
		}
		b.settled()
		wakes("gpu-2")
		claims("i-a", "gpu-2") // the one that is wanted
		claims("i-a", "gpu-2")
		claims("i-b", "gpu-1") // the first that is free
		wakes("gpu-3")
		claims("i-c", "gpu-3")
		claims("i-d", "") // all have just been claimed
		registers("gpu-2", "i-a", "1", nil)
		equal(t, "machine of gpu-2", b.field("host:gpu-2", "machine"), "i-a")
		claims("i-a", "gpu-2")
		registers("gpu-2", "i-b", "2", state.ErrFenced)

		// gpu-1 is silent longest, and gpu-2 serves. gpu-1's machine is back too late.
		b.after(time.Minute)
		must(t, s.ReleaseSlot(ctx, "gpu-3", "i-c"))
		claims("i-c", "gpu-3")
		b.after(90 * time.Second)
		_, _, err := s.Beat(ctx, "gpu-2", uint64(state.ParseNumber(b.field("host:gpu-2", "generation"))), false, nil)
		must(t, err)
		claims("i-d", "gpu-1")
		registers("gpu-1", "i-b", "2", state.ErrFenced)
		registers("gpu-1", "i-d", "3", nil)
		claims("i-b", "")

		// A slot is free again once its machine is off, or gone.
		if err := s.ReleaseSlot(ctx, "gpu-1", "i-b"); !errors.Is(err, state.ErrGone) {
			t.Fatal("another machine's claim was released:", err)
		}
		must(t, s.ReleaseSlot(ctx, "gpu-3", "i-c"))
		claims("i-b", "gpu-3")
	})
}

// A slot keeps its machine while that is being turned off, and then has none.
func TestSlotIsFreeAfterItsStop(t *testing.T) {
	onBoth(t, func(b *bench) {
		t, s := b.t, b.store()
		b.settled()
		host, err := s.ClaimSlot(ctx, "i-a", []string{"gpu-1"})
		must(t, err)
		generation, _, err := s.Register(ctx, state.HostInfo{Name: host, Machine: "i-a", Boot: "1", Addr: "a:1"})
		must(t, err)
		snap, err := s.Snapshot(ctx)
		must(t, err)
		sleep, err := s.CommitSleep(ctx, host, "sweep", snap.RevisionOf(host, ""), snap.Hosts[host].Fields["active_ms"])
		must(t, err)
		must(t, s.ConfirmSleep(ctx, host, generation, sleep, false))
		must(t, s.BeginStop(ctx, host, "sweep", sleep))
		must(t, s.ReleaseStop(ctx, host, "sweep", sleep))
		equal(t, "machine while it may still run", b.field("host:gpu-1", "machine"), "i-a")
		must(t, s.BeginStop(ctx, host, "sweep", sleep))
		must(t, s.EndStop(ctx, host, "sweep", sleep, ""))
		equal(t, "machine when it is off", b.field("host:gpu-1", "machine"), "")
	})
}

// One owner at a time changes a group, and one that died does so no longer than its lease.
func TestGroupLease(t *testing.T) {
	onBoth(t, func(b *bench) {
		t, s := b.t, b.store()
		must(t, s.LeaseGroup(ctx, "g", "a", time.Minute))
		must(t, s.LeaseGroup(ctx, "g", "a", time.Minute))
		must(t, s.LeaseGroup(ctx, "other", "b", time.Minute))
		if err := s.LeaseGroup(ctx, "g", "b", 0); !errors.Is(err, state.ErrNotOwner) {
			t.Fatal("b ends the lease of a:", err)
		}
		must(t, s.LeaseGroup(ctx, "g", "a", 0))
		must(t, s.LeaseGroup(ctx, "g", "b", time.Minute))
		b.after(time.Minute + time.Millisecond)
		must(t, s.LeaseGroup(ctx, "g", "a", time.Minute))
	})
}

// A failover that lost a machine's registration brings back the slot's machine before, which is gone. One that has taken
// the slot since is not.
func TestRestoredSlot(t *testing.T) {
	onBoth(t, func(b *bench) {
		t, s := b.t, b.store()
		b.settled()
		info := state.HostInfo{Name: "gpu-1", Machine: "i-a", Boot: "boot-a", Addr: "i-a:1"}
		_, err := s.ClaimSlot(ctx, "i-a", []string{"gpu-1"})
		must(t, err)
		info.Owned, _, err = s.Register(ctx, info)
		must(t, err)
		must(t, b.rdb.HSet(ctx, prefix+"host:gpu-1", "machine", "i-b").Err())
		if _, _, err = s.Register(ctx, info); !errors.Is(err, state.ErrFenced) {
			t.Fatal("the slot has another machine:", err)
		}
		must(t, b.rdb.HSet(ctx, prefix+"host:gpu-1", "generation", "7", "boot", "boot-b").Err())
		_, _, err = s.Register(ctx, info)
		must(t, err)
		equal(t, "machine", b.field("host:gpu-1", "machine"), "i-a")
	})
}

// After Redis lost everything, a new machine takes no slot, even one that a gateway wakes, until the machines that serve
// have had their time to register again.
func TestSlotAfterLoss(t *testing.T) {
	onBoth(t, func(b *bench) {
		t, s := b.t, b.store()
		slots := []string{"gpu-1", "gpu-2", "gpu-3"}
		claims := func(machine, want string, wrong error) {
			t.Helper()
			host, err := s.ClaimSlot(ctx, machine, slots)
			if !errors.Is(err, wrong) {
				t.Fatalf("%s claims a slot: %v, want %v", machine, err, wrong)
			}
			equal(t, "slot of "+machine, host, want)
		}
		b.settled()
		claims("i-a", "gpu-1", nil)
		info := state.HostInfo{Name: "gpu-1", Machine: "i-a", Boot: "boot-a", Addr: "i-a:1"}
		var err error
		info.Owned, _, err = s.Register(ctx, info)
		must(t, err)

		must(t, b.rdb.FlushAll(ctx).Err())
		wakes := func(host string) {
			t.Helper()
			if a := acquire(t, s, want(t, s, "gw", "model-of-"+host, host)); a.WakeToken == "" {
				t.Fatalf("%s is not to be woken: %+v", host, a)
			}
		}
		wakes("gpu-1")
		wakes("gpu-3")
		claims("i-b", "", state.ErrRecent)
		b.after(state.LostAfter - 2*time.Millisecond)
		claims("i-b", "", state.ErrRecent)
		_, _, err = s.Register(ctx, info)
		must(t, err)
		b.after(3 * time.Millisecond)
		claims("i-b", "gpu-3", nil)
		claims("i-c", "gpu-2", nil)
		claims("i-d", "", state.ErrNoSlot)
	})
}

// A new pool is LostAfter old soon after its first gateway's start, so that the first machine to be woken need not wait.
func TestSlotOfNewPool(t *testing.T) {
	onBoth(t, func(b *bench) {
		t, s := b.t, b.store()
		_, err := s.PutCatalog(ctx, "v1", []byte("{}"), map[string]string{"gpu-1": "asg"})
		must(t, err)
		b.after(state.LostAfter + time.Millisecond)
		host, err := s.ClaimSlot(ctx, "i-a", []string{"gpu-1"})
		must(t, err)
		equal(t, "slot", host, "gpu-1")
	})
}
