package state

import (
	"context"
	"crypto/rand"
	"errors"
	"math"
	"strconv"
	"sync"
	"time"
)

// How long a use stays in memory before it is sent to Redis: flushSoon after a pause, flushEvery while others come before
// and after it, so that Redis has two writes a second of a busy gateway, and a lone use is known at once.
const (
	flushSoon  = 100 * time.Millisecond
	flushEvery = 500 * time.Millisecond
)

// UsageReporter batches uses of models and counters and sends them in the background, so that no request waits for
// Redis. All methods are safe for concurrent use. Touch, Answered and Count never block on I/O; run Run in one
// goroutine.
type UsageReporter struct {
	store *Store

	sending sync.Mutex // held during a Flush
	unsent  *batch     // guarded by sending: sent, answer unknown

	mu    sync.Mutex
	noted *batch
}

// batch is sent as one operation. Repeated with the same id it counts once.
type batch struct {
	id       string
	uses     map[CopyID]time.Time
	served   map[CopyID]float64
	counters map[string]float64
	latest   map[string]float64
}

func newBatch() *batch {
	return &batch{
		id: rand.Text(), uses: map[CopyID]time.Time{}, served: map[CopyID]float64{}, counters: map[string]float64{}, latest: map[string]float64{},
	}
}

// NewUsageReporter creates a UsageReporter for the store.
func NewUsageReporter(store *Store) *UsageReporter {
	return &UsageReporter{store: store, noted: newBatch()}
}

// Touch records a use of a model on a host now.
func (t *UsageReporter) Touch(host, model string) {
	now := time.Now()
	t.mu.Lock()
	t.noted.uses[CopyID{host, model}] = now
	t.mu.Unlock()
}

// Answer is a complete answer of a model on a host, with what the engine told of it.
type Answer struct {
	Host, Model           string
	Reported              bool // the engine told how many tokens it took; else the rest is zero
	Input, Output, Cached int64
	PerSecond             float64       // tokens; ignored if not finite
	FirstToken            time.Duration // from the request to the answer's first byte
}

// Answered counts an answer, its tokens as the pool's latest and in its sums.
func (t *UsageReporter) Answered(a Answer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.noted
	b.served[CopyID{a.Host, a.Model}]++
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
			_ = t.Flush(last)
			return
		case now := <-tick.C:
			if now.Sub(sent) < flushEvery-flushSoon/2 { // ticks come early and late
				continue
			}
			if n, _ := t.flush(ctx); n > 0 { // what failed is kept for the next; the breaker logs
				sent = now
			}
		}
	}
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
		if !again {
			t.unsent = t.take()
		}
		if t.unsent == nil {
			return sent, nil
		}
		if err := t.send(ctx, t.unsent); err != nil {
			if !errors.Is(err, ErrUnavailable) {
				t.unsent = nil // Redis will never accept this
			}
			return sent, err
		}
		t.unsent = nil
		sent++
	}
	return sent, nil
}

// take returns what was recorded since the last take, or nil if nothing was.
func (t *UsageReporter) take() *batch {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.noted.uses)+len(t.noted.served)+len(t.noted.counters)+len(t.noted.latest) == 0 {
		return nil
	}
	b := t.noted
	t.noted = newBatch()
	return b
}

func (t *UsageReporter) send(ctx context.Context, b *batch) error {
	args := make([]any, 0, 3+3*len(b.uses)+2*len(b.latest)+2*len(b.served)+2*len(b.counters))
	args = append(args, b.id, len(b.uses), len(b.latest))
	for u, at := range b.uses {
		args = append(args, u.Host, u.Model, time.Since(at).Milliseconds())
	}
	for name, v := range b.latest {
		args = append(args, name, strconv.FormatFloat(v, 'f', -1, 64))
	}
	for c, n := range b.served {
		args = append(args, servedBy(c), strconv.FormatFloat(n, 'f', -1, 64))
	}
	for name, n := range b.counters {
		args = append(args, name, strconv.FormatFloat(n, 'f', -1, 64))
	}
	_, err := t.store.eval(ctx, t.store.scripts.touch, args...)
	return err
}
