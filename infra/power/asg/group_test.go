package asg_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/autoscaling"

	"reveille/infra/awsquery"
	"reveille/infra/catalog"
	"reveille/infra/power"
	"reveille/infra/power/asg"
	"reveille/infra/state"
	"reveille/testenv"
	"reveille/testenv/kit"
	"reveille/testenv/waketest"
)

// fleet is a group of hosts, with its pool. Its machines claim slots when the test says so.
type fleet struct {
	*region
	power.Driver
	store *state.Store
	hosts []catalog.Host
	seen  map[string]bool // machines that have booted: the emulator's own count loses those that were ended

	mu    sync.Mutex
	wakes map[string]string // lease of each slot's wake, by its host
}

func (r *region) fleet(name string, most int, types ...string) *fleet {
	r.t.Helper()
	redis := testenv.MiniRedis(r.t)
	store, err := state.Open(state.Options{URL: "redis://" + redis.Addr(), Timeout: 10 * time.Second})
	if err == nil {
		err = redis.Set("rv:{main}:epoch", "1") // a pool that has been there for long
	}
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = store.Close() })
	host := r.group(name, int32(most), types...)
	f := &fleet{region: r, store: store, seen: map[string]bool{}, wakes: map[string]string{}, Driver: asg.New(asg.Config{
		Poll: 10 * time.Millisecond,
		Client: func(context.Context, string) (*awsquery.Client, error) {
			return awsquery.AutoScaling(r.cloud.Config()), nil
		},
		EC2: func(context.Context, string) (*awsquery.Client, error) { return awsquery.EC2(r.cloud.Config()), nil },
	}).WithPool(store)}
	for n := range most {
		h := host
		h.Of, h.Slot, h.Name, h.Max = name, n+1, catalog.SlotName(name, n+1), most
		f.hosts = append(f.hosts, h)
	}
	return f
}

// Wake wakes a slot as a gateway does, which first says so in the pool.
func (f *fleet) Wake(ctx context.Context, host catalog.Host) error {
	f.mu.Lock()
	token, err := f.store.ForceWake(context.WithoutCancel(ctx), "gateway", host.Name)
	if token != "" {
		f.wakes[host.Name] = token
	}
	f.mu.Unlock()
	if err != nil {
		return err
	}
	return f.Driver.Wake(ctx, host)
}

// Sleep puts a slot to sleep as a sweep does, for which its wakes are over.
func (f *fleet) Sleep(ctx context.Context, host catalog.Host) error {
	for {
		f.mu.Lock()
		err := f.store.ReleaseWake(context.WithoutCancel(ctx), host.Name, f.wakes[host.Name])
		f.mu.Unlock()
		if err != nil && !errors.Is(err, state.ErrNotOwner) {
			return err
		}
		if err := f.Driver.Sleep(ctx, host); !errors.Is(err, power.ErrLeaseLost) { // else another wake has begun
			return err
		}
	}
}

// machines are those of the group that are not about to go.
func (f *fleet) machines() (ids []string) {
	f.t.Helper()
	for _, i := range f.look(f.hosts[0].Group).Instances {
		ids = append(ids, *i.InstanceId)
	}
	return ids
}

// boot has machines claim slots.
func (f *fleet) boot(ids ...string) {
	f.t.Helper()
	var names []string
	for _, h := range f.hosts {
		names = append(names, h.Name)
	}
	for _, id := range ids {
		f.seen[id] = true
		if _, err := f.store.ClaimSlot(f.t.Context(), id, names); err != nil {
			f.t.Fatal(err)
		}
	}
}

