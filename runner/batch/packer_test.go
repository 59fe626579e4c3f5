package batch

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"reveille/infra/rpc"
)

// machine drives a packer through a random history and checks every promise of its doc comment after each step.
type machine struct {
	packer *packer
	limits Limits
	now    time.Time
	lastID uint64
	queued map[uint64][]int // tokens by request
	next   map[uint64]int   // first sequence not in a batch
	flying []*Batch
}

func (m *machine) add(t *rapid.T) {
	m.lastID++
	tokens := rapid.SliceOfN(rapid.IntRange(1, m.limits.NUBatch), 1, 40).Draw(t, "tokens")
	r := &queuedRequest{
		Priority: rapid.SampledFrom([]rpc.Priority{rpc.High, rpc.Normal, rpc.Low, rpc.Background}).Draw(t, "priority"),
		CallKey:  rapid.SampledFrom([]string{"", "", "", "x"}).Draw(t, "group"), Tokens: tokens,
	}
	m.packer.Add(m.lastID, r, m.now)
	m.queued[m.lastID] = tokens
}

func (m *machine) remove(t *rapid.T) {
	if len(m.queued) == 0 {
		return
	}
	id := rapid.SampledFrom(sortedIDs(m.queued)).Draw(t, "id")
	m.packer.Remove(id)
	delete(m.queued, id)
}

func (m *machine) done(t *rapid.T) {
	if len(m.flying) == 0 {
		return
	}
	i := rapid.IntRange(0, len(m.flying)-1).Draw(t, "batch")
	switch b := m.flying[i]; rapid.SampledFrom([]string{"worked", "worked", "memory", "failed"}).Draw(t, "outcome") {
	case "worked":
		m.packer.ceiling.succeeded(b.Tokens, b.Full)
	case "memory":
		if len(b.Items) > 1 && b.Tokens > minTokens {
			m.packer.ceiling.ranOutOfMemory(b.Tokens, smallerSize(b.Tokens, 1))
		}
	}
	m.packer.Done(m.flying[i])
	m.flying = slices.Delete(m.flying, i, i+1)
}

// step asks the packer and checks its response; it reports whether there was a batch.
func (m *machine) step(t *rapid.T) (formed bool, again time.Time) {
	b, again := m.packer.Next(m.now)
	if b == nil {
		return false, again
	}
	inFlight := 0
	for _, f := range m.flying {
		inFlight += f.Tokens
	}
	if b.OtherTokens != inFlight {
		t.Fatalf("in flight %d, want %d", b.OtherTokens, inFlight)
	}
	if len(b.Items) == 0 || len(b.Items) > 1 && b.Tokens > m.packer.ceiling.tokens || b.Tokens > m.limits.NBatch || inFlight+b.Tokens > m.limits.Context {
		t.Fatalf("batch of %d sequences, %d tokens with %d in flight", len(b.Items), b.Tokens, inFlight)
	}
	total := 0
	for _, it := range b.Items {
		tokens, ok := m.queued[it.Request]
		if !ok || m.next[it.Request] != it.Index || tokens[it.Index] != it.Tokens {
			t.Fatalf("item %+v, but %d is next of %v", it, m.next[it.Request], tokens)
		}
		m.next[it.Request]++
		total += it.Tokens
		if m.next[it.Request] == len(tokens) {
			delete(m.queued, it.Request)
		}
	}
	if total != b.Tokens {
		t.Fatalf("batch says %d tokens, has %d", b.Tokens, total)
	}
	m.flying = append(m.flying, b)
	if len(m.flying) > m.limits.maxActive() {
		t.Fatalf("%d batches in flight", len(m.flying))
	}
	return true, time.Time{}
}

func (m *machine) check(t *rapid.T) {
	pending := 0
	for id, tokens := range m.queued {
		pending += sum1(tokens[m.next[id]:])
	}
	if got := m.packer.pending; got != pending || len(m.packer.byID) != len(m.queued) {
		t.Fatalf("pending %d of %d requests, want %d of %d", got, len(m.packer.byID), pending, len(m.queued))
	}
}

