package batch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"reveille/infra/oom"
)

// idleRelease is how long a queue must be idle before it releases its buffers.
const idleRelease = 30 * time.Second

// Config of a Batcher. Engine is required.
type Config struct {
	Limits Limits        // zeroes mean the defaults
	Delay  time.Duration // longest time that a request waits for others while the engine is idle; usually 0
	Engine Engine
	Model  string     // label of the metrics
	Words  *WordPiece // counts tokens in process where it is exact; nil asks the engine
	// OutOfMemory recognises an engine's error text; nil means oom.Says.
	OutOfMemory func(text string) bool
	Meters      *Meters // nil means no metrics
	Log         *slog.Logger
}

// Call is one embedding request.
type Call struct {
	Body     []byte // an OpenAI embeddings request; not kept after Serve returns
	Priority Priority
}

// A Batcher is the queue of all embedding requests for a loaded model. Create it with New and end it with Close. It is
// safe for concurrent use.
type Batcher struct {
	cfg     Config
	counter *counter
	meters  *meters
	log     *slog.Logger
	buffers buffers
	spare   sync.Pool // of *job
	runs    sync.WaitGroup

	mu       sync.Mutex
	packer   *packer
	jobs     map[uint64]*job // requests that still lack embeddings
	inFlight map[*batchRun]struct{}
	lastID   uint64
	wake     *time.Timer // calls the packer again
	idle     *time.Timer // releases the buffers
	shown    load        // this queue's share of the gauges
	closed   bool
}

// New creates the queue of a running engine. It asks the engine how many special tokens its model adds; ctx bounds the
// wait.
func New(ctx context.Context, cfg Config) (*Batcher, error) {
	cfg.Limits = cfg.Limits.WithDefaults()
	if err := cfg.Limits.Validate(); err != nil {
		return nil, err
	}
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	if cfg.OutOfMemory == nil {
		cfg.OutOfMemory = oom.Says
	}
	if cfg.Meters == nil {
		cfg.Meters = NewMeters(metrics.NewSet())
	}
	c, err := newCounter(ctx, cfg.Engine, cfg.Words)
	if err != nil {
		return nil, fmt.Errorf("the engine's tokenizer: %w", err)
	}
	b := &Batcher{
		cfg: cfg, counter: c, meters: cfg.Meters.of(cfg.Model), log: cfg.Log, packer: newPacker(cfg.Limits, cfg.Delay), jobs: map[uint64]*job{}, inFlight: map[*batchRun]struct{}{},
	}
	b.shown = b.meters.show(load{}, loadOf(b.packer))
	b.wake = newTimer(b.dispatch)
	b.idle = newTimer(b.buffers.release)
	l := cfg.Limits
	b.log.Info("embedding queue", "n_batch", l.NBatch, "n_ubatch", l.NUBatch, "context", l.Context, "n_seq_max", l.NSeqMax,
		"positions", l.Positions, "batch_delay", cfg.Delay, "special_tokens", c.specials, "counts_in_process", c.words != nil)
	return b, nil
}

// newTimer returns a stopped timer.
func newTimer(f func()) *time.Timer {
	t := time.AfterFunc(time.Hour, f)
	t.Stop()
	return t
}

// Close ends the queue. It cancels engine calls. Requests fail with ErrCut if a sequence of theirs was sent, otherwise
// with ErrUnsent. Close returns when no engine call is left.
func (b *Batcher) Close() {
	b.mu.Lock()
	b.closed = true
	b.wake.Stop()
	for x := range b.inFlight {
		x.cancel(ErrCut)
	}
	b.mu.Unlock()
	b.runs.Wait() // the runs know what they sent and end their own requests
	b.mu.Lock()
	for id, j := range b.jobs {
		b.failLocked(id, lost(j.runs > 0))
	}
	b.shown = b.meters.show(b.shown, load{})
	b.mu.Unlock()
	b.idle.Stop()
	b.buffers.release()
}

