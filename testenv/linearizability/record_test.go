package linearizability

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/redis/go-redis/v9"

	"reveille/infra/state"
)

// redisClock is the moment of every call of a history on Redis' own clock. No lease ends in one.
const redisClock = 0

// record is the history of one pool. It is safe for concurrent use.
type record struct {
	began time.Time

	mu    sync.Mutex
	calls []porcupine.Operation
	nth   uint64
	lost  int
	seen  map[string]int // calls by operation and verdict
}

func newRecord(began time.Time) *record { return &record{began: began, seen: map[string]int{}} }

// since is the monotonic time of the history.
func (r *record) since() int64 { return time.Since(r.began).Nanoseconds() }

// next numbers a call.
func (r *record) next() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.nth++
	return r.nth
}

// add notes a call. One whose reply was lost ends with the history.
func (r *record) add(client int, in input, out output, call, back int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	kind, _, _ := strings.Cut(in.String(), "{")
	if out.lost {
		r.lost++
		r.seen[kind+" lost"]++
		if _, reads := in.event.(snapshot); reads {
			return // it had no effect, and nobody heard it
		}
		back = endless
	} else {
		r.seen[kind+" "+out.verdict]++
	}
	r.calls = append(r.calls, porcupine.Operation{ClientId: client, Input: in, Output: out, Call: call, Return: back})
}

// endless is after the end of every history.
const endless = int64(time.Hour)

// count is the number of calls so far.
func (r *record) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.calls)
}

// all are the calls in the order of their beginning.
func (r *record) all() []porcupine.Operation {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.SortedFunc(slices.Values(r.calls), func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
}

// clock is the scripts' clock of a history, which goes on by itself and jumps on demand. nil is Redis' own.
type clock struct {
	mu   sync.Mutex
	from time.Time
	ms   int64
}

func newClock() *clock { return &clock{from: time.Now(), ms: 1_700_000_000_000} }

func (c *clock) now() int64 {
	if c == nil {
		return redisClock
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ms + time.Since(c.from).Milliseconds()
}

func (c *clock) jump(d time.Duration) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ms += d.Milliseconds()
}

// client is one gateway, runner or sweep: a store of its own, one call at a time.
type client struct {
	*rand.Rand
	t      testing.TB
	number int
	name   string
	store  *state.Store
	record *record
	clock  *clock
	now    int64 // of the call that is being made
}

// do makes a call and notes it. ok is false when its caller knows nothing of it.
func (c *client) do(op operation) (got answer, ok bool) {
	c.now = c.clock.now()
	in := input{op, moment{c.now, c.record.next()}}
	call := c.record.since()
	got, err := op.call(c.t.Context(), c.store)
	back := c.record.since()
	switch {
	case err == nil:
		c.record.add(c.number, in, output{answer: got}, call, back)
		return got, true
	case !errors.Is(err, state.ErrUnavailable):
		c.t.Errorf("%s: %v", in, err)
	case !refused(err):
		c.record.add(c.number, in, output{lost: true}, call, back)
	}
	pause(c.t.Context(), 2*time.Millisecond)
	return answer{}, false
}

// refused tells a call that had no effect for certain: Redis said so, it was not sent, or nobody could be reached.
func refused(err error) bool {
	var said redis.Error
	var network *net.OpError
	return error(state.ErrUnavailable) == err || errors.As(err, &said) || errors.As(err, &network) && network.Op == "dial"
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// verdict turns the store's error into the word that the script said. An error stays for a call of which nothing is
// known, and for one that the store could not understand.
func verdict(err error) (answer, error) {
	for word, is := range map[string]error{
		"fenced": state.ErrFenced, "unknown": state.ErrUnknownHost, "stale": state.ErrStale, "gone": state.ErrGone,
		"dropped": state.ErrDropped, "busy": state.ErrBusy, "lost": state.ErrNotOwner, "awake": state.ErrAwake, "wanted": state.ErrWanted,
		"stopping": state.ErrStopping,
	} {
		if errors.Is(err, is) {
			return answer{verdict: word}, nil
		}
	}
	return answer{verdict: "ok"}, err
}
