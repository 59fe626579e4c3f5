package soak

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"reveille/testenv"
	"reveille/testenv/kit"
)

// aftermath is how long requests may still be refused for a kill once another process is in the place: Redis' state is
// rebuilt, a model that failed to load has its backoff.
const aftermath = 20 * time.Second

// death is one process that was killed.
type death struct {
	what    string // engine, gateway, runner or redis
	at      time.Time
	over    time.Time        // when another process was in its place, zero before
	gateway *testenv.Program // of a gateway
}

// died reports whether a gateway was killed. p.mu is held.
func (p *pool) died(gateway *testenv.Program) bool {
	return slices.ContainsFunc(p.kills, func(d death) bool { return d.gateway == gateway })
}

// explained reports whether such a process was killed during a request that ends now, or so shortly before it that it may
// still be refused. p.mu is held.
func (p *pool) explained(began time.Time, whats ...string) bool {
	return slices.ContainsFunc(p.kills, func(d death) bool {
		return slices.Contains(whats, d.what) && (d.over.IsZero() || d.over.After(began.Add(-aftermath)))
	})
}

// lastKill says for a failure what was killed last before now. p.mu is held.
func (p *pool) lastKill() string {
	if len(p.kills) == 0 {
		return "nothing was killed yet"
	}
	last := p.kills[len(p.kills)-1]
	return fmt.Sprintf("the %s was killed %v ago", last.what, time.Since(last.at).Round(time.Millisecond))
}

// killed counts the kills.
func (p *pool) killed() map[string]int {
	n := map[string]int{}
	for _, d := range p.kills {
		n[d.what]++
	}
	return n
}

// torment kills one process after the other until ctx ends, and starts a new one in its place.
func (p *pool) torment(ctx context.Context) {
	began := time.Now()
	look := time.NewTicker(5 * time.Second)
	defer look.Stop()
	order := []func(){p.killEngine, p.killGateway, p.killRunner, p.killRedis}
	next := 0
	for due := began.Add(killEvery); ; {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
			p.see(time.Since(began))
		}
		if time.Now().Before(due) {
			continue
		}
		due = due.Add(killEvery)
		order[next%len(order)]()
		next++
	}
}

// mourn notes a kill. It is called before the kill, so that no request ends of it unexplained.
func (p *pool) mourn(d death) {
	d.at = time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kills = append(p.kills, d)
}

// replaced notes that another process is in the place of the one that was killed last.
func (p *pool) replaced() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kills[len(p.kills)-1].over = time.Now()
}

// end kills a program, which must have lived until then.
func (p *pool) end(what string, victim *testenv.Program) {
	p.t.Helper()
	victim.Kill()
	if status, ok := victim.State().Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
		p.t.Errorf("the %s ended by itself before it was killed: %v", what, victim.State())
	}
}

func (p *pool) killGateway() {
	p.t.Helper()
	p.victims.Lock()
	gateway := p.victims.gateway
	p.victims.Unlock()
	p.mourn(death{what: "gateway", gateway: gateway})
	p.end("gateway", gateway)
	fresh := p.startGateway()
	p.victims.Lock()
	p.victims.gateway = fresh
	p.victims.Unlock()
	p.replaced()
}

func (p *pool) killRunner() {
	p.t.Helper()
	p.victims.Lock()
	runner := p.victims.runner
	p.victims.Unlock()
	orphans := engines(runner.PID())
	p.crashed += crashes(runner)
	p.mourn(death{what: "runner"})
	p.end("runner", runner)
	for _, e := range orphans {
		kit.Becomes(p.t, "alive after its runner: "+e.String(), false, e.Alive)
	}
	fresh := p.startRunner()
	p.victims.Lock()
	p.victims.runner = fresh
	p.victims.Unlock()
	p.replaced()
}

func (p *pool) killRedis() {
	p.t.Helper()
	if err := p.rdb.Ping(p.t.Context()).Err(); err != nil {
		p.t.Errorf("redis before it was killed: %v", err)
	}
	p.mourn(death{what: "redis"})
	p.redis.Kill()
	time.Sleep(2 * time.Second)
	p.redis.Restart()
	p.replaced()
}

// killEngine kills the engine of a loaded model. It counts when the runner says that the engine died: one that was being
// stopped at that moment is not taken for killed, and another is.
func (p *pool) killEngine() {
	p.t.Helper()
	runner := p.victims.runner // nobody replaces it meanwhile
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		victim, ok := p.loadedEngine(runner.PID())
		if !ok {
			continue
		}
		before := crashes(runner)
		p.mourn(death{what: "engine"})
		_ = syscall.Kill(victim.PID, syscall.SIGKILL)
		kit.Becomes(p.t, "alive after it was killed: "+victim.String(), false, victim.Alive)
		for heard := time.Now().Add(5 * time.Second); time.Now().Before(heard); time.Sleep(50 * time.Millisecond) {
			if crashes(runner) > before {
				p.replaced()
				return
			}
		}
		p.mu.Lock()
		p.kills = p.kills[:len(p.kills)-1] // it was being stopped anyway
		p.mu.Unlock()
	}
	p.t.Errorf("no engine of a loaded model was there to be killed for %v", patience)
}

// crashes is how many engines a runner says have died without being stopped.
func crashes(runner *testenv.Program) int { return strings.Count(runner.Log(), `msg="engine died"`) }

// loadedEngine is the process of a loaded model.
func (p *pool) loadedEngine(runner int) (testenv.Process, bool) {
	ctx := p.t.Context()
	all := engines(runner)
	for _, model := range p.rdb.SMembers(ctx, "rv:{main}:models:h").Val() {
		record := p.rdb.HGetAll(ctx, "rv:{main}:model:h:"+model).Val()
		pid, _ := strconv.Atoi(record["pid"])
		if i := slices.IndexFunc(all, func(e testenv.Process) bool { return e.PID == pid }); i >= 0 && record["state"] == "loaded" {
			return all[i], true
		}
	}
	return testenv.Process{}, false
}
