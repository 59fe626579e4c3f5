package batches

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"time"

	"reveille/gateway/api"
	"reveille/gateway/keys"
	"reveille/infra/jsonscan"
)

const (
	window = 16 // lines of a batch that run, or wait for the outcomes of earlier ones

	lookEvery  = time.Second      // how often a batch looks whether it must end
	saveEvery  = 2 * time.Second  // how often it saves its progress
	idleAfter  = 10 * time.Second // how long it may make no progress while other batches wait
	keyGrace   = 2 * time.Minute  // how long its key may be missing: the gateway may not have read a new key yet
	firstPause = 250 * time.Millisecond
	maxPause   = 10 * time.Second // between attempts of a line, or to write an outcome into a full folder
	maxTries   = 10               // of a line whose engine or host fails
)

// Causes of the end of a run.
var (
	errComplete = errors.New("all lines have run")
	errStopped  = errors.New("a client has cancelled the batch")
	errWindow   = errors.New("the completion window has ended")
	errInvalid  = errors.New("lines are malformed")
	errIdle     = errors.New("the batch makes no progress and others wait")

	errKey     error = lineError{Code: "invalid_api_key", Message: "The API key that made this batch is no longer valid."}
	errNoInput error = lineError{Code: "input_file_not_found", Message: "The input file was deleted.", Param: new("input_file_id")}
	errChanged error = lineError{Code: "input_file_changed", Message: "The input file is not the one that was validated.", Param: new("input_file_id")}
)

// worker runs one batch, which it has locked.
type worker struct {
	*Service
	batch   *stored
	digest  [sha256.Size]byte
	out     *outcomes
	keyless time.Time     // since when the batch's key has been missing; zero: it is not
	blocked atomic.Bool   // an outcome waits until the folder has room
	left    atomic.Int64  // lines without an outcome
	rate    atomic.Uint64 // lines in a million seconds

	reason atomic.Value // a string: why lines wait; "": none does
}

// run runs a batch until it has ended, unless another gateway does. Its error means that it must be resumed.
func (s *Service) run(ctx context.Context, tenant, id string) error {
	b, err := s.load(tenant, id)
	if err != nil || b.ended() {
		return ignoreMissing(err)
	}
	out, err := openOutcomes(s.path(tenant, b.Output), s.path(tenant, b.Failed))
	if err != nil || out == nil {
		return err
	}
	defer out.close()
	if b, err = s.load(tenant, id); err != nil || b.ended() { // as it is since the lock
		return ignoreMissing(err)
	}
	stop := b.Status == cancelling
	w := &worker{Service: s, batch: b, out: out}
	if _, err := hex.Decode(w.digest[:], []byte(b.Key)); err != nil {
		return err
	}
	if b.InProgressAt == nil && !stop {
		err = w.validate(ctx)
	}
	if err == nil {
		err = w.cause(stop)
	}
	if err == nil {
		err = w.runLines(ctx)
	}
	switch err {
	case errComplete:
		return w.finish(completed)
	case errStopped:
		if b.Endpoint == messagesEndpoint { // each of its requests has a result
			if err := w.endRest(ctx, cancelled, &errCancelled); err != nil {
				return err
			}
		}
		return w.finish(cancelled)
	case errWindow:
		if err := w.endRest(ctx, expired, &errExpired); err != nil {
			return err
		}
		return w.finish(expired)
	case errInvalid:
		return w.finish(failed)
	case errIdle:
		w.reason.Store("Other batches have their turn.")
		return w.save()
	}
	if bad, is := errors.AsType[lineError](err); is { // errKey, errNoInput, or the input file has changed since it was validated
		b.fail(bad)
		return w.finish(failed)
	}
	return err
}

// input opens the input file.
func (w *worker) input() (*os.File, error) {
	f, err := os.Open(w.path(w.batch.tenant, w.batch.InputFileID))
	if errors.Is(err, fs.ErrNotExist) {
		err = errNoInput
	}
	return f, err
}