// Serve answers one request by writing the body of a 200 answer to w. On error it has written nothing. The error is
// ErrNotBatched, ErrUnsent, ErrCut, *Error, *EngineError, the cause of ctx, or the error of an Engine.Embed call that
// reached the engine. When ctx ends, the request's sequences leave the queue, and an engine call that serves only this
// request is cancelled.
func (b *Batcher) Serve(ctx context.Context, c Call, w io.Writer) error {
	j := b.takeJob()
	defer b.finish(j)
	if !j.parse(c.Body) {
		return ErrNotBatched
	}
	j.size(len(j.inputs))
	if err := b.counter.count(ctx, j.inputs, j.counts); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		b.log.Debug("the engine's tokenizer failed: the request is passed on", "error", err)
		return ErrNotBatched
	}
	for i, n := range j.counts {
		if longest := b.cfg.Limits.Longest(); n > longest {
			return tooLong(i, n, longest)
		}
	}
	own, err := b.enter(j, c.Priority)
	if err != nil {
		return err
	}
	b.await(ctx, j, own)
	if j.err != nil {
		return j.err
	}
	return j.write(w)
}

// await waits until a job or ctx ends. own is the run of the job's own batch, if any; await executes it itself, to save
// a lone request a goroutine switch.
func (b *Batcher) await(ctx context.Context, j *job, own *batchRun) {
	id := j.id
	if own != nil {
		stop := context.AfterFunc(ctx, func() { b.abandon(id, context.Cause(ctx)) })
		b.execute(own)
		stop()
		<-j.done
		return
	}
	select {
	case <-j.done:
	case <-ctx.Done():
		b.abandon(id, context.Cause(ctx))
		<-j.done
	}
}

// enter queues a job. If the job gets a batch of its own at once, enter returns its run, which the caller must execute.
func (b *Batcher) enter(j *job, p Priority) (own *batchRun, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, ErrUnsent
	}
	now := time.Now()
	b.lastID++
	j.id, j.entered = b.lastID, now
	j.request = Request{Priority: p, Group: j.group(), Tokens: j.counts}
	b.jobs[j.id] = j
	b.idle.Stop()
	b.packer.Add(j.id, &j.request, now)
	return b.dispatchLocked(now, j.id), nil
}

// abandon ends a job whose client has left, unless it has already ended.
func (b *Batcher) abandon(id uint64, cause error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.jobs[id] != nil {
		b.failLocked(id, cause)
		b.dispatchLocked(time.Now(), 0)
	}
}

func (b *Batcher) takeJob() *job {
	if j, ok := b.spare.Get().(*job); ok {
		return j
	}
	return &job{done: make(chan struct{}, 1)}
}

// finish releases what a job holds. No run refers to the job any more.
func (b *Batcher) finish(j *job) {
	for _, a := range j.answers {
		if a.refs.Add(-1) == 0 {
			b.buffers.give(a.body)
		}
	}
	j.reset()
	b.spare.Put(j)
}

// failLocked ends a job with an error. Its sequences leave the queue, and runs that serve no other job are cancelled.
func (b *Batcher) failLocked(id uint64, err error) {
	j := b.jobs[id]
	if j == nil {
		return
	}
	b.packer.Remove(id)
	j.err = err
	b.endLocked(j)
	for x := range b.inFlight {
		if !b.wantedLocked(x) {
			x.cancel(errUnwanted)
		}
	}
}

var errUnwanted = errors.New("nobody waits for the answer")

// endLocked notifies a job's owner that the job has ended.
func (b *Batcher) endLocked(j *job) {
	delete(b.jobs, j.id)
	j.done <- struct{}{}
}

// wantedLocked reports whether any job still waits for a run.
func (b *Batcher) wantedLocked(x *batchRun) bool {
	for i := range x.items {
		if b.jobs[x.items[i].Request] != nil {
			return true
		}
	}
	return false
}

// dispatch asks the packer again, at the time it named.
func (b *Batcher) dispatch() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dispatchLocked(time.Now(), 0)
}

// dispatchLocked starts the batches that are due. If one of them consists of exactly the request id, it returns that
// batch's run instead, which the caller must execute.
func (b *Batcher) dispatchLocked(now time.Time, id uint64) (own *batchRun) {
	if b.closed {
		return nil
	}
	for {
		batch, again := b.packer.Next(now)
		if batch == nil {
			if !again.IsZero() {
				b.wake.Reset(again.Sub(now))
			}
			break
		}
		x := b.prepareLocked(batch, now)
		b.runs.Add(1)
		if x.verbatim != nil && x.items[0].Request == id {
			own = x
			continue
		}
		go b.execute(x)
	}
	b.shown = b.meters.show(b.shown, loadOf(b.packer))
	if len(b.jobs) == 0 && len(b.inFlight) == 0 {
		b.idle.Reset(idleRelease)
	}
	return own
}
