package state

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"maps"
	"math"
	"strconv"
	"sync"
	"time"
)

// How long a count stays in memory before it is sent to Redis: flushSoon after a pause, flushEvery while others come
// before and after it, so that Redis has two writes a second of a busy gateway, and a lone response is counted
// immediately.
const (
	flushSoon  = 100 * time.Millisecond
	flushEvery = 500 * time.Millisecond
	shareEvery = 2 * time.Second // between two batches of a gateway whose API keys have limits to share
)

// UsageReporter batches the pool's counters and what API keys have spent, and sends them in the background, so that no
// request waits for Redis. All methods are safe for concurrent use and none but Run and Flush blocks on I/O; run Run in
// one goroutine.
type UsageReporter struct {
	store   *Store
	gateway string // its name among those that share limits

	sending sync.Mutex // held during a Flush; taken before mu
	unsent  *batch     // guarded by sending and mu: sent, response unknown

	mu       sync.Mutex
	noted    *batch
	shares   bool             // an API key has limits to share
	gateways int              // that share limits, as of the last response
	totals   map[string]int64 // tokens that API keys with a budget have spent in the pool, as of the last response
}

// batch is sent as one operation. Repeated with the same id it counts once.
type batch struct {
	id       string
	counters map[string]float64
	latest   map[string]float64
	days     map[dayUser]UseDay
	spent    map[string]int64
}

func newBatch() *batch {
	return &batch{id: rand.Text(), counters: map[string]float64{}, latest: map[string]float64{}, days: map[dayUser]UseDay{}, spent: map[string]int64{}}
}

func (b *batch) empty() bool { return len(b.counters)+len(b.latest)+len(b.days)+len(b.spent) == 0 }

// NewUsageReporter creates a UsageReporter for the store.
func NewUsageReporter(store *Store) *UsageReporter {
	return &UsageReporter{store: store, gateway: rand.Text(), noted: newBatch(), totals: map[string]int64{}}
}

// Share makes this one of the gateways that share the limits of API keys. key, if not "", is one with a budget of
// tokens.
func (t *UsageReporter) Share(key string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.shares = true
	if _, ok := t.totals[key]; !ok && key != "" {
		t.totals[key] = 0
	}
}

// Gateways returns how many gateways share limits, at least 1.
func (t *UsageReporter) Gateways() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return max(t.gateways, 1)
}

// Spend adds tokens to what an API key has spent of its budget.
func (t *UsageReporter) Spend(key string, tokens int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.noted.spent[key] += tokens
}

// Spent returns how many tokens of its budget an API key has spent; what other gateways counted is some seconds old.
func (t *UsageReporter) Spent(key string) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	sum := t.totals[key] + t.noted.spent[key]
	if t.unsent != nil {
		sum += t.unsent.spent[key]
	}
	return sum
}

// ResponseUsage is a complete response of a model, with what the engine reported about it.
type ResponseUsage struct {
	Reported              bool // the engine reported its tokens; else the rest is zero
	Input, Output, Cached int64
	PerSecond             float64       // tokens; ignored if not finite
	FirstToken            time.Duration // from the request to the response's first byte
}

// CountResponse counts a response, its tokens as the pool's latest and in its sums.
func (t *UsageReporter) CountResponse(a ResponseUsage) {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.noted
	b.counters["request_count_total"]++
	if !a.Reported {
		return
	}
	b.tokens("input_tokens", "input_tokens_total", a.Input)
	b.tokens("prompt_tokens", "prompt_tokens_total", a.Input)
	b.tokens("output_tokens", "output_tokens_total", a.Output)
	b.tokens("cache_tokens", "cache_tokens_total", a.Cached)
	b.latest["time_to_first_token"] = a.FirstToken.Seconds()
	if finite(a.PerSecond) {
		b.latest["tokens_per_second"] = a.PerSecond
	}
}

func (b *batch) tokens(latest, sum string, n int64) {
	b.latest[latest] = float64(n)
	b.counters[sum] += float64(n)
}

func finite(n float64) bool { return !math.IsNaN(n) && !math.IsInf(n, 0) }

// Count adds to a counter of the pool's statistics. It ignores a number that is not finite.
func (t *UsageReporter) Count(name string, n float64) {
	if !finite(n) {
		return
	}
	t.mu.Lock()
	t.noted.counters[name] += n
	t.mu.Unlock()
}