// validate checks the input.
func (w *worker) validate(ctx context.Context) error {
	w.check.Lock()
	defer w.check.Unlock()
	b := w.batch
	f, err := w.input()
	if err != nil {
		return err
	}
	defer f.Close()
	if err := b.validate(ctx, f); err != nil {
		return err
	}
	if b.Errors != nil {
		return errInvalid
	}
	if len(b.Models) == 1 {
		b.Model = &b.Models[0].Model
	}
	now := time.Now().Unix()
	b.Status, b.InProgressAt = inProgress, &now
	return w.save()
}

// save writes the record with the progress.
func (w *worker) save() error {
	b := w.batch
	b.RequestCounts.Completed, b.RequestCounts.Failed = w.out.lines[toOutput], w.out.lines[toErrors]
	b.Rate = float64(w.rate.Load()) / 1e6
	b.WaitReason, _ = w.reason.Load().(string)
	return w.write(b.tenant, b.ID, b)
}

// finish makes the outcome files files of the key, and ends the batch.
func (w *worker) finish(status string) error {
	b, now := w.batch, time.Now()
	if err := w.out.sync(); err != nil {
		return err
	}
	at := now.Unix()
	switch {
	case status == completed:
		b.FinalizingAt = &at
	case status == cancelled && b.CancellingAt == nil:
		b.CancellingAt = &at
	}
	for i, id := range []string{b.Output, b.Failed} {
		if w.out.lines[i] == 0 {
			if err := w.remove(w.path(b.tenant, id)); err != nil {
				return err
			}
			continue
		}
		name := "output"
		if i == toOutput {
			b.OutputFileID = &b.Output
		} else {
			b.ErrorFileID, name = &b.Failed, "error"
		}
		file := newFile(id, "batch_output", fmt.Sprintf("%s_%s.jsonl", b.ID, name), w.out.sizes[i], now, b.Keep)
		if err := w.write(b.tenant, id, file); err != nil {
			return err
		}
	}
	b.end(status, now)
	w.reason.Store("")
	if err := w.save(); err != nil {
		return err
	}
	w.cfg.Log.Info("a batch has ended", "batch", b.ID, "status", status, "completed", b.RequestCounts.Completed, "failed", b.RequestCounts.Failed)
	return w.remove(w.path(b.tenant, b.ID+stopMark))
}

// cause returns why the batch must end now, or nil. stop is whether a client has cancelled it.
func (w *worker) cause(stop bool) error {
	scopes, now := w.cfg.Key(w.digest).Scopes, time.Now()
	if scopes != 0 {
		w.keyless = time.Time{}
	} else if w.keyless.IsZero() {
		w.keyless = now
	}
	switch {
	case stop:
		return errStopped
	case now.Unix() >= w.batch.ExpiresAt:
		return errWindow
	case scopes&keys.Infer == 0 && (scopes != 0 || now.Sub(w.keyless) >= keyGrace):
		return errKey
	}
	return nil
}

// watch ends a run, with its cause, when the batch must end, or makes no progress while others wait.
func (w *worker) watch(ctx context.Context, end context.CancelCauseFunc) {
	left, since := w.left.Load(), time.Now()
	for pause(ctx, lookEvery) == nil {
		_, err := os.Stat(w.path(w.batch.tenant, w.batch.ID+stopMark))
		if cause := w.cause(err == nil); cause != nil {
			end(cause)
			return
		}
		w.mu.Lock()
		others := w.waiting
		w.mu.Unlock()
		if n := w.left.Load(); n != left || w.blocked.Load() || !w.keyless.IsZero() {
			left, since = n, time.Now()
		} else if others && time.Since(since) > idleAfter {
			end(errIdle)
			return
		}
	}
}

// task is a line that runs.
type task struct {
	customID string
	model    string
	memory   Memory
	done     chan Result // gets one result, or is closed if the run ends first
}