// slots are the machines of the slots, in order.
func (f *fleet) slots() []string {
	f.t.Helper()
	snap, err := f.store.Snapshot(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	var out []string
	for _, h := range f.hosts {
		if rec := snap.Hosts[h.Name]; rec != nil {
			out = append(out, rec.Machine())
		} else {
			out = append(out, "")
		}
	}
	return out
}

// The slot of a group between others meets the contract of every driver, and never touches their machines.
func contractOfSlot(types ...string) func(*region, *testing.T) {
	return func(r *region, t *testing.T) {
		waketest.Run(t, func(t *testing.T) waketest.Fixture {
			own := *r
			own.t = t
			f := own.fleet(strings.ReplaceAll(t.Name(), "/", "."), 3, types...)
			if err := f.Wake(t.Context(), f.hosts[0]); err != nil {
				t.Fatal(err)
			}
			first := f.machines()
			f.boot(first...)
			strange := f.hosts[1]
			strange.Group = "no such group"
			t.Cleanup(func() {
				if now := f.machines(); len(now) == 0 || now[0] != first[0] {
					t.Errorf("machines %v, want that of the first slot, %v, among them", now, first)
				}
			})
			return waketest.Fixture{
				Driver: f, Host: f.hosts[1], Strange: &strange, Starts: func() int { return len(f.seen) - 1 },
				Play: func(p power.Power) {
					if p == power.On {
						f.boot(f.machines()...)
					}
				},
			}
		})
	}
}

// A group grows by the slots that are woken and shrinks by those that sleep, machine by machine.
func (r *region) groupOfFour(t *testing.T) {
	ctx := t.Context()
	f := r.fleet("four", 4)
	h := f.hosts
	expect := func(what string, err, want error) {
		t.Helper()
		if !errors.Is(err, want) || (err == nil) != (want == nil) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	size := func(want int) {
		t.Helper()
		if g := f.look("four"); int(*g.DesiredCapacity) != want {
			t.Errorf("the group's size is %d with %d machines, want %d", *g.DesiredCapacity, len(g.Instances), want)
		}
	}

	// Two gateways wake two slots at once.
	errs := make(chan error)
	for _, host := range h[:2] {
		go func() { errs <- f.Wake(ctx, host) }()
	}
	expect("wake", <-errs, nil)
	expect("wake", <-errs, nil)
	size(2)
	f.boot(f.machines()...)
	two := f.slots()
	if two[0] == "" || two[1] == "" || two[0] == two[1] || two[2]+two[3] != "" {
		t.Fatalf("slots %v, want two machines", two)
	}

	// No zone has a machine for the third: the others stay.
	r.cloud.SoldOut(true)
	expect("wake without capacity", f.Wake(ctx, h[2]), power.ErrNoCapacity)
	size(2)
	r.cloud.SoldOut(false)
	kit.Eventually(t, "failures are an earlier wake's", func() bool {
		if err := f.store.FailWake(ctx, h[2].Name, f.wakes[h[2].Name], "no_capacity", "none"); err != nil {
			t.Fatal(err)
		}
		err := f.Wake(ctx, h[2])
		if err != nil && !errors.Is(err, power.ErrNoCapacity) {
			t.Fatal(err)
		}
		return err == nil
	})

	// The third one's machine never registers, and a fourth is woken: that gets a machine of its own, and the sleep of
	// the third ends its machine and no other.
	size(3)
	three := f.machines()
	if err := f.store.EndOverdueWake(ctx, h[2].Name, f.wakes[h[2].Name], "no_capacity", "it did not register"); err != nil {
		t.Fatal(err)
	}
	time.Sleep(1100 * time.Millisecond) // EC2 tells whole seconds
	expect("wake of the fourth", f.Wake(ctx, h[3]), nil)
	size(4)
	want := slices.DeleteFunc(f.machines(), func(id string) bool { return slices.Contains(three, id) && !slices.Contains(two, id) })
	expect("sleep of a slot without a machine", f.Sleep(ctx, h[2]), nil)
	size(3)
	if left := f.machines(); !slices.Equal(slices.Sorted(slices.Values(left)), slices.Sorted(slices.Values(want))) {
		t.Errorf("of %v the machines %v are left, want %v", three, left, want)
	}
	is, err := f.State(ctx, h[2])
	if expect("state", err, nil); is != power.Off {
		t.Errorf("slot 3 is %s", is)
	}
	f.boot(f.machines()...)
	if got := f.slots(); got[3] == "" || got[2] != "" {
		t.Errorf("slots %v, want the new machine to be the fourth", got)
	}

	// The first slot, which a Redis that was restored says is waking, keeps its machine, whatever a sweep had begun.
	expect("sleep of a slot that is waking", f.Driver.Sleep(ctx, h[0]), power.ErrLeaseLost)
	size(3)

	// The first slot sleeps: its machine ends.
	expect("sleep", f.Sleep(ctx, h[0]), nil)
	expect("sleep again", f.Sleep(ctx, h[0]), nil)
	size(2)
	if left := f.machines(); !slices.Contains(left, two[1]) || slices.Contains(left, two[0]) {
		t.Errorf("%v are left, want %s and not %s", left, two[1], two[0])
	}

	// The group's own maximum is the limit.
	two32 := int32(2)
	if _, err := r.groups.UpdateAutoScalingGroup(ctx, &autoscaling.UpdateAutoScalingGroupInput{AutoScalingGroupName: &h[0].Group, MaxSize: &two32}); err != nil {
		t.Fatal(err)
	}
	expect("wake beyond the group's maximum", f.Wake(ctx, h[2]), power.ErrNoCapacity)
}
