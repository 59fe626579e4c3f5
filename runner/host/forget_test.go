package host_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"reveille/infra/policy"
	"reveille/infra/rpc"
	"reveille/runner/host"
)

// A copy whose conversations are forgotten takes no new request, not even one that it was loaded for, lets its open
// ones finish while the next copy serves, and is unloaded. Other models and types stay. The host learns of it from the
// pool's state alone.
func TestForgettingUnloadsTheModel(t *testing.T) {
	var mu sync.Mutex
	var forgotten []string
	b := start(t, func(c *host.Config) {
		c.Limits = policy.Uniform(3)
		c.Forget = func(model string, _ uint64) {
			mu.Lock()
			defer mu.Unlock()
			forgotten = append(forgotten, model)
		}
	})
	b.engines.allowCopies = true
	b.ready(b.load("a"))
	b.ready(b.load("b"))
	old := b.host.EngineOf("a")
	leave := b.busy("a")
	at, err := b.store.ForgetConversations(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	b.until("a is forgotten", func() bool {
		leave, refused := b.enter("a", "")
		if refused == "" {
			leave()
		}
		return refused == rpc.RefusedNotLoaded
	})
	if got := b.host.ForgetConversations("a", at); got.Copies != 1 || got.Open != 1 {
		t.Errorf("it says %+v", got)
	}
	ticket := b.load("a")
	b.ready(ticket)
	if b.host.EngineOf("a") == old {
		t.Error("the next request got the old copy")
	}
	select {
	case <-old.Done():
		t.Error("the copy went with an open request")
	default:
	}
	leave()
	b.until("the old copy is gone", func() bool { return len(b.host.View().Models) == 2 })
	b.holds("a", "b")

	idle := b.host.EngineOf("a")
	if got := b.host.ForgetConversations("a", at+1); got.Copies != 1 || got.Open != 0 { // it is reserved for ticket
		t.Errorf("an idle one says %+v", got)
	}
	if _, refused := b.enter("a", ticket); refused != rpc.RefusedNotLoaded {
		t.Errorf("the request that it was loaded for: %q", refused)
	}
	<-idle.Done()
	b.host.ForgetConversations("", at+2)
	b.until("all are gone", func() bool { return len(b.host.View().Models) == 0 })
	mu.Lock()
	defer mu.Unlock()
	if !slices.Contains(forgotten, "a") || !slices.Contains(forgotten, "") {
		t.Errorf("forgotten %q", forgotten)
	}
}

// A copy that is being loaded may be given conversations that are forgotten meanwhile: it is loaded again.
func TestForgettingReloadsALoadingModel(t *testing.T) {
	b := start(t)
	gate := make(chan struct{})
	b.engines.mu.Lock()
	b.engines.gates["a"] = gate
	b.engines.mu.Unlock()
	ticket := b.load("a")
	b.until("a loads", func() bool { return b.engines.starts("a") == 1 })
	if got := b.host.ForgetConversations("a", uint64(time.Now().UnixMicro())); got.Copies != 1 {
		t.Errorf("it says %+v", got)
	}
	close(gate)
	b.ready(ticket)
	if _, refused := b.enter("a", ticket); refused != rpc.RefusedNotLoaded {
		t.Errorf("its waiter: %q", refused)
	}
	b.until("it is gone", func() bool { return len(b.host.View().Models) == 0 })
	b.ready(b.load("a"))
	b.busy("a")()
}
