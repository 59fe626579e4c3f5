package linearizability

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"reveille/infra/state"
	"reveille/testenv"
	"reveille/testenv/kit"
)

// TestFailover (faults 3 and 6): a replica that lags is promoted while clients are at work. They come to it by
// themselves: from a primary that was demoted and refuses writes, or from one that is gone.
func TestFailover(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*pair){"demoted": (*pair).demote, "killed": (*pair).kill} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			collect(t, func(t *testing.T, round, length int) *history {
				p := newPair(t)
				h := newHistory(t, round, nil, state.Options{URL: "redis://" + p.first.Addr, Dial: p.dial})
				part := length / 6 // shorter than the others, since no lease may end in it
				h.reach(part)
				p.synced = h.while(p.await)
				h.reach(part + part/2)
				p.link.Pause()
				h.reach(2 * part)
				h.limit.Store(int64(3 * part))
				h.failover(p, change)
				h.reach(4 * part)
				return h
			}, "failover behind", "acquire created", "finish ok", "put fenced")
		})
	}
}

// pair is a primary and its replica.
type pair struct {
	t             *testing.T
	first, second *testenv.RedisServer
	one, two      *redis.Client
	link          *testenv.FaultProxy // over which the second follows the first
	synced        [2]int64            // when it was found to be in step

	gate    sync.RWMutex // held over a failover: nobody connects
	primary string       // where clients find it
}

// newPair returns when the replica is in step.
func newPair(t *testing.T) *pair {
	t.Helper()
	p := &pair{t: t, first: testenv.StartRedis(t, "--repl-diskless-sync-delay", "0")}
	p.link = testenv.NewFlaky(t, p.first.Addr)
	p.second = testenv.StartRedis(t, "--replicaof", strings.Replace(p.link.Addr, ":", " ", 1))
	p.one, p.two = redisAt(t, p.first.Addr), redisAt(t, p.second.Addr)
	kit.Becomes(t, "the replica is in step", true, func() bool {
		return strings.Contains(p.two.Info(t.Context(), "replication").Val(), "master_link_status:up")
	})
	p.primary = p.first.Addr
	return p
}

func redisAt(t testing.TB, addr string) *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1, ReadTimeout: kit.Patience})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// dial connects a client to the primary, in a later millisecond than the failover's last: fences rise by the clocks of
// the two, which tell milliseconds, and no failover is done within one.
func (p *pair) dial(ctx context.Context) (net.Conn, error) {
	p.gate.RLock()
	defer p.gate.RUnlock()
	for ms := time.Now().UnixMilli(); time.Now().UnixMilli() <= ms; {
		time.Sleep(100 * time.Microsecond)
	}
	var d net.Dialer
	return d.DialContext(ctx, "tcp", p.primary)
}

// demote makes the second the primary and the first its replica. Clients stay connected to the first, which refuses
// their next write.
func (p *pair) demote() {
	p.t.Helper()
	p.promote()
	host, port, _ := net.SplitHostPort(p.second.Addr)
	if err := p.one.ReplicaOf(p.t.Context(), host, port).Err(); err != nil {
		p.t.Fatal(err)
	}
}

// kill ends the first with all its connections, and makes the second the primary.
func (p *pair) kill() {
	p.t.Helper()
	p.first.Kill()
	p.promote()
}

func (p *pair) promote() {
	p.t.Helper()
	if err := p.two.ReplicaOf(p.t.Context(), "NO", "ONE").Err(); err != nil {
		p.t.Fatal(err)
	}
}

// await returns when the replica holds all that the primary held when it began.
func (p *pair) await() {
	p.t.Helper()
	conn := p.one.Conn()
	defer conn.Close()
	if err := conn.Set(p.t.Context(), "mark", "1", 0).Err(); err != nil {
		p.t.Fatal(err)
	}
	if n, err := conn.Wait(p.t.Context(), 1, kit.Patience/2).Result(); n != 1 || err != nil {
		p.t.Fatalf("%d replicas are in step, %v", n, err)
	}
}

// failover changes the primary and makes it part of the history, and then what the new one holds before anybody else
// reaches it. Clients are at work on the old one until it refuses them.
func (h *history) failover(p *pair, change func(*pair)) {
	h.t.Helper()
	p.gate.Lock()
	defer p.gate.Unlock()
	had := h.revisions(p.one)
	changed := h.while(func() { change(p) })
	for i, has := range h.revisions(p.two) {
		verdict := map[bool]string{true: "in step", false: "behind"}[has == had[i]]
		h.records[i].note(inStep{has}, "", p.synced)
		h.records[i].note(failover{}, verdict, changed)
	}
	h.look(p.second.Addr)
	p.primary = p.second.Addr
}

// while returns when do began and ended.
func (h *history) while(do func()) (span [2]int64) {
	began := h.records[0].since()
	do()
	return [2]int64{began, h.records[0].since()}
}

// note makes what was done to Redis part of the history.
func (r *record) note(event any, verdict string, span [2]int64) {
	r.add(len(clients), input{event, moment{redisClock, r.next()}}, output{answer: answer{verdict: verdict}}, span[0], span[1])
}

// look makes a snapshot of every pool on a server part of the pool's history.
func (h *history) look(addr string) {
	h.t.Helper()
	for i, r := range h.records {
		c := &client{t: h.t, number: len(clients), record: r}
		c.store = h.open(state.Options{URL: "redis://" + addr, Pool: h.names[i], Timeout: timeout}, c)
		c.do(snapshot{})
	}
}

// revisions are the pools' revisions as a server holds them.
func (h *history) revisions(server *redis.Client) (all []uint64) {
	h.t.Helper()
	for _, name := range h.names {
		text, err := server.Get(h.t.Context(), fmt.Sprintf("rv:{%s}:rev", name)).Result()
		if err != nil && err != redis.Nil {
			h.t.Fatal(err)
		}
		all = append(all, number(text))
	}
	return all
}