// runLines runs the lines that have no outcome, and returns why it ended.
func (w *worker) runLines(parent context.Context) error {
	ctx, end := context.WithCancelCause(parent)
	watched := make(chan struct{})
	go func() { w.watch(ctx, end); close(watched) }()
	defer func() { end(nil); <-watched }()
	w.left.Store(int64(w.batch.RequestCounts.Total - w.out.position()))
	w.rate.Store(uint64(w.batch.Rate * 1e6))

	queue := make(chan *task, window-1) // and collect has one
	read := errComplete
	go func() {
		defer close(queue)
		err := w.eachLine(ctx, func(l line) error {
			if err := w.whenRoom(ctx, func() error { return w.reserve(0) }); err != nil {
				return err
			}
			t := &task{customID: string(l.customID), model: l.model, memory: Memory{s: w.Service, ctx: ctx, turn: make(chan struct{})}, done: make(chan Result, 1)}
			if err := t.memory.Reserve(len(l.body)); err != nil {
				return err
			}
			body := bytes.Clone(l.body)
			queue <- t // collect and what follows it empty the queue
			go w.runLine(ctx, t, body)
			return nil
		})
		if err != nil {
			read = err
		}
	}()
	err := w.collect(ctx, queue)
	if err == nil {
		return read // it was set before the queue was closed
	}
	end(err)
	for t := range queue { // what still runs
		if r, ok := <-t.done; ok {
			r.Release()
		}
	}
	return context.Cause(ctx)
}

// collect appends outcomes in the order of the input.
func (w *worker) collect(ctx context.Context, queue <-chan *task) error {
	var busy time.Duration
	var finished int
	last := time.Now()
	look := time.NewTicker(saveEvery)
	defer look.Stop()
	for t := range queue {
		close(t.memory.turn)
		r, ok, err := w.await(t, look.C)
		if err == nil && ok {
			if !json.Valid(r.Body) {
				w.invalidate(&r)
			}
			to, name := toErrors, failed
			if r.Status < 300 {
				to, name = toOutput, completed
			}
			if err = w.append(ctx, to, t.customID, &response{r.Status, r.Request, r.Body}, nil); err == nil {
				w.cfg.Count(name)
				w.reason.Store("")
			}
		} else if err == nil {
			err = context.Cause(ctx)
		}
		if ok {
			r.Release()
		}
		if t.memory.end(); err != nil {
			return err
		}
		w.left.Add(-1)
		now := time.Now()
		busy += min(now.Sub(last), idleAfter)
		last = now
		if finished++; finished >= window {
			w.rate.Store(uint64(1e6 * float64(finished) / busy.Seconds()))
		}
	}
	return nil
}

// invalidate makes a result that is no JSON an error.
func (w *worker) invalidate(r *Result) {
	e, form := api.InvalidEngineResponse(), api.OpenAI
	if w.batch.Endpoint == messagesEndpoint {
		form = api.Anthropic
	}
	r.Status, r.Body = e.Status, form.Body(e, r.Request)
}

// await returns the result of a line, if the run does not end first. At each tick, it saves what has changed.
func (w *worker) await(t *task, tick <-chan time.Time) (r Result, ok bool, err error) {
	for {
		select {
		case r, ok = <-t.done:
			return r, ok, err
		case <-tick:
			reason, _ := w.reason.Load().(string)
			if c := w.batch.RequestCounts; c.Completed+c.Failed == w.out.position() && w.batch.WaitReason == reason {
				continue
			}
			if e := w.save(); e != nil && !isFull(e) {
				err = e
			}
		}
	}
}

// append adds an outcome to one of the files, once the folder has room for it: a line that has run must not run again.
func (w *worker) append(ctx context.Context, to int, customID string, r *response, e *outcomeError) error {
	o := outcome{ID: newID("batch_req_", time.Now()), CustomID: customID, Response: r, Error: e}
	text, err := jsonscan.Marshal(o)
	if err != nil {
		return err
	}
	text = append(text, '\n')
	defer w.blocked.Store(false)
	return w.whenRoom(ctx, func() error {
		err := w.reserve(len(text))
		if err == nil {
			if err = w.out.add(to, text); err != nil {
				w.release(int64(len(text)))
			}
		}
		if waited := w.blocked.Swap(err != nil); isFull(err) && !waited {
			w.reason.Store("The gateway's folder of files is full.")
			_ = w.save()
		}
		return err
	})
}

// whenRoom repeats f while it fails because the folder or its disk is full.
func (w *worker) whenRoom(ctx context.Context, f func() error) error {
	for warned := false; ; warned = true {
		err := f()
		if !isFull(err) {
			return err
		}
		if !warned {
			w.cfg.Log.Warn("a batch waits until its folder has room", "batch", w.batch.ID, "error", err)
		}
		if err := pause(ctx, maxPause); err != nil {
			return err
		}
	}
}