// CountUse adds a response of a model, for an API key ("" none), to the counters of the day. took is how long the
// request took.
func (t *UsageReporter) CountUse(model, key string, took time.Duration, input, output int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, u := range [...]dayUser{{dayModel, model}, {dayKey, cmp.Or(key, NoKey)}} {
		d := t.noted.days[u]
		t.noted.days[u] = UseDay{d.Requests + 1, d.Took + took, d.Input + input, d.Output + output}
	}
}

// Run sends what was recorded until ctx ends, then once more.
func (t *UsageReporter) Run(ctx context.Context) {
	tick := time.NewTicker(flushSoon)
	defer tick.Stop()
	var sent time.Time
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			if t.Flush(last) == nil && t.sharing() {
				_ = t.send(last, newBatch(), true)
			}
			return
		case now := <-tick.C:
			if now.Sub(sent) < flushEvery-flushSoon/2 { // ticks come early and late
				continue
			}
			if n, _ := t.flush(ctx); n > 0 { // what failed is kept for the next; the breaker logs
				sent = now
			} else if t.sharing() && now.Sub(sent) >= shareEvery {
				_ = t.send(ctx, newBatch(), false)
				sent = now
			}
		}
	}
}

func (t *UsageReporter) sharing() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.shares
}

// Flush sends what was recorded so far. What Redis did not accept is kept for the next Flush. If an outcome stays
// unknown for more than a minute, the same counts may count twice.
func (t *UsageReporter) Flush(ctx context.Context) error {
	_, err := t.flush(ctx)
	return err
}

// flush is Flush. It returns how many operations Redis has accepted.
func (t *UsageReporter) flush(ctx context.Context) (sent int, err error) {
	t.sending.Lock()
	defer t.sending.Unlock()
	for again := true; again; { // what is left over, if anything is, and what was recorded since
		again = t.unsent != nil
		b := t.take()
		if b == nil {
			return sent, nil
		}
		if err := t.send(ctx, b, false); err != nil {
			if !errors.Is(err, ErrUnavailable) { // Redis will never accept this
				t.mu.Lock()
				t.unsent = nil
				t.mu.Unlock()
			}
			return sent, err
		}
		sent++
	}
	return sent, nil
}

// take returns the batch to send, or nil if there is none. The caller holds sending.
func (t *UsageReporter) take() *batch {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.unsent == nil && !t.noted.empty() {
		t.unsent, t.noted = t.noted, newBatch()
	}
	return t.unsent
}

// send sends a batch, and notes what Redis responds about gateways and budgets.
func (t *UsageReporter) send(ctx context.Context, b *batch, end bool) error {
	t.mu.Lock()
	keys := maps.Clone(b.spent)
	for key := range t.totals {
		keys[key] += 0
	}
	gateway := ""
	if t.shares {
		gateway = t.gateway
	}
	t.mu.Unlock()
	const perUser = 4 // counters
	args := make([]any, 0, 6+2*(len(b.latest)+len(b.counters)+len(keys))+4*perUser*len(b.days))
	args = append(args, b.id, gateway, FormatBool(end), len(b.latest), len(b.counters), perUser*len(b.days))
	for _, pairs := range [...]map[string]float64{b.latest, b.counters} {
		for name, v := range pairs {
			args = append(args, name, strconv.FormatFloat(v, 'f', -1, 64))
		}
	}
	for u, d := range b.days {
		args = append(args, u.kind, "requests", u.name, d.Requests, u.kind, "ms", u.name, d.Took.Milliseconds(),
			u.kind, "input", u.name, d.Input, u.kind, "output", u.name, d.Output)
	}
	order := make([]string, 0, len(keys))
	for key, n := range keys {
		args, order = append(args, key, n), append(order, key)
	}
	out, err := t.store.eval(ctx, "usage", args...)
	if err != nil {
		return err
	}
	words := toStrings(out)
	if len(words) != 1+len(order) {
		return errors.New("state script returned another number of budgets")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.gateways = int(ParseNumber(words[0]))
	for i, key := range order {
		t.totals[key] = ParseNumber(words[1+i])
	}
	if t.unsent == b {
		t.unsent = nil // in the same step, so that Spent counts it once
	}
	return nil
}
