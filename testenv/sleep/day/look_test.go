package day

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"reveille/infra/policy"
	"reveille/infra/state"
)

// lookEvery is the time between two looks at the whole pool.
const lookEvery = 5 * time.Minute

// check compares what Redis holds with the world after an event: the hosts that its calls changed, and from time to time the
// whole pool.
func (s *scripts) check() {
	if s.w.now.Sub(s.looked) >= lookEvery {
		s.looked = s.w.now
		s.lookAtAll()
	} else {
		slices.SortFunc(s.changed, func(a, b *host) int { return strings.Compare(a.Name, b.Name) })
		for _, h := range slices.Compact(s.changed) {
			s.same(h, s.look(h))
		}
	}
	s.changed = s.changed[:0]
}

func (s *scripts) same(h *host, got string) {
	s.t.Helper()
	if want := picture(h); got != want {
		s.t.Fatalf("%s: Redis holds %s as %q, want %q", s.w.now.Format("15:04:05.000"), h.Name, got, want)
	}
}

// look reads one host's keys, as redis-cli would.
func (s *scripts) look(h *host) string {
	ctx, pipe := s.t.Context(), s.rdb.Pipeline()
	st := pipe.HGet(ctx, prefix+"host:"+h.Name, "state")
	members := pipe.SMembers(ctx, prefix+"models:"+h.Name)
	queue := pipe.LRange(ctx, prefix+"queue:"+h.Name, 0, -1)
	holder := pipe.Get(ctx, prefix+"npu:"+h.Name)
	states := map[string]*redis.StringCmd{}
	for _, r := range h.Residents {
		states[r.ID] = pipe.HGet(ctx, prefix+"model:"+h.Name+":"+r.ID, "state")
	}
	if _, err := pipe.Exec(ctx); !errors.Is(err, redis.Nil) { // of a key that is not there
		s.must("look", err)
	}
	p := pictured{state: policy.HostState(st.Val()), npu: holder.Val()}
	for _, id := range members.Val() {
		known := "unknown"
		if c := states[id]; c != nil {
			known = c.Val()
		}
		p.residents = append(p.residents, id+"="+known)
	}
	for _, id := range queue.Val() {
		p.queue = append(p.queue, s.model(id))
	}
	return p.String()
}

// model is that of a ticket which has not ended.
func (s *scripts) model(ticket string) string {
	for l, id := range s.tickets {
		if id == ticket {
			return s.w.catalog[l.model].ID
		}
	}
	return "ticket " + ticket
}

// lookAtAll reads the pool as gateways and the warmer do.
func (s *scripts) lookAtAll() {
	for _, h := range s.w.hosts {
		s.alive(h)
	}
	snap, err := s.store.Snapshot(s.t.Context())
	s.must("snapshot", err)
	for _, h := range s.w.hosts {
		p := pictured{}
		if r := snap.Hosts[h.Name]; r != nil {
			p = recorded(r)
			p.npu = npu(h) // no part of a snapshot
		}
		s.same(h, p.String())
	}
}

// pictured is a host as it is compared.
type pictured struct {
	state     policy.HostState
	residents []string
	queue     []string // models of tickets that have not begun, in order
	npu       string
}

func (p pictured) String() string {
	slices.Sort(p.residents)
	if p.state == "" {
		p.state = policy.Asleep // nobody has written it yet
	}
	return fmt.Sprintf("%s holds [%s] queues [%s] npu %q", p.state, strings.Join(p.residents, " "), strings.Join(p.queue, " "), p.npu)
}

func picture(h *host) string {
	p := pictured{state: h.State, npu: npu(h)}
	for _, r := range h.Residents {
		p.residents = append(p.residents, r.ID+"="+string(r.State))
	}
	for _, t := range h.Queue {
		p.queue = append(p.queue, t.Model.ID)
	}
	return p.String()
}

func recorded(r *state.HostRecord) pictured {
	p := pictured{state: r.State}
	for id, m := range r.Models {
		p.residents = append(p.residents, id+"="+string(m.State))
	}
	for _, t := range r.Queue {
		if t.State == "queued" {
			p.queue = append(p.queue, t.Model)
		}
	}
	return p
}
