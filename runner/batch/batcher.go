package batch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"reveille/infra/oom"
	"reveille/infra/rpc"
)

// Config of a Batcher. Engine is required.
type Config struct {
	Limits Limits        // zeroes mean the defaults
	Delay  time.Duration // maximum time that a request waits for others while the engine is idle; usually 0
	Engine Engine
	Model  string     // label of the metrics
	Words  *WordPiece // counts tokens in process where that is exact; nil: the engine counts them
	// OutOfMemory recognizes an engine's error text; nil means oom.IsOutOfMemory.
	OutOfMemory func(text string) bool
	Meters      *Meters // nil means no metrics
	Log         *slog.Logger
}

// EmbeddingRequest is one embedding request.
type EmbeddingRequest struct {
	Body     []byte // an OpenAI embeddings request; not kept after Serve returns
	Priority rpc.Priority
}

// A Batcher is the queue of all embedding requests for a loaded model. Create it with New and stop it with Close. It is
// safe for concurrent use.
type Batcher struct {
	cfg     Config
	counter *counter
	meters  *modelMeters
	log     *slog.Logger
	runs    sync.WaitGroup

	mu            sync.Mutex
	packer        *packer
	jobs          map[uint64]*job // requests that still lack embeddings
	running       map[*engineRun]struct{}
	lastID        uint64
	dispatchTimer *time.Timer
	closed        bool
}

// job is one request being served. Batcher.mu guards it from enqueue until done is closed.
type job struct {
	parsed
	id       uint64
	queued   time.Time
	runs     int // number of runs that were given sequences of it, sent or not
	counts   []int
	results  [][]float32
	left     int    // number of missing results
	response []byte // the engine's response to the request sent unchanged
	err      error
	done     chan struct{}
}

// New creates the queue of a running engine. It asks the engine how many special tokens its model adds. ctx bounds that
// call.
func New(ctx context.Context, cfg Config) (*Batcher, error) {
	cfg.Limits = cfg.Limits.WithDefaults()
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	if cfg.OutOfMemory == nil {
		cfg.OutOfMemory = oom.IsOutOfMemory
	}
	cfg.Meters = cmp.Or(cfg.Meters, NewMeters(metrics.NewSet()))
	c, err := newCounter(ctx, cfg.Engine, cfg.Words)
	if err != nil {
		return nil, fmt.Errorf("the engine's tokenizer: %w", err)
	}
	b := &Batcher{
		cfg: cfg, counter: c, log: cfg.Log, packer: newPacker(cfg.Limits, cfg.Delay),
		jobs: map[uint64]*job{}, running: map[*engineRun]struct{}{},
	}
	b.dispatchTimer = time.AfterFunc(time.Hour, b.dispatch)
	b.dispatchTimer.Stop()
	b.meters = cfg.Meters.add(cfg.Model, b)
	l := cfg.Limits
	b.log.Info("embedding queue", "n_batch", l.NBatch, "n_ubatch", l.NUBatch, "context", l.Context,
		"positions", l.Positions, "batch_delay", cfg.Delay, "special_tokens", c.specials, "counts_in_process", c.words != nil)
	return b, nil
}

// Close stops the queue and cancels engine calls. Requests fail with ErrIncomplete if one of their sequences was sent,
// otherwise with ErrUnsent. Close returns when no engine call is left.
func (b *Batcher) Close() {
	b.mu.Lock()
	b.closed = true
	b.dispatchTimer.Stop()
	for x := range b.running {
		x.cancel(ErrIncomplete)
	}
	b.mu.Unlock()
	b.runs.Wait() // the runs know what they sent and finish their own requests
	b.mu.Lock()
	for id, j := range b.jobs {
		b.failLocked(id, unsentOrIncomplete(j.runs > 0))
	}
	b.mu.Unlock()
	b.cfg.Meters.remove(b)
}

// Serve serves one request and writes the body of the response, whose status is 200, to w. On an error that is not w's
// it has written nothing. The error is ErrNotBatched, ErrUnsent, ErrIncomplete, *Error, *EngineError, the cause of ctx,
// the error of an Engine call, or w's. When ctx ends, the request's sequences leave the queue, and an engine call that
// serves only this request is canceled.
func (b *Batcher) Serve(ctx context.Context, r EmbeddingRequest, w io.Writer) error {
	p, ok := parse(r.Body)
	if !ok {
		return ErrNotBatched
	}
	counts, err := b.counter.count(ctx, p.inputs)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		b.log.Debug("tokenizer failed, request is not batched", "error", err)
		return ErrNotBatched
	}
	longest := b.cfg.Limits.Longest()
	for i, n := range counts {
		switch {
		case n <= longest:
			continue
		case !p.truncate:
			return tooLong(i, n, longest)
		}
		if p.inputs[i], err = b.counter.truncate(ctx, p.inputs[i], longest); err != nil {
			return cmp.Or(context.Cause(ctx), err)
		}
		counts[i], p.body = len(p.inputs[i].ids), nil
	}
	j := &job{parsed: p, counts: counts, results: make([][]float32, len(counts)), left: len(counts), done: make(chan struct{})}
	if err := b.enqueue(j, r.Priority); err != nil {
		return err
	}
	select {
	case <-j.done:
	case <-ctx.Done():
		b.cancelJob(j.id, context.Cause(ctx))
		<-j.done
	}
	switch {
	case j.err != nil:
		return j.err
	case j.response != nil:
		_, err := w.Write(j.response)
		return err
	}
	return j.writeResponse(w, j.counts, j.results)
}

// enqueue queues a job.
func (b *Batcher) enqueue(j *job, p rpc.Priority) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return ErrUnsent
	}
	b.lastID++
	j.id, j.queued = b.lastID, time.Now()
	b.jobs[j.id] = j
	b.packer.Add(j.id, &queuedRequest{Priority: p, CallKey: j.callKey(), Tokens: j.counts}, j.queued)
	b.dispatchLocked(j.queued)
	return nil
}

// cancelJob ends a job whose client has disconnected, unless it has already ended.
func (b *Batcher) cancelJob(id uint64, cause error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failLocked(id, cause)
	b.dispatchLocked(time.Now())
}

var errNoClient = errors.New("no client waits for the response")

// failLocked ends a job with an error, unless it has ended. Its sequences leave the queue, and runs that serve no
// other job are canceled.
func (b *Batcher) failLocked(id uint64, err error) {
	j := b.jobs[id]
	if j == nil {
		return
	}
	b.packer.Remove(id)
	j.err = err
	b.finishLocked(j)
	for x := range b.running {
		if !b.isWantedLocked(x.sequences) {
			x.cancel(errNoClient)
		}
	}
}

func (b *Batcher) finishLocked(j *job) {
	delete(b.jobs, j.id)
	close(j.done)
}

// isWantedLocked reports whether a job still waits for any of the sequences.
func (b *Batcher) isWantedLocked(part []sequence) bool {
	return slices.ContainsFunc(part, func(s sequence) bool { return b.jobs[s.Request] != nil })
}

// dispatch is dispatchLocked for the timer.
func (b *Batcher) dispatch() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dispatchLocked(time.Now())
}

// dispatchLocked starts the batches that are due.
func (b *Batcher) dispatchLocked(now time.Time) {
	for !b.closed {
		batch, again := b.packer.Next(now)
		if batch == nil {
			if !again.IsZero() {
				b.dispatchTimer.Reset(again.Sub(now))
			}
			return
		}
		x := b.prepareLocked(batch, now)
		b.runs.Go(func() { b.execute(x) })
	}
}