// drain ends batches and waits as the packer says until nothing is left.
func (m *machine) drain(t *rapid.T) {
	for steps := 0; len(m.queued) > 0 || len(m.flying) > 0; steps++ {
		if steps > 10_000 {
			t.Fatal("no progress")
		}
		formed, again := m.step(t)
		switch {
		case formed:
		case len(m.flying) > 0:
			m.now = m.now.Add(time.Millisecond)
			m.packer.Done(m.flying[0])
			m.flying = m.flying[1:]
		case again.After(m.now):
			m.now = again
		default:
			t.Fatalf("%d requests wait, nothing is in flight and Next names no time (%v, now %v)", len(m.queued), again, m.now)
		}
	}
}

func TestPackerKeepsItsPromisesOnRandomHistories(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nBatch := rapid.IntRange(1, 600).Draw(t, "n_batch")
		m := machine{
			limits: Limits{
				NBatch: nBatch, NUBatch: rapid.IntRange(1, nBatch).Draw(t, "n_ubatch"),
				Context: nBatch + rapid.IntRange(0, 3*nBatch).Draw(t, "more context"),
			},
			now: time.Unix(1000, 0), queued: map[uint64][]int{}, next: map[uint64]int{},
		}
		m.packer = newPacker(m.limits, time.Duration(rapid.SampledFrom([]int{0, 0, 5}).Draw(t, "delay"))*time.Millisecond)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"add", "add", "next", "next", "done", "remove", "time"}).Draw(t, "step") {
			case "add":
				m.add(t)
			case "next":
				m.step(t)
			case "done":
				m.done(t)
			case "remove":
				m.remove(t)
			case "time":
				m.now = m.now.Add(time.Duration(rapid.IntRange(0, 10_000).Draw(t, "µs")) * time.Microsecond)
			}
			m.check(t)
		}
		m.drain(t)
		m.check(t)
	})
}

func sum1(list []int) (n int) {
	for _, v := range list {
		n += v
	}
	return n
}