// eachLine calls f for each line without an outcome, in the order of the batch's models.
func (w *worker) eachLine(ctx context.Context, f func(line) error) error {
	skip := w.out.position()
	for _, m := range w.batch.Models {
		if skip >= m.Lines {
			skip -= m.Lines
			continue
		}
		input, err := w.input()
		if err != nil {
			return err
		}
		left := m.Lines
		for l, e := range lines(ctx, input) {
			if e == nil && l.model == m.Model {
				left--
			}
			switch {
			case e != nil:
				err = e
			case left < 0:
				err = errChanged
			case l.model != m.Model:
			case skip > 0:
				skip--
			default:
				err = f(l)
			}
			if err != nil {
				break
			}
		}
		_ = input.Close()
		if err == nil && left > 0 {
			err = errChanged
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// endRest gives all lines without an outcome an error, as far as the input file still has them.
func (w *worker) endRest(ctx context.Context, status string, e *outcomeError) error {
	if w.batch.Cut == 0 { // else another gateway has begun
		w.batch.Cut = w.batch.RequestCounts.Total - w.out.position()
		if err := w.save(); err != nil {
			return err
		}
	}
	err := w.eachLine(ctx, func(l line) error {
		w.cfg.Count(status)
		return w.append(ctx, toErrors, string(l.customID), nil, e)
	})
	if _, is := errors.AsType[lineError](err); is { // errNoInput, or the input file has changed
		return nil
	}
	return err
}

// runLine runs a line until it has an outcome or the run ends.
func (w *worker) runLine(ctx context.Context, t *task, body []byte) {
	defer close(t.done)
	defer t.memory.Release(len(body))
	for try, wait := 1, firstPause; ; wait = min(2*wait, maxPause) {
		if key := w.cfg.Key(w.digest); key.Scopes != 0 { // without a key, watch ends the run after a while
			r := w.cfg.Do(ctx, Call{Key: key, Path: w.batch.Endpoint, Body: body, Urgent: w.urgent(time.Now()), Memory: &t.memory})
			passes, counts := repeats(r.Err)
			if counts {
				try++
			}
			if ended := ctx.Err() != nil && r.Err != nil; !ended && (!passes || try > maxTries) {
				t.done <- r
				return
			}
			if r.Err != nil {
				w.reason.Store(waitReason(r.Err, t.model))
			}
			r.Release()
		}
		if pause(ctx, wait/2+rand.N(wait)) != nil {
			return
		}
	}
}

// repeats reports whether a line is repeated after an error, and whether that counts as one of its tries: refusals do
// not count, since they say nothing about the line.
func repeats(e *api.Error) (passes, counts bool) {
	switch {
	case e == nil:
		return false, false
	case e.Status == 429 || e.Status == 503 || errors.Is(e, api.LoadTimeout) || errors.Is(e, api.QueueTimeout):
		return true, false
	case e.Status >= 500 && !e.NoRetry:
		return true, true
	}
	return false, false
}

// waitReason says why lines of a model wait.
func waitReason(e *api.Error, model string) string {
	if !errors.Is(e, api.Background) {
		return e.Message
	}
	name := "the default model"
	if model != "" {
		name = "the model '" + model + "'"
	}
	return "No host that is awake has room for " + name + ". One is woken in batch_hours, or once the completion window demands it."
}

// urgent reports whether lines may wake hosts and load models: in Config.Hours, or when what is left of the completion
// window may not suffice, because it is less than twice what the other lines take, or less than a quarter of the window
// if that is unknown.
func (w *worker) urgent(now time.Time) bool {
	if w.cfg.Hours(now) {
		return true
	}
	end := time.Unix(w.batch.ExpiresAt, 0)
	if rate := float64(w.rate.Load()) / 1e6; rate > 0 {
		return end.Sub(now).Seconds() < 2*float64(w.left.Load())/rate
	}
	return end.Sub(now) < end.Sub(time.Unix(w.batch.CreatedAt, 0))/4
}