func sortedIDs(m map[uint64][]int) []uint64 {
	ids := make([]uint64, 0, len(m))
	for id := range m {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func repeat(n, tokens int) []int { return slices.Repeat([]int{tokens}, n) }

// TestShortRequestIsNotDelayedByALongOne checks that a single text is in the very next batch, however much another
// request has queued.
func TestShortRequestIsNotDelayedByALongOne(t *testing.T) {
	f, now := newPacker(Limits{NBatch: 100, NUBatch: 100, Context: 200}, 0), time.Unix(0, 0)
	f.Add(1, &queuedRequest{Priority: rpc.Normal, Tokens: repeat(10_000, 10)}, now)
	first, _ := f.Next(now)
	second, _ := f.Next(now)
	if third, again := f.Next(now); third != nil || !again.IsZero() {
		t.Fatalf("a third batch %+v, %v beyond the context", third, again)
	}
	if first.Tokens != 100 || second.Tokens != 100 || !first.Full {
		t.Fatalf("batches %+v and %+v", first, second)
	}
	f.Add(2, &queuedRequest{Priority: rpc.Normal, Tokens: []int{10}}, now)
	f.Done(first)
	b, _ := f.Next(now)
	if !slices.ContainsFunc(b.Items, func(it Item) bool { return it.Request == 2 }) {
		t.Errorf("the single text is not in the next batch: %+v", b.Items)
	}
}

func TestBatchesGrowByQueueing(t *testing.T) {
	f, now := newPacker(Limits{NBatch: 100, NUBatch: 100, Context: 200}, 0), time.Unix(0, 0)
	add := func(id uint64, n int) { f.Add(id, &queuedRequest{Priority: rpc.Normal, Tokens: []int{n}}, now) }
	add(1, 10)
	lone, _ := f.Next(now)
	if lone == nil || lone.Full {
		t.Fatalf("a lone request has to wait: %+v", lone)
	}
	for id := range uint64(5) {
		add(2+id, 10)
		if b, _ := f.Next(now); b != nil {
			t.Fatalf("a second batch of %d tokens while one is in flight", b.Tokens)
		}
	}
	for id := range uint64(5) {
		add(10+id, 10)
	}
	b, _ := f.Next(now)
	if b == nil || b.Tokens != 100 {
		t.Fatalf("a full batch waits: %+v", b)
	}
	f.Done(lone)
	f.Done(b)
	if f.pending != 0 {
		t.Error("tokens or batches are left")
	}
}

// TestHigherPriorityGoesFirst checks that higher priorities go first and lower ones fill the rest.
func TestHigherPriorityGoesFirst(t *testing.T) {
	f, now := newPacker(Limits{NBatch: 20, NUBatch: 10, Context: 20}, 0), time.Unix(0, 0)
	f.Add(1, &queuedRequest{Priority: rpc.Low, Tokens: repeat(3, 10)}, now)
	f.Add(2, &queuedRequest{Priority: rpc.Normal, Tokens: repeat(2, 10)}, now)
	f.Add(3, &queuedRequest{Priority: rpc.High, Tokens: repeat(3, 10)}, now)
	var served []uint64
	for range 4 {
		b, _ := f.Next(now)
		for _, it := range b.Items {
			served = append(served, it.Request)
		}
		f.Done(b)
	}
	if want := []uint64{3, 3, 3, 2, 2, 1, 1, 1}; !slices.Equal(served, want) {
		t.Errorf("served %v, want %v", served, want)
	}
}

// TestSmallerRequestsDoNotOvertakeForever checks that smaller requests do not pass a waiting head forever.
func TestSmallerRequestsDoNotOvertakeForever(t *testing.T) {
	f, now := newPacker(Limits{NBatch: 100, NUBatch: 100, Context: 150}, 0), time.Unix(0, 0)
	f.Add(1, &queuedRequest{Priority: rpc.Normal, Tokens: []int{60}}, now)
	b, _ := f.Next(now)
	f.Add(2, &queuedRequest{Priority: rpc.Normal, Tokens: []int{100}}, now)
	for id := range uint64(20) {
		f.Add(3+id, &queuedRequest{Priority: rpc.Normal, Tokens: []int{10}}, now)
	}
	if small, _ := f.Next(now); small != nil {
		t.Fatalf("passed by %+v", small.Items)
	}
	f.Done(b)
	if b, _ = f.Next(now); b == nil || b.Items[0].Request != 2 {
		t.Errorf("batch %+v", b)
	}
}

func TestIdleEngineWaitsForTheDelay(t *testing.T) {
	f, now := newPacker(Limits{NBatch: 100, NUBatch: 100, Context: 200}, 5*time.Millisecond), time.Unix(100, 0)
	f.Add(1, &queuedRequest{Priority: rpc.Normal, Tokens: []int{10}}, now)
	if b, again := f.Next(now); b != nil || !again.Equal(now.Add(5*time.Millisecond)) {
		t.Fatalf("%+v, %v", b, again)
	}
	f.Add(2, &queuedRequest{Priority: rpc.Normal, Tokens: []int{95}}, now)
	if b, _ := f.Next(now); b == nil {
		t.Error("a full batch is delayed")
	}
}

func TestZeroLimitsGetDefaults(t *testing.T) {
	for _, tt := range []struct{ in, want Limits }{
		{Limits{}, Limits{NBatch: 2048, NUBatch: 2048, Context: 4096}},
		{Limits{NBatch: 512}, Limits{NBatch: 512, NUBatch: 512, Context: 1024}},
	} {
		if got := tt.in.WithDefaults(); got != tt.want {
			t.Errorf("%+v: %+v", tt.in, got)
		}
	}
}

// TestSmallerSizeReachesTheMinimum checks that from any size the last try has minTokens, and that no try has more than
// half of what failed before.
func TestSmallerSizeReachesTheMinimum(t *testing.T) {
	ladder := func(tokens int) (sizes []int) {
		for try := 1; try < maxTries && tokens > minTokens; try++ {
			tokens = smallerSize(tokens, try)
			sizes = append(sizes, tokens)
		}
		return sizes
	}
	if got, want := fmt.Sprint(ladder(DefaultNBatch)), "[1024 512 256 128 64]"; got != want {
		t.Errorf("from %d: %s, want %s", DefaultNBatch, got, want)
	}
	rapid.Check(t, func(t *rapid.T) {
		tokens := rapid.IntRange(minTokens+1, 1<<20).Draw(t, "tokens")
		sizes := ladder(tokens)
		if last := sizes[len(sizes)-1]; last != minTokens {
			t.Fatalf("from %d: %v ends at %d", tokens, sizes, last)
		}
		for _, n := range sizes {
			if 2*n > tokens+1 && n > minTokens {
				t.Fatalf("%d after %d", n, tokens)
			}
			tokens = n
		}
	})
}

func TestRunsShrinkAndGrow(t *testing.T) {
	for _, tt := range []struct {
		sizes []int
		most  int
		want  string
	}{
		{[]int{50, 50, 50, 50}, 100, "[2 2]"},
		{[]int{300, 10, 10}, 160, "[1 2]"}, // longer: alone
		{[]int{10, 300, 10}, 160, "[1 1 1]"},
		{[]int{30, 30, 30}, 64, "[2 1]"},
		{[]int{500}, 64, "[1]"},
	} {
		var items []sequence
		for i, n := range tt.sizes {
			items = append(items, sequence{Item: Item{Index: i, Tokens: n}})
		}
		var got []int
		for len(items) > 0 {
			n := leadingCount(items, tt.most)
			got, items = append(got, n), items[n:]
		}
		if fmt.Sprint(got) != tt.want {
			t.Errorf("runs of %v up to %d: %v, want %s", tt.sizes, tt.most, got, tt.want)
		}
	}
}

// TestCeilingFallsAndRises checks what a queue learns about its engine's memory. The engine computes calls of up to
// memory tokens. Full batches follow one another, and those that are too large are split as the queue splits them.
func TestCeilingFallsAndRises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nBatch := rapid.IntRange(minTokens, 1<<16).Draw(t, "n_batch")
		c := newCeiling(nBatch)
		text := rapid.SampledFrom([]int{1, 25, minTokens}).Draw(t, "tokens of a text")
		// failures plays full batches and returns how many were too large.
		failures := func(memory, batches int) (n int) {
			for range batches {
				size := c.tokens / text * text
				if size <= memory {
					c.succeeded(size, true)
					continue
				}
				n++
				var s memoryShortage
				for try := 1; size > memory; try++ {
					if try == maxTries {
						t.Fatalf("%d is not reached from %d", memory, c.tokens)
					}
					s.learn(size, smallerSize(size, try))
					size = s.splitSize / text * text
				}
				c.ranOutOfMemory(s.failedSize, s.splitSize)
				if c.tokens > nBatch || c.tokens < minTokens {
					t.Fatalf("ceiling %d of %d", c.tokens, nBatch)
				}
			}
			return n
		}
		memory := rapid.IntRange(minTokens, nBatch).Draw(t, "memory")
		if n := failures(memory, raiseAfter); n > 1 {
			t.Fatalf("memory %d: %d of the first %d batches failed", memory, n, raiseAfter)
		}
		// Failed raises become rare: a few until the size is found, one for each doubling of the batches between them,
		// then one every maxRaiseAfter batches.
		const long = 20_000
		const found, doublings = 2, 7
		if n := failures(memory, long); n > found+doublings+long/maxRaiseAfter {
			t.Fatalf("memory %d: %d of %d batches failed", memory, n, long)
		}
		if memory < nBatch && c.tokens < memory*7/8-1 {
			t.Fatalf("ceiling %d after %d batches with memory for %d", c.tokens, long, memory)
		}
		// Less memory costs a failure or two, and then the same applies. When memory is free again, all of it is used.
		less := rapid.IntRange(minTokens, memory).Draw(t, "less memory")
		if n := failures(less, raiseAfter); n > 3 {
			t.Fatalf("memory %d after %d: %d failures", less, memory, n)
		}
		if n := failures(nBatch, 3*maxRaiseAfter+raiseAfter*raiseDivisor*16); n > 0 || c.tokens != nBatch {
			t.Fatalf("memory for all: %d failures, ceiling %d of %d", n, c.tokens, nBatch)
		}
	})
}

// TestCeilingBoundsBatches checks that sequences share a batch up to the ceiling, and that a longer one goes alone and
// is not starved.
func TestCeilingBoundsBatches(t *testing.T) {
	f, now := newPacker(Limits{NBatch: 1000, NUBatch: 1000, Context: 2000}, 0), time.Unix(0, 0)
	f.ceiling.ranOutOfMemory(1000, 100)
	if f.ceiling.tokens != 100 {
		t.Fatalf("ceiling %d", f.ceiling.tokens)
	}
	f.Add(1, &queuedRequest{Priority: rpc.Normal, Tokens: []int{40, 900, 40}}, now)
	f.Add(2, &queuedRequest{Priority: rpc.Normal, Tokens: repeat(4, 40)}, now)
	var sizes []int
	for len(f.byID) > 0 {
		b, _ := f.Next(now)
		if b == nil {
			t.Fatalf("nothing goes: %v", sizes)
		}
		sizes = append(sizes, b.Tokens)
		f.Done(b)
	}
	if got, want := fmt.Sprint(sizes), "[80 900 80 80]"; got != want {
		t.Errorf("batches of %s, want %s", got, want)
	}
}
